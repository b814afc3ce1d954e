"""What the commands say: epochs counted from 1, numbers to sensible digits, headings that help."""

import json
import re
from pathlib import Path

import pytest

from project.commands.cli import main
from project.runs.summary import summary
from tests.machinery.support.runs import write_runs

FIT = ["fit", "--config", "synthetic", "--model", "MLP", "--preflight", "false"]
FIT += ["--data.train_size", "64", "--data.image_size", "8", "--trainer.accelerator", "cpu"]
FIT += ["--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false"]
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
RUN = "runs/synthetic/version_0"


def test_the_best_epoch_is_counted_from_one_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    main([*FIT, "--data.val_size", "32"])
    best = json.loads(Path(RUN, "run.json").read_text())["best_epoch"]
    said = capsys.readouterr().out
    assert f"Best epoch: {best + 1} of 2, with val/loss " in said
    assert "from 0" not in said
    for command in ("test", "validate"):
        main([command, "--run", RUN, *QUIET])
        table = capsys.readouterr().out
        assert re.search(r"^\| (test|val)/loss *\| \d\.\d{4} *\|$", table, re.M), table
        assert re.search(r"^\| (test|val)/acc *\| \d+\.\d\d % *\|$", table, re.M), table
        assert not re.search(r"\d\.\d{7}", table)
        main([command, "--run", RUN, *QUIET, "--verbose", "false"])
        assert "metric" not in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_a_run_without_validation_says_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    main([*FIT, "--data.val_size", "0", "--monitor", "train/loss"])
    said = capsys.readouterr().out
    assert re.search(r"^Best epoch: \d of 2\. Its weights are restored\.$", said, re.M), said
    write_runs(Path("runs/a"), [0.5])
    assert "Best epoch: 2 of 3, with val/loss 0.5000, val/acc 0.5000." in summary(
        Path("runs/a/version_0")
    )


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict", "check", "lr_find"])
def test_help_lists_what_can_be_chosen_under_headings_of_our_own(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "lightning.Lightning" not in text
    assert "project.models.ResNet18" in " ".join(text.split())
    headings = re.findall(r"^([A-Z<].*):$", text, re.M)
    assert {"The network, its loss and its optimiser", "The data"} <= set(headings)
    assert not [line for line in headings if "standardizes" in line or "optimization" in line]
    assert not [line for line in headings if line.startswith("<class")]
