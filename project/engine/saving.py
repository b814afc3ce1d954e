"""The two checkpoints of a run: `best.ckpt` by the monitor, `last.ckpt` to resume from."""

import shlex
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch import callbacks

from ..runs.direction import Mode
from ..runs.folder import BEST, LAST
from ..runs.names import PROGRAM
from .endings import ended_by
from .exact import may_swap
from .internals import is_accumulating, repeat_validation, validates_next
from .signals import SIGNALS, Interrupted, handle_by, say


class BestCheckpoint(callbacks.ModelCheckpoint):
    """ModelCheckpoint that continues in the folder of its run, even if that was moved."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        with warnings.catch_warnings(action="ignore"):  # the folder need not be empty
            super().setup(trainer, pl_module, stage)

    _validated = False

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validated |= not trainer.sanity_checking
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that ends before its first validation has no best epoch; MonitorCheck has said so.
        if self._validated or str(self.monitor).startswith("train/"):
            super().on_train_epoch_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.current_score = state_dict["current_score"]  # Lightning does not load it
        folder = Path(str(self.dirpath))
        previous = Path(state_dict["best_model_path"])
        best = folder / previous.name
        if previous.is_file() and not best.exists():  # a new run resumes from another run's file
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(previous, best)
        if best.is_file():  # otherwise the best score would belong to no file
            score = state_dict["best_model_score"]
            here = {"dirpath": self.dirpath, "best_k_models": {str(best): score}}
            here |= dict.fromkeys(("best_model_path", "kth_best_model_path"), str(best))
            super().load_state_dict(state_dict | here)


class LastCheckpoint(callbacks.Checkpoint):
    """Saves the newest complete state: after each epoch, at intervals, on SIGTERM and on Ctrl-C.

    Args:
        path: Path of the file, which each save replaces.
        every_n_steps: Optimiser steps between two saves within an epoch; 0 to save at its end only.
        every_n_minutes: Minutes between two saves within an epoch; 0 to save at its end only.
    """

    def __init__(
        self, path: Path = LAST, every_n_steps: int = 0, every_n_minutes: float = 0.0
    ) -> None:
        if every_n_steps < 0 or every_n_minutes < 0:
            raise ValueError("--checkpoint.every_n_steps and .every_n_minutes can't be negative")
        self.path = path
        self.every_n_steps, self.every_n_minutes = every_n_steps, every_n_minutes
        self._signum = 0
        self._step, self._time = 0, 0.0  # of the newest save
        self._activity = "step"
        self._replaced: dict[int, Any] = {}  # signal handlers, while ours are in place

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.path = Path(trainer.strategy.broadcast(str(self.path)))  # the same on all ranks

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step, self._time = trainer.global_step, time.monotonic()
        if ended_by(trainer):  # a resumed run that has nothing left to train
            return
        if threading.current_thread() is threading.main_thread():
            self._replaced = {number: signal.getsignal(number) for number in SIGNALS}
            handle_by(self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
        # The next Ctrl-C ends the process even while no Python runs, as in a long backward pass.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        say(f"Saving after this {self._activity}; Ctrl-C again leaves at once.")

    def _give_signals_back(self) -> None:
        for number, handler in self._replaced.items():
            signal.signal(number, handler)
        self._replaced = {}

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if self._is_due(trainer) and self._is_exact(trainer):
            self._save(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Nothing is saved while the model may hold other weights, such as averaged ones.
        self._activity = "validation" if may_swap(trainer) else "step"

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._activity = "step"

    def on_validation_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.sanity_checking or self._activity == "validation":
            return
        if trainer.strategy.reduce_boolean_decision(self._signum > 0, all=False):
            repeat_validation(trainer)
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)
        if ended_by(trainer):
            self._give_signals_back()
            self._raise_if_interrupted(trainer)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._give_signals_back()
        # With several processes, the others cannot take part in a save.
        if isinstance(exception, Exception) and trainer.world_size == 1 and self._keep(trainer):
            again = f"{PROGRAM} fit --run {shlex.quote(str(self.path.parent.parent))}"
            print(f"Saved after step {trainer.global_step}. To continue: {again}")

    def _keep(self, trainer: L.Trainer) -> bool:
        """Save the finished steps if an error came between two steps, or in validation.

        Returns:
            Whether the state of the last finished step is on disk.
        """
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        if trainer.training and progress.ready == progress.completed:
            if progress.ready == 0:
                return self.path.is_file()  # of the end of the previous epoch
            if not self._is_exact(trainer):
                return False
        elif trainer.validating and self._activity == "step":
            repeat_validation(trainer)
        else:
            return False
        try:
            self._write(trainer)
        except (OSError, ValueError):  # a full disk, or weights that are not finite
            return False
        return True

    def _is_due(self, trainer: L.Trainer) -> bool:
        minutes = (time.monotonic() - self._time) / 60
        if 0 < self.every_n_steps <= trainer.global_step - self._step:
            return True  # it is the same on all ranks
        due = self._signum > 0 or 0 < self.every_n_minutes <= minutes
        return trainer.strategy.reduce_boolean_decision(due, all=False)

    @staticmethod
    def _is_exact(trainer: L.Trainer) -> bool:
        """Return whether Lightning can resume exactly from here.

        It cannot if gradients are half accumulated, or if validation or the end of the epoch comes
        next: a resumed run would leave that out.
        """
        is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        followed = is_last or validates_next(trainer)
        return not (followed or is_accumulating(trainer) or ended_by(trainer))

    def _save(self, trainer: L.Trainer) -> None:
        self._write(trainer)
        self._step, self._time = trainer.global_step, time.monotonic()
        self._raise_if_interrupted(trainer)

    def _raise_if_interrupted(self, trainer: L.Trainer) -> None:
        # Also on ranks without a signal: `kill` may have sent it to the first process alone.
        own = torch.tensor(self._signum, device=trainer.strategy.root_device)
        if signum := int(trainer.strategy.reduce(own, reduce_op="max")):
            raise Interrupted(signum)

    def _write(self, trainer: L.Trainer) -> None:
        for logger in trainer.loggers:
            logger.save()  # so that the files have all rows before the checkpoint
        trainer.save_checkpoint(self.path, weights_only=False)


def run_checkpoints(
    run: Path, monitor: str, mode: Mode, last: LastCheckpoint
) -> list[callbacks.Callback]:
    """Return the checkpoints of a run folder; the last one saves the state of the best one."""
    options: dict[str, Any] = {"monitor": monitor, "mode": mode, "enable_version_counter": False}
    if monitor.startswith("train/"):  # rather than at the next validation
        options["save_on_train_epoch_end"] = True
    last.path = run / LAST
    return [BestCheckpoint(run / BEST.parent, BEST.stem, **options), last]
