"""What `run.json` says, however a run ends."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import yaml

from project.callbacks import BestCheckpoint, EarlyStopping, RunRecord
from project.checkpoint import load_checkpoint
from project.data import SyntheticDataModule
from project.models import MLP
from project.run import config_sha256

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
CONFIG: dict[str, Any] = {"name": "try", "seed_everything": 3, "trainer": {"max_epochs": 2}}


def fit(run: Path, *callbacks: L.Callback, **kwargs: Any) -> dict[str, Any]:
    """The record of a run of two epochs, unless told otherwise."""
    data = SyntheticDataModule(16, 16, 0, image_size=8, batch_size=8)
    record = RunRecord(run, CONFIG, ["fit", "--name", "a b"])
    best = BestCheckpoint(dirpath=run / "checkpoints", filename="best", monitor="val/loss")
    options = {"accelerator": "cpu", "max_epochs": 2, **QUIET, **kwargs}
    trainer = L.Trainer(callbacks=[*callbacks, record, best], **options)
    trainer.fit(MLP([8], in_channels=3, image_size=8), data)
    return read(run)


def read(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "run.json").read_text()))


def test_what_ran_and_what_came_out(tmp_path: Path) -> None:
    run = tmp_path / "version_4"
    record = fit(run)
    assert (record["name"], record["version"], record["seed"]) == ("try", "version_4", 3)
    assert record["command"] == "python -m project fit --name 'a b'"
    assert record["config_sha256"] == config_sha256(CONFIG)
    assert yaml.safe_load((run / "config.yaml").read_text()) == CONFIG
    assert (record["epochs"], record["world_size"], record["precision"]) == (2, 1, "32-true")
    best = load_checkpoint(run / "checkpoints/best.ckpt")
    assert record["best_epoch"] == best["epoch"]
    assert record["metrics"] == best["metrics"]
    assert set(best["metrics"]) == {"val/loss", "val/acc"}
    assert best["config"] == CONFIG


def test_it_exists_while_the_run_goes_on(tmp_path: Path) -> None:
    class Reader(L.Callback):
        def on_train_start(self, *_: Any) -> None:
            seen.append(read(tmp_path))

    seen: list[dict[str, Any]] = []
    fit(tmp_path, Reader())
    assert [(record["stopped_by"], record["metrics"]) for record in seen] == [(None, {})]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "max_epochs"),
        ({"max_epochs": -1, "max_steps": 3}, "max_steps"),
        ({"max_epochs": -1, "max_time": {"seconds": 1}}, "max_time"),
    ],
)
def test_why_it_stopped(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert fit(tmp_path, **options)["stopped_by"] == reason


def test_early_stopping_and_errors_are_reasons_too(tmp_path: Path) -> None:
    never = EarlyStopping("val/loss", patience=1, min_delta=9)
    assert fit(tmp_path / "early", never, max_epochs=9)["stopped_by"] == "early_stopping"

    class Fails(L.Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fit(tmp_path / "error", Fails())
    assert read(tmp_path / "error")["stopped_by"] == "ArithmeticError"


def test_a_run_that_fails_before_it_begins_leaves_nothing(tmp_path: Path) -> None:
    class Fails(L.Callback):
        def setup(self, *_: Any, **__: Any) -> None:
            raise ArithmeticError

    run = tmp_path / "runs/try/version_0"
    run.mkdir(parents=True)
    (run / "events").touch()  # of a logger
    with pytest.raises(ArithmeticError):
        fit(run, Fails())
    assert not (tmp_path / "runs").exists()


def test_a_resume_keeps_the_first_config_and_adds_up_the_time(tmp_path: Path) -> None:
    seconds = [fit(tmp_path)["seconds"] for _ in range(3)]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    names = {path.name for path in tmp_path.glob("*.yaml")}
    assert names == {"config.yaml", "config.resume_1.yaml", "config.resume_2.yaml"}


def test_runs_are_of_one_config_whatever_changes_no_result() -> None:
    """Also before and after an option was added, which is not set in either."""
    same = CONFIG | {"name": "other", "seed_everything": 7, "preflight": False, "new": None}
    same |= {"trainer": {"max_epochs": 2, "default_root_dir": "elsewhere", "max_time": None}}
    assert config_sha256(same) == config_sha256(CONFIG)
    larger = CONFIG | {"monitor": "val/loss"}
    assert config_sha256(dict(reversed(larger.items()))) == config_sha256(larger)
    for other in ({"trainer": {"max_epochs": 3}}, {"monitor": "val/acc"}, {"new": 1}):
        assert config_sha256(CONFIG | other) != config_sha256(CONFIG)
