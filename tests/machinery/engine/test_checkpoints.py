"""When the last state is saved, what is kept of the best, and how long a run is patient."""

import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from project.callbacks import BestCheckpoint, EarlyStopping, LastCheckpoint
from project.commands.trainer import Trainer
from project.data import SyntheticDataModule
from project.engine.checkpoint_io import load_checkpoint
from project.engine.saving import Interrupted
from project.models import MLP

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)


def fit(callbacks: list[L.Callback], **kwargs: Any) -> L.Trainer:
    """Train for two epochs of 5 batches, unless told otherwise."""
    data = SyntheticDataModule(40, 16, 0, image_size=8, batch_size=8)
    trainer = L.Trainer(
        accelerator="cpu", callbacks=callbacks, **{"max_epochs": 2, **QUIET, **kwargs}
    )
    trainer.fit(MLP([8], in_channels=3, image_size=8), data)
    return trainer


def save_points(monkeypatch: pytest.MonkeyPatch, last: LastCheckpoint, **kwargs: Any) -> list[int]:
    """Return the batches seen at each save within an epoch, and check the saves at its end."""
    points: list[int] = []
    ends: list[int] = []
    original = L.Trainer.save_checkpoint

    def save(self: L.Trainer, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        loop = self.fit_loop.epoch_loop
        seen = self.current_epoch * 5 + loop.batch_progress.current.ready
        at_end = loop.batch_progress.current.completed == 5
        (ends if at_end else points).append(seen)

    monkeypatch.setattr(L.Trainer, "save_checkpoint", save)
    fit([last], **kwargs)
    assert ends == [5, 10]
    return points


def test_saves_after_each_epoch_only_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert save_points(monkeypatch, LastCheckpoint(Path("last.ckpt"))) == []
    assert load_checkpoint(Path("last.ckpt"))["global_step"] == 10


def test_never_saves_after_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    last = LastCheckpoint(Path("last.ckpt"), every_n_steps=1)
    assert save_points(monkeypatch, last) == [1, 2, 3, 4, 6, 7, 8, 9]


def test_saves_every_n_steps_since_the_newest_save(monkeypatch: pytest.MonkeyPatch) -> None:
    last = LastCheckpoint(Path("last.ckpt"), every_n_steps=3)
    assert save_points(monkeypatch, last) == [3, 8]


def test_never_saves_with_gradients_half_accumulated(monkeypatch: pytest.MonkeyPatch) -> None:
    last = LastCheckpoint(Path("last.ckpt"), every_n_steps=1)
    assert save_points(monkeypatch, last, accumulate_grad_batches=2) == [2, 4, 7, 9]


def test_never_saves_right_before_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    last = LastCheckpoint(Path("last.ckpt"), every_n_steps=1)
    assert save_points(monkeypatch, last, val_check_interval=2) == [1, 3, 6, 8]


@pytest.mark.parametrize(("minutes", "points"), [(1e-9, [1, 2, 3, 4, 6, 7, 8, 9]), (9, [])])
def test_saves_every_n_minutes(
    minutes: float, points: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = LastCheckpoint(Path("last.ckpt"), every_n_minutes=minutes)
    assert save_points(monkeypatch, last) == points


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_after_the_step_and_the_handlers_return(signum: int) -> None:
    class Sender(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 6:
                os.kill(os.getpid(), signum)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stop:
        fit([Sender(), LastCheckpoint(Path("last.ckpt"))])
    assert (stop.value.code, stop.value.name) == (128 + signum, signal.Signals(signum).name)
    assert load_checkpoint(Path("last.ckpt"))["global_step"] == 7
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_outside_of_training_a_signal_is_not_kept_for_later() -> None:
    """Neither before the first step nor once the last state is saved."""
    found: dict[str, Any] = {}

    class Watcher(L.Callback):
        def on_sanity_check_start(self, trainer: L.Trainer, *_: Any) -> None:
            found["before"] = signal.getsignal(signal.SIGTERM)

        def on_train_batch_end(self, *_: Any) -> None:
            found["training"] = signal.getsignal(signal.SIGTERM)

        def on_train_end(self, *_: Any) -> None:
            found["after"] = signal.getsignal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    last = LastCheckpoint(Path("last.ckpt"))
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[Watcher(), last],
        max_epochs=1,
        **QUIET,
        num_sanity_val_steps=1,
    )
    data = SyntheticDataModule(40, 16, 0, image_size=8, batch_size=8)
    trainer.fit(MLP([8], in_channels=3, image_size=8), data)
    assert found.pop("training") == last._handle
    assert found == {"before": before, "after": before}


def test_the_handlers_return_after_a_run() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    fit([LastCheckpoint(Path("last.ckpt"))])
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def best(folder: Path) -> BestCheckpoint:
    checkpoint = BestCheckpoint(dirpath=folder, filename="best", monitor="val/loss")
    assert checkpoint.dirpath is not None
    return checkpoint


def test_the_best_score_moves_with_its_folder() -> None:
    saved = best(Path("old"))
    fit([saved])
    state = saved.state_dict()
    assert saved.best_model_score is not None
    Path("old").rename("new")
    moved = best(Path("new"))
    moved.load_state_dict(state)
    assert moved.best_model_score == saved.best_model_score
    assert Path(moved.best_model_path) == Path("new/best.ckpt").absolute()
    assert moved.best_k_models == {moved.best_model_path: saved.best_model_score}
    assert moved.kth_best_model_path == moved.best_model_path


def stopping(patience: int, **state: Any) -> EarlyStopping:
    """Return an EarlyStopping that continues from a state, saved with patience 3 by default."""
    callback = EarlyStopping("val/loss", patience=patience)
    saved = EarlyStopping("val/loss", patience=3).state_dict()
    callback.load_state_dict(saved | state)
    return callback


def test_patience_is_of_the_command_line_and_the_rest_of_the_checkpoint() -> None:
    callback = stopping(5, wait_count=2, best_score=torch.tensor(0.5))
    assert (callback.patience, callback.wait_count) == (5, 2)
    assert callback.best_score == 0.5


def test_no_patience_at_all_still_trains() -> None:
    never_better = EarlyStopping("val/loss", patience=0, min_delta=9)
    trainer = fit([never_better], max_epochs=4, enable_checkpointing=False)
    assert trainer.current_epoch == 2  # the first epoch improves on none


@pytest.mark.parametrize(("patience", "epochs"), [(3, 0), (4, 1), (5, 2), (99, 4)])
def test_a_run_that_was_stopped_goes_on_with_more_patience_only(patience: int, epochs: int) -> None:
    never_better = stopping(
        patience,
        wait_count=3,
        stopped_epoch=7,
        stopping_reason=EarlyStoppingReason.PATIENCE_EXHAUSTED.value,
        best_score=torch.tensor(0.0),
    )
    trainer = fit([never_better], max_epochs=4, enable_checkpointing=False)
    assert trainer.current_epoch == epochs
    assert (never_better.stopping_reason == EarlyStoppingReason.NOT_STOPPED) == (patience == 99)
