"""The commands that train or measure."""

import lightning as L

from project.callbacks.checks import Verdict
from project.callbacks.controls import Preflight
from project.reports.lr_range import LRRange, LRSweep


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
