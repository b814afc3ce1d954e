"""Whatever follows a metric finds it: the settings work together, or one sentence refuses them."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from project.callbacks import EarlyStopping, LastCheckpoint, MonitorCheck, run_checkpoints
from project.data import SyntheticDataModule
from project.engine.checkpoint_io import load_checkpoint
from project.models import MLP

OFF: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_model_summary"), False
)
STEPS = 4  # of an epoch


class Log(Callback):
    """What happens, in its order: a step of training, a validation, a step of the schedule."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.events.append("step")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.events.append("validation")


def fit(
    follower: str,
    monitor: str = "val/loss",
    model: type[MLP] = MLP,
    early: bool = True,
    **options: Any,
) -> tuple[L.Trainer, Log]:
    """Train with one follower of the monitor, or with all of them; errors must come `early`."""
    log, followers = Log(), [MonitorCheck(monitor)]
    val_size = options.pop("val_size", 16)
    plateau = follower in ("plateau", "all")
    if follower in ("early stopping", "all"):
        followers.append(EarlyStopping(monitor, patience=99))
    if follower in ("best checkpoint", "all"):
        followers += run_checkpoints(Path("run"), monitor, "min", LastCheckpoint())
    data = SyntheticDataModule(STEPS * 8, val_size, 0, image_size=8, batch_size=8)
    schedule: Any = partial(ReduceLROnPlateau, patience=0, threshold=0.99)
    task = model([8], in_channels=3, image_size=8, monitor=monitor, monitor_mode="min")
    task.optimizer = partial(SGD, lr=0.1)
    task.lr_scheduler = schedule if plateau else None
    settings = {"accelerator": "cpu", "max_epochs": 4, "callbacks": [log, *followers], **OFF}
    settings["enable_checkpointing"] = follower in ("best checkpoint", "all")
    trainer = L.Trainer(**settings | options)
    try:
        trainer.fit(task, data)
    except ValueError:
        assert not (early and log.events), "before the first step"
        raise
    return trainer, log


WITHOUT: dict[str, dict[str, Any]] = {
    "no validation examples": {"val_size": 0},
    "limit_val_batches 0": {"limit_val_batches": 0},
}
TOO_SHORT: dict[str, dict[str, Any]] = {
    "max_steps below an epoch": {"max_steps": STEPS - 1},
    "the same with accumulation": {"max_steps": 1, "accumulate_grad_batches": 3},
    "validation after the last epoch": {"check_val_every_n_epoch": 5},
    "max_steps before the second epoch's end": {
        "check_val_every_n_epoch": 2,
        "max_steps": 2 * STEPS - 1,
    },
    "validation after more batches than there are": {
        "check_val_every_n_epoch": None,
        "val_check_interval": 4 * STEPS + 1,
    },
}
LONG_ENOUGH: dict[str, tuple[dict[str, Any], int]] = {  # and the validations
    "each epoch": ({}, 4),
    "every 2 epochs": ({"check_val_every_n_epoch": 2}, 2),
    "every 3 epochs": ({"check_val_every_n_epoch": 3}, 1),
    "twice an epoch": ({"val_check_interval": 0.5}, 8),
    "every 3 batches": ({"val_check_interval": 3}, 4),
    "every 7 batches": ({"val_check_interval": 7, "check_val_every_n_epoch": None}, 2),
    "max_steps of an epoch": ({"max_steps": STEPS}, 1),
    "max_steps after half an epoch": ({"max_steps": 2, "val_check_interval": 2}, 1),
    "fast_dev_run": ({"fast_dev_run": 2}, 1),
    "limited": ({"limit_train_batches": 2, "limit_val_batches": 1}, 4),
}


@pytest.mark.parametrize("follower", ["plateau", "early stopping", "best checkpoint", "all"])
@pytest.mark.parametrize("name", LONG_ENOUGH)
def test_settings_that_measure_the_monitor_work(name: str, follower: str) -> None:
    options, validations = LONG_ENOUGH[name]
    trainer, log = fit(follower, **options)
    assert log.events.count("validation") == validations
    if follower in ("plateau", "all"):
        schedule: Any = trainer.lr_scheduler_configs[0].scheduler
        assert schedule.last_epoch == validations, "one step for each validation"
    if follower in ("best checkpoint", "all") and name != "fast_dev_run":
        best = load_checkpoint(Path("run/checkpoints/best.ckpt"))
        assert best["global_step"] > 0


@pytest.mark.parametrize("follower", ["plateau", "early stopping", "best checkpoint", "all"])
@pytest.mark.parametrize("name", WITHOUT)
def test_a_run_without_validation_is_refused_or_follows_training(name: str, follower: str) -> None:
    with pytest.raises(
        ValueError, match=r"nothing measures val/loss .* or set --monitor train/loss"
    ):
        fit(follower, **WITHOUT[name])
    _, log = fit(follower, "train/loss", limit_val_batches=0, max_epochs=2)
    assert log.events == ["step"] * 2 * STEPS


@pytest.mark.parametrize("follower", ["plateau", "early stopping", "all"])
@pytest.mark.parametrize("name", TOO_SHORT)
def test_a_run_that_ends_before_its_first_validation_is_refused(name: str, follower: str) -> None:
    with pytest.raises(ValueError, match="nothing measures val/loss for .* before its first vali"):
        fit(follower, **TOO_SHORT[name])


@pytest.mark.parametrize("name", TOO_SHORT)
def test_without_a_follower_it_is_told_that_there_is_no_best_epoch(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, log = fit("best checkpoint", **TOO_SHORT[name])
    assert "There will be no best epoch: the run ends after" in caplog.text
    assert "validation" not in log.events
    assert not Path("run/checkpoints/best.ckpt").exists()
    assert Path("run/checkpoints/last.ckpt").exists()


@pytest.mark.parametrize("options", [{}, {"check_val_every_n_epoch": 2}, {"val_check_interval": 2}])
def test_followers_of_a_training_metric_take_it_at_each_end_of_an_epoch(
    options: dict[str, Any],
) -> None:
    trainer, _ = fit("all", "train/loss", **options)
    schedule: Any = trainer.lr_scheduler_configs[0].scheduler
    assert schedule.last_epoch == 4
    best: Any = trainer.checkpoint_callbacks[0]
    lowest = load_checkpoint(Path("run/checkpoints/best.ckpt"))
    assert best.best_model_score == min(schedule.best, best.best_model_score)
    assert lowest["global_step"] % STEPS == 0


class OwnMetric(MLP):
    """A network that logs a metric of its own, late."""

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log("val/own", float(self.global_step))

    def on_train_epoch_end(self) -> None:
        self.log("train/own", float(self.global_step))
        super().on_train_epoch_end()


@pytest.mark.parametrize("monitor", ["val/own", "train/own"])
def test_a_plateau_follows_a_metric_that_the_user_logs_and_before_the_save(monitor: str) -> None:
    trainer, _ = fit("all", monitor, OwnMetric, max_epochs=3)
    schedule: Any = trainer.lr_scheduler_configs[0].scheduler
    assert (schedule.best, schedule.last_epoch) == (STEPS, 3)
    saved = load_checkpoint(Path("run/checkpoints/last.ckpt"))
    assert saved["lr_schedulers"][0]["last_epoch"] == 3
    rate = saved["optimizer_states"][0]["param_groups"][0]["lr"]
    assert rate == trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**2)


def test_a_misspelt_metric_is_refused_with_the_nearest_name() -> None:
    for follower in ("plateau", "early stopping", "best checkpoint"):
        with pytest.raises(ValueError, match=r"no metric val/los \(did you mean val/loss\?\); the"):
            fit(follower, "val/los")
    with pytest.raises(ValueError, match="no metric f1; there are val/loss, val/acc"):
        fit("all", "f1")


@pytest.mark.parametrize("follower", ["plateau", "early stopping", "best checkpoint"])
@pytest.mark.parametrize("monitor", ["val/los", "train/los"])
def test_a_misspelt_metric_is_one_sentence_where_nothing_can_know_before(
    monitor: str, follower: str
) -> None:
    with pytest.raises((ValueError, MisconfigurationException), match=monitor):
        fit(follower, monitor, early=False, num_sanity_val_steps=0)
