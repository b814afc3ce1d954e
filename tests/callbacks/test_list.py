"""The list of a run's callbacks: each can be turned off by name, and adding one takes one line."""

import json
import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback

from project.callbacks import Callbacks, CurvesMonitor, PredictionGrid
from project.commands.cli import CLI, main
from project.engine.defaults import by_default

FIT = ["fit", "--config", "synthetic", "--data.train_size", "48", "--data.val_size", "20"]
FIT += ["--data.test_size", "0", "--data.image_size", "8", "--data.batch_size", "16"]
FIT += ["--model.width", "4", "--trainer.accelerator", "cpu", "--preflight", "false"]
FIT += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
FIT += ["--trainer.max_epochs", "1", "--model.lr_scheduler", "null"]
NAMES = [field.name for field in fields(Callbacks)]


def kinds(cli: CLI) -> set[str]:
    return {type(callback).__name__ for callback in cli.trainer.callbacks}


def test_each_is_left_out_by_its_name() -> None:
    everything = main([*FIT, "--early_stopping.patience", "3"])
    files = {path.name for path in everything.run_folder.iterdir()}
    nothing = main([*FIT, *(part for name in NAMES for part in (f"--{name}", "null"))])
    gone = kinds(everything) - kinds(nothing)
    assert gone == {
        *("EarlyStopping", "FiniteCheck", "LearningRateMonitor", "StepMonitor"),
        *("CurvesMonitor", "PredictionGrid"),
    }
    assert len(gone) == len(NAMES)
    left = {path.name for path in nothing.run_folder.iterdir()}
    assert {name for name in files - left if "tfevents" not in name} == set()
    header = (nothing.run_folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert not {"lr", "grad_norm"} & set(header)
    losses = [
        json.loads((cli.run_folder / "run.json").read_text())["metrics"]["val/loss"]
        for cli in (everything, nothing)
    ]
    assert losses[0] == losses[1], "none of them changes the training"


def test_a_config_leaves_out_and_sets_them_and_a_run_keeps_that(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("curves: null\npictures:\n  every_n_epochs: 4\n")  # as in older configs
    cli = main([*FIT, "--config", str(config)])
    (grid,) = [c for c in cli.trainer.callbacks if isinstance(c, PredictionGrid)]
    assert grid.every_n_epochs == 4
    assert not any(isinstance(c, CurvesMonitor) for c in cli.trainer.callbacks)
    again = ["fit", "--run", str(cli.run_folder), "--trainer.max_epochs", "2"]
    resumed = main([*again, "--pictures.every_n_epochs", "5"])
    (grid,) = [c for c in resumed.trainer.callbacks if isinstance(c, PredictionGrid)]
    assert grid.every_n_epochs == 5
    assert "CurvesMonitor" not in kinds(resumed)


def test_a_resume_without_them_is_exact(caplog: pytest.LogCaptureFixture) -> None:
    run = str(main(FIT).run_folder)
    without = [part for name in NAMES for part in (f"--{name}", "null")]
    with caplog.at_level(logging.INFO):
        main(["fit", "--run", run, "--trainer.max_epochs", "2", *without])
    assert "Resuming exactly where the run stopped." in caplog.text


class Greeting(Callback):
    """Records a word at the start of training.

    Args:
        word: Word to say.
    """

    said: list[str] = []

    def __init__(self, word: str = "hello") -> None:
        self.word = word

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.said.append(self.word)


@dataclass
class Longer(Callbacks):
    """The list with one more line."""

    greeting: Greeting | None = by_default(Greeting)


@pytest.mark.parametrize(
    ("options", "said"),
    [([], ["hello"]), (["--greeting.word", "hi"], ["hi"]), (["--greeting", "null"], [])],
)
def test_one_of_ones_own_is_a_line_of_the_list_and_an_option(
    options: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("options", "fit_trainer"):
        monkeypatch.setattr(f"project.commands.{module}.Callbacks", Longer)
    monkeypatch.setattr(Greeting, "said", [])
    cli = main([*FIT, *options])
    assert Greeting.said == said
    config: Any = cli.plan.config["greeting"]
    assert (config is None) == (not said)


def test_the_help_names_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = capsys.readouterr().out
    assert "What a run has, in this order; null leaves one out:" in text
    assert all(f"--{name} " in text for name in NAMES)


@pytest.mark.parametrize("option", ["--trainer.logger", "--trainer.fast_dev_run"])
def test_those_that_need_a_logger_or_a_folder_stay_away_without_one(option: str) -> None:
    value = "false" if option.endswith("logger") else "true"
    found = kinds(main([*FIT, option, value]))
    assert "FiniteCheck" in found
    missing = {"LearningRateMonitor", "StepMonitor"} if value == "false" else {"CurvesMonitor"}
    assert not missing & found
