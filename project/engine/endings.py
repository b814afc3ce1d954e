"""Why a training ends: it reaches a limit, or something asks it to stop."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStopping, EarlyStoppingReason

from .internals import StageTrainer, may_stop


def ended_by(trainer: L.Trainer) -> str | None:
    """Return what ends a training after the current epoch, as `stopped_by` in run.json names it.

    Returns:
        `max_steps`, `early_stopping`, `max_epochs`, `max_time`, or the name of the class or
        function that asked it to stop; None if the training continues.
    """
    loop = trainer.fit_loop
    steps = _is_reached(trainer.global_step, trainer.max_steps)
    if steps and not loop.epoch_loop.batch_progress.is_last_batch:
        return "max_steps"  # within an epoch, which Lightning then counts as a whole one
    asked = trainer.should_stop and may_stop(trainer)
    if asked and any(_has_stopped(callback) for callback in trainer.early_stopping_callbacks):
        return "early_stopping"
    epochs: Any = loop.epoch_progress.current  # `current_epoch` lags behind at the end of one
    if _is_reached(epochs.processed, loop.max_epochs):
        return "max_epochs"
    if steps:
        return "max_steps"
    return _asked_by(trainer) if asked else None


def _is_reached(number: int, limit: int | None) -> bool:
    return limit is not None and -1 < limit <= number


def _has_stopped(callback: EarlyStopping) -> bool:
    return callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED


def _asked_by(trainer: L.Trainer) -> str:
    by = trainer.stop_asked_by if isinstance(trainer, StageTrainer) else None
    timers = [c for c in trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
    if by in (None, *(type(timer).__name__ for timer in timers)) and timers:
        return "max_time"
    return by or "should_stop"
