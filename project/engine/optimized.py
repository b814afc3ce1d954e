"""The base class that gives a network its optimiser and its learning-rate schedule."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..runs.direction import Mode
from .factories import class_of
from .monitored import monitor_mode
from .plateau import PlateauStepper
from .protocols import HasBatchSize
from .run_length import examples_per_step, run_length
from .schedule import Interval, LRSchedulerCallable, advance, build

OptimizerCallable: TypeAlias = Callable[[Iterable[Any]], Optimizer]


class Optimized(L.LightningModule):
    """A module with an optimiser and a schedule, which are chosen independently.

    Args:
        optimizer: Optimiser, any class of `torch.optim`. Its `lr` is the peak learning rate.
        lr_scheduler: Schedule, any class of `torch.optim.lr_scheduler`; by default the learning
            rate is constant. If its length (`total_steps`, `T_max`) is left out, it is the length
            of the run, by `max_epochs` and `max_steps`; `max_lr` defaults to the optimiser's `lr`.
        interval: Unit that the schedule counts, optimiser steps or epochs; by default steps for
            OneCycleLR and CyclicLR, and epochs for the others.
        warmup_steps: Number of optimiser steps over which the learning rate rises linearly from a
            hundredth of the schedule's value to its full value.
        reference_batch_size: Batch size, in examples, that the optimiser's `lr` was chosen for. If
            a step has k times as many examples, including accumulated ones, it trains with k times
            the `lr` (arXiv:1706.02677, which warms up over 5 epochs). By default, `lr` is used as
            it is.
        monitor: Metric that ReduceLROnPlateau follows, such as val/loss, val/acc or another one
            that the validation step logs.
        monitor_mode: Mode of that metric, `min` if lower values are better or `max` if higher ones
            are; needed only if neither its name (loss or acc) nor torchmetrics tells.
    """

    def __init__(
        self,
        optimizer: OptimizerCallable = AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        warmup_steps: int = 0,
        reference_batch_size: int | None = None,
        monitor: str = "val/loss",
        interval: Interval | None = None,
        monitor_mode: Mode | None = None,
    ) -> None:
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps {warmup_steps} can't be negative")
        if reference_batch_size is not None and reference_batch_size < 1:
            raise ValueError(f"reference_batch_size {reference_batch_size} must be positive")
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.warmup_steps, self.interval = warmup_steps, interval
        self.monitor, self.monitor_mode = monitor, monitor_mode
        self.reference_batch_size = reference_batch_size
        self.lr_factor: float | None = None  # factor of the run on the learning rate

    def configure_callbacks(self) -> list[Callback]:
        kind = class_of(self.lr_scheduler) if self.lr_scheduler else LRScheduler
        if self.monitor.startswith("train/"):
            return []
        if kind is not None and not issubclass(kind, ReduceLROnPlateau):
            return []
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        known = [c.step for c in callbacks if isinstance(c, PlateauStepper)]
        return [] if self.step_plateau in known else [PlateauStepper(self.step_plateau)]

    def step_plateau(self) -> None:
        """Step the schedule by the newest value of the monitor, if it is ReduceLROnPlateau.

        Raises:
            ValueError: If the monitored metric was not logged.
        """
        schedules = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        for schedule in schedules:
            if isinstance(schedule, ReduceLROnPlateau):
                known = self.trainer.callback_metrics
                if self.monitor not in known:
                    raise ValueError(
                        f"ReduceLROnPlateau follows {self.monitor}, which nothing has logged; "
                        f"there are {', '.join(known)}"
                    )
                # All ranks use the value of rank 0, since each has its own value unless the metric
                # was logged with sync_dist.
                value = self.trainer.strategy.broadcast(known[self.monitor].item())
                advance(schedule, schedules, value)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        if not isinstance(scheduler, ReduceLROnPlateau):  # `step_plateau` steps that one
            advance(scheduler, [c.scheduler for c in self.trainer.lr_scheduler_configs])

    def trained(self) -> list[Any]:
        """Return the parameters to train, or groups of them.

        Each group may have an `lr_factor`, by which the optimiser's `lr` is multiplied for it.
        """
        return [p for p in self.parameters() if p.requires_grad]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.optimizer(self.trained())
        for group in optimizer.param_groups:
            factor = group.get("lr_factor", 1.0)
            group["lr"] *= factor
            if "weight_decay" in group:
                group["weight_decay"] /= factor  # so that the weights of all groups decay alike
        self._scale_lr(optimizer)
        schedules = build(
            optimizer,
            self.lr_scheduler,
            lambda interval: run_length(self.trainer, interval),
            interval=self.interval,
            warmup_steps=self.warmup_steps,
            mode=lambda: monitor_mode(self.monitor, self.monitor_mode, self),
        )
        return [optimizer], schedules  # type: ignore[return-value]

    def _scale_lr(self, optimizer: Optimizer) -> None:
        """Apply the linear scaling rule, before the schedule and the warm-up are built on it."""
        if self.reference_batch_size is None:
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, HasBatchSize):
            size = examples_per_step(self.trainer, data)
            self.lr_factor = size / self.reference_batch_size
            rank_zero_info(
                f"The learning rate is {self.lr_factor:g} times the optimiser's: {size} examples a "
                f"step, for {self.reference_batch_size}."
            )
        elif self.lr_factor is None:  # the copies that a check trains already have one
            raise ValueError(
                f"reference_batch_size {self.reference_batch_size} is compared with the batch_size "
                "of a data module, and there is none: leave it out, and set lr itself"
            )
        for group in optimizer.param_groups:
            group["lr"] *= self.lr_factor
