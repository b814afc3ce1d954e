"""Lightning's EarlyStopping, for runs that are resumed."""

from typing import Any

import lightning as L
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from ..runs.direction import Mode
from .internals import check_after_training


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's callback, but the patience is that of the command line, not of the checkpoint."""

    def follow(self, mode: Mode) -> None:
        """Take the direction of the monitored metric, which is not known when this is made."""
        if mode != self.mode:
            self.mode = mode
            # Lightning gives both of them the sign of the direction.
            self.min_delta, self.best_score = -self.min_delta, -self.best_score

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        # Look when the metric is new. Lightning would take an old value after an epoch without
        # validation, and would miss training metrics if an epoch has several validations.
        check_after_training(self, self.monitor.startswith("train/"))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        known = trainer.callback_metrics
        if self.monitor.startswith("train/") and self.monitor not in known:
            raise ValueError(f"no metric {self.monitor}; there are {', '.join(known)}")
        super().on_train_epoch_end(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that was stopped early stays stopped when it is resumed.
        trainer.should_stop |= self.stopping_reason != EarlyStoppingReason.NOT_STOPPED

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"patience": self.patience})
        exhausted = self.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED
        if exhausted and self.wait_count < self.patience:  # continue as if never stopped
            self.stopped_epoch, self.stopping_reason_message = 0, None
            self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
