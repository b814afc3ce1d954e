"""The check that the monitored metric will exist for everything that follows it."""

import math

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..runs.names import nearest
from .datamodule import StreamDataModule


class MonitorCheck(Callback):
    """Refuses a run in which nothing would measure the monitored metric, before its first step.

    If only the best checkpoint follows the metric, a run may end before its first validation: a
    message then says that there will be no best epoch.

    Args:
        monitor: Name of the metric. Names of training metrics begin with `train/`; validation
            measures all others.
    """

    def __init__(self, monitor: str) -> None:
        self.monitor = monitor

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.monitor.startswith("train/") or trainer.ckpt_path is not None:
            return  # a resumed run was checked when it began
        followers = self._followers(trainer)
        if not followers and not trainer.checkpoint_callbacks:
            return
        if missing := _missing_validation(trainer):
            raise ValueError(
                f"nothing measures {self.monitor} {missing}, or set --monitor train/loss"
            )
        first, end = _first_validation(trainer), _end(trainer)
        if first <= end:
            return
        when = f"the run ends after {end:g} batches, before its first validation"
        when += f" after {first:g}" if math.isfinite(first) else ""
        if followers:
            raise ValueError(
                f"nothing measures {self.monitor} for {' and '.join(followers)}: {when}; train "
                "longer (--trainer.max_epochs, --trainer.max_steps), validate earlier "
                "(--trainer.val_check_interval, --trainer.check_val_every_n_epoch), or set "
                "--monitor train/loss"
            )
        rank_zero_info(f"There will be no best epoch: {when}.")

    def _followers(self, trainer: L.Trainer) -> list[str]:
        """Return the names of what cannot work without the metric."""
        own = (None, self.monitor)
        stopping = [c for c in trainer.early_stopping_callbacks if c.monitor == self.monitor]
        # A Task follows its own monitor; other models name a metric for each schedule.
        schedules = [c.scheduler for c in trainer.lr_scheduler_configs if c.monitor in own]
        found = [*stopping, *(s for s in schedules if isinstance(s, ReduceLROnPlateau))]
        return [type(follower).__name__ for follower in found]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a misspelt metric, in the sanity check if there is one."""
        known = list(trainer.callback_metrics)
        if known and not self.monitor.startswith("train/") and self.monitor not in known:
            hint = nearest(self.monitor, known)
            raise ValueError(f"no metric {self.monitor}{hint}; there are {', '.join(known)}")


def _missing_validation(trainer: L.Trainer) -> str:
    """Why the run has no validation at all, and what to set."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if isinstance(data, StreamDataModule) and "val" not in data.sets:
        return "without validation examples: set --data.val_size"
    if trainer.limit_val_batches == 0:
        return "with --trainer.limit_val_batches 0: leave that out"
    if not trainer.enable_validation:
        return "without validation: give the model a validation_step and the data a val_dataloader"
    return ""


def _first_validation(trainer: L.Trainer) -> float:
    """Return the number of training batches before the first validation, 0 if time decides."""
    trainer.fit_loop.setup_data()
    interval, every = trainer.val_check_batch, trainer.check_val_every_n_epoch
    if interval is None:  # by the clock
        return 0
    if every is None:  # over the epochs
        return interval
    batches = trainer.num_training_batches
    whole = (every - 1) * batches if every > 1 else 0
    return whole + min(interval, batches)


def _end(trainer: L.Trainer) -> float:
    """Return the number of training batches after which a limit of epochs or steps ends the run."""
    batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
    end = math.inf if epochs is None or epochs < 0 or batches == 0 else epochs * batches
    if steps < 0:
        return end
    per_step = trainer.accumulate_grad_batches
    if math.isinf(batches):
        return min(end, steps * per_step)
    whole, rest = divmod(steps, math.ceil(batches / per_step))
    return min(end, whole * batches + rest * per_step)
