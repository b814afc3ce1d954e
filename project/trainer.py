"""The commands that train or measure."""

from collections.abc import Iterable

import lightning as L
from lightning.pytorch.callbacks import Callback

from project.callbacks.checks import Verdict
from project.callbacks.controls import Preflight
from project.reports.lr_range import LRRange, LRSweep

STEP_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step"),
)


def skip_empty_hooks(callbacks: Iterable[Callback]) -> None:
    """Leave out what does nothing at each step: Lightning times and calls every hook but None."""
    for callback in callbacks:
        for name in STEP_HOOKS:
            if getattr(type(callback), name) is getattr(Callback, name):
                setattr(callback, name, None)


class Trainer(L.Trainer):
    """Lightning's trainer, with a method for each further command: its arguments are options."""

    def lr_find(
        self,
        model: L.LightningModule,
        datamodule: L.LightningDataModule | None = None,
        lr_min: float = 1e-6,
        lr_max: float = 1.0,
        num_steps: int = 100,
    ) -> LRRange:
        """Find the range of learning rates that train well, without applying one.

        Args:
            model: To train; it is not the same afterwards.
            datamodule: Its training examples are used.
            lr_min: Learning rate of the first optimiser step.
            lr_max: Learning rate of the last optimiser step, if the loss does not diverge before.
            num_steps: Optimiser steps, between which the learning rate grows by one factor.
        """
        sweep = LRSweep(lr_min, lr_max, num_steps)
        self.callbacks.append(sweep)  # type: ignore[attr-defined]
        self.fit_loop.epoch_loop.max_steps = num_steps
        self.fit(model, datamodule=datamodule)
        return LRRange.of(sweep)

    def check(
        self,
        model: L.LightningModule,
        datamodule: L.LightningDataModule | None = None,
        trained: bool = False,
    ) -> list[Verdict]:
        """Find out in seconds whether a run can work, and if not, why; nothing is trained.

        Args:
            model: To look at; it stays as it is.
            datamodule: Its training and validation examples are used.
            trained: Whether the model has weights of another run, whose loss is not near ln C.
        """
        preflight = Preflight(trained)
        self.callbacks.append(preflight)  # type: ignore[attr-defined]
        self.fit(model, datamodule=datamodule)
        return preflight.verdicts
