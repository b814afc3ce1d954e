"""Checks that refuse a run which could not work."""

import difflib

import lightning as L
from lightning.pytorch.callbacks import Callback


class MonitorCheck(Callback):
    """Refuses a misspelt monitor before the first step, not after the first epoch.

    Args:
        monitor: Name of a metric; one of validation is looked for in the sanity check.
    """

    def __init__(self, monitor: str) -> None:
        self.monitor = monitor

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        sets = getattr(trainer.datamodule, "sets", ("val",))  # type: ignore[attr-defined]
        if self.monitor.startswith("val/") and "val" not in sets:
            raise ValueError(
                f"nothing measures {self.monitor} without validation examples: set "
                "--data.val_size, or --monitor train/loss"
            )

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        known = list(trainer.callback_metrics)
        if known and not self.monitor.startswith("train/") and self.monitor not in known:
            close = difflib.get_close_matches(self.monitor, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"no metric {self.monitor}{hint}; there are {', '.join(known)}")
