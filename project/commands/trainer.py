"""The trainer, whose methods are the commands that train or measure."""

import sys
from collections.abc import Callable
from typing import Any

import lightning as L

from ..engine.endings import ended_by
from ..engine.internals import StageTrainer, end_after, end_epoch_once
from ..preflight.check import Verdict
from ..preflight.checks import Preflight
from .lr_range import LRRange, LRSweep


class Trainer(StageTrainer):
    """Lightning's trainer with a method for each further command; its arguments are options."""

    @property
    def should_stop(self) -> bool:
        return self.stop_asked_by is not None

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if not value:
            self.stop_asked_by = None
        elif self.stop_asked_by is None:
            # Lightning does not record which code sets this attribute.
            frame = sys._getframe(1)
            owner = frame.f_locals.get("self")
            name = frame.f_code.co_qualname if owner is None else type(owner).__name__
            self.stop_asked_by = name

    def run_stage(self, run: Callable[[], Any]) -> Any:
        loop = self.fit_loop
        epochs: Any = loop.epoch_progress.current
        if loop.is_resuming and epochs.ready == epochs.started == epochs.processed:
            end_epoch_once(self)  # the checkpoint was saved after that epoch
        nothing_left = loop.is_resuming and ended_by(self) is not None
        result = run()
        if nothing_left and self.training:
            # The run was stopped after its last step, and Lightning skips what follows that step.
            epochs.completed = epochs.processed
            loop.on_run_start()
            loop.on_run_end()
        return result

    def lr_find(
        self,
        model: L.LightningModule,
        datamodule: L.LightningDataModule | None = None,
        lr_min: float = 1e-6,
        lr_max: float = 1.0,
        num_steps: int = 100,
    ) -> LRRange:
        """Find a range of learning rates to start with, without applying one.

        Args:
            model: Model to train. Its weights are changed.
            datamodule: Data module whose training examples are used.
            lr_min: Learning rate of the first optimiser step.
            lr_max: Learning rate of the last optimiser step, unless the loss diverges earlier.
            num_steps: Number of optimiser steps. Each step multiplies the rate by the same factor.
        """
        sweep = LRSweep(lr_min, lr_max, num_steps)
        self.callbacks.append(sweep)  # type: ignore[attr-defined]
        end_after(self, num_steps)
        self.fit(model, datamodule=datamodule)
        return LRRange.of(sweep)

    def check(
        self,
        model: L.LightningModule,
        datamodule: L.LightningDataModule | None = None,
        trained: bool = False,
    ) -> list[Verdict]:
        """Find out in seconds whether a run can work, and if not, why. Nothing is trained.

        Args:
            model: Model to check. It is not changed.
            datamodule: Data module whose training and validation examples are used.
            trained: Whether the model has the weights of another run, so that its loss is not near
                ln C.
        """
        preflight = Preflight(trained)
        self.callbacks.append(preflight)  # type: ignore[attr-defined]
        self.fit(model, datamodule=datamodule)
        return preflight.verdicts
