"""The commands that train or measure."""

import sys
from typing import Any

import lightning as L
from lightning.pytorch.loops.loop import _Loop

from ..engine.endings import ended_by
from ..preflight.check import Verdict
from ..preflight.controls import Preflight
from .lr_range import LRRange, LRSweep


class Trainer(L.Trainer):
    """Lightning's trainer, with a method for each further command: its arguments are options."""

    stop_asked_by: str | None = None  # class, or else function, that first set `should_stop`

    @property
    def should_stop(self) -> bool:
        return self.stop_asked_by is not None

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if not value:
            self.stop_asked_by = None
        elif self.stop_asked_by is None:
            # Lightning's attribute can be set from anywhere; who did it is written down nowhere.
            frame = sys._getframe(1)
            owner = frame.f_locals.get("self")
            name = frame.f_code.co_qualname if owner is None else type(owner).__name__
            self.stop_asked_by = name

    def _run_stage(self) -> Any:
        # Lightning has just put its handlers of signals over ours. They end with exit code 0, and
        # talk to other processes from within the handler.
        self._signal_connector.teardown()
        loop = self.fit_loop
        epochs: Any = loop.epoch_progress.current
        if loop.is_resuming and epochs.ready == epochs.started == epochs.processed:
            # Saved after an epoch. With max_steps, Lightning would end that epoch once more.
            _Loop.restarting.fset(loop, False)  # type: ignore[attr-defined]
        nothing_left = loop.is_resuming and ended_by(self) is not None
        result = super()._run_stage()
        if nothing_left and self.training:
            # The run was stopped after its last step, and Lightning skips what follows it.
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
        """Find a range of learning rates to begin with, without applying one.

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
