"""The content of `run.json`, however a run ends."""

import json
import subprocess
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import yaml

from project.callbacks import BestCheckpoint, EarlyStopping, RunRecord
from project.commands.trainer import Trainer
from project.data import SyntheticDataModule
from project.engine.checkpoint_io import load_checkpoint
from project.models import MLP
from project.runs.provenance import git_state
from project.runs.record import read_record
from project.runs.settings import config_sha256

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
CONFIG: dict[str, Any] = {"name": "try", "seed_everything": 3, "trainer": {"max_epochs": 2}}


def fit(run: Path, *callbacks: L.Callback, **kwargs: Any) -> dict[str, Any]:
    """Return the record of a run, of two epochs unless told otherwise."""
    data = SyntheticDataModule(16, 16, 0, image_size=8, batch_size=8)
    record = RunRecord(run, CONFIG, ["fit", "--name", "a b"])
    best = BestCheckpoint(dirpath=run / "checkpoints", filename="best", monitor="val/loss")
    options = {"accelerator": "cpu", "max_epochs": 2, **QUIET, **kwargs}
    trainer = Trainer(callbacks=[*callbacks, record, best], **options)
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


class Patience(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = True


def enough(trainer: L.Trainer, *_: Any) -> None:
    trainer.should_stop = True


REASONS: dict[str, tuple[dict[str, Any], list[L.Callback]]] = {
    "max_epochs": ({}, []),
    "max_steps": ({"max_epochs": 1, "max_steps": 1, "val_check_interval": 1}, []),  # of two
    "max_time": ({"max_epochs": -1, "max_time": {"seconds": 1}}, []),
    "Patience": ({}, [Patience()]),
    "enough": ({}, [L.pytorch.callbacks.LambdaCallback(on_train_epoch_end=enough)]),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_it_stopped(reason: str, tmp_path: Path) -> None:
    options, callbacks = REASONS[reason]
    record = fit(tmp_path, *callbacks, **options)
    assert record["stopped_by"] == reason
    found = read_record(tmp_path)
    assert found.is_finished == (reason != "max_time")
    assert found.has_ended


def test_a_stop_that_must_wait_is_not_the_reason(tmp_path: Path) -> None:
    record = fit(tmp_path, Patience(), min_epochs=2)
    assert record["stopped_by"] == "max_epochs"


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
    with pytest.raises(ArithmeticError):
        fit(run, Fails())
    assert not (tmp_path / "runs").exists()


def test_a_resume_keeps_the_first_config_and_adds_up_the_time(tmp_path: Path) -> None:
    seconds = [fit(tmp_path)["seconds"] for _ in range(3)]
    assert 0 < seconds[0] < seconds[1] < seconds[2]
    record = read(tmp_path)
    assert record["command"] == "python -m project fit --name 'a b'"
    assert record["resumes"] == [record["command"]] * 2
    names = {path.name for path in tmp_path.glob("*.yaml")}
    assert names == {"config.yaml", "config.resume_1.yaml", "config.resume_2.yaml"}


def test_runs_are_of_one_config_whatever_changes_no_result() -> None:
    """Also before and after an option was added, which is not set in either."""
    same = CONFIG | {"name": "other", "seed_everything": 7, "preflight": False, "new": None}
    free = {"default_root_dir": "elsewhere", "max_time": None, "log_every_n_steps": 7}
    free |= {"limit_test_batches": 3, "limit_predict_batches": 3, "detect_anomaly": True}
    same |= {"trainer": {"max_epochs": 2, **free}}
    assert config_sha256(same) == config_sha256(CONFIG)
    larger = CONFIG | {"monitor": "val/loss"}
    assert config_sha256(dict(reversed(larger.items()))) == config_sha256(larger)
    for other in ({"trainer": {"max_epochs": 3}}, {"monitor": "val/acc"}, {"new": 1}):
        assert config_sha256(CONFIG | other) != config_sha256(CONFIG)


def test_new_code_that_was_never_committed_makes_a_run_dirty(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *args], check=True, capture_output=True)

    package = tmp_path / "project"
    package.mkdir()
    git("init")
    (package / "old.py").touch()
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "runs/try/version_0").mkdir(parents=True)
    for name in ("runs/try/version_0/config.yaml", "notes.txt"):
        (tmp_path / name).touch()
        assert git_state(package)["git_dirty"] is False, name
    for name in ("project/new.py", "configs/new.yaml", "top.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert git_state(package)["git_dirty"] is True, name
        (tmp_path / name).unlink()
    (package / "old.py").write_text("changed")
    assert git_state(package)["git_dirty"] is True
