"""The optimiser and the schedule of a network."""

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
    """A module with an optimiser and a schedule, chosen apart from each other.

    Args:
        optimizer: Optimiser, any class of `torch.optim`; `lr` is the learning rate's peak.
        lr_scheduler: Schedule, any class of `torch.optim.lr_scheduler`; constant by default.
            A length left out (`total_steps`, `T_max`) is that of the run, by `max_epochs` and
            `max_steps`, and `max_lr` is the optimiser's `lr`.
        interval: What the schedule counts, optimiser steps or epochs; by default steps for
            OneCycleLR and CyclicLR, and epochs for the others.
        warmup_steps: Optimiser steps in which the learning rate rises linearly from a hundredth of
            what the schedule says to all of it.
        reference_batch_size: Batch size that the optimiser's `lr` was chosen for. If a step has k
            times as many examples, accumulated ones included, it trains with k times the `lr`
            (arXiv:1706.02677, which warms up over 5 epochs); by default `lr` is taken as it is.
        monitor: Metric that ReduceLROnPlateau follows, such as val/loss, val/acc or what a
            validation step logs.
        monitor_mode: Whether lower or higher values of it are better, if its name (loss or acc)
            and torchmetrics do not tell.
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
        self.lr_factor: float | None = None  # by which the run multiplies the learning rate

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
        """Step ReduceLROnPlateau, if that is the schedule, by the newest value of the monitor.

        Raises:
            ValueError: If the monitored metric is not there.
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
                # That of rank 0, since each rank has its own unless it was logged with sync_dist.
                value = self.trainer.strategy.broadcast(known[self.monitor].item())
                advance(schedule, schedules, value)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        if not isinstance(scheduler, ReduceLROnPlateau):  # which has its own time
            advance(scheduler, [c.scheduler for c in self.trainer.lr_scheduler_configs])

    def trained(self) -> list[Any]:
        """The parameters, or groups of them with an `lr_factor` of the optimiser's `lr` each."""
        return [p for p in self.parameters() if p.requires_grad]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.optimizer(self.trained())
        for group in optimizer.param_groups:
            factor = group.get("lr_factor", 1.0)
            group["lr"] *= factor
            if "weight_decay" in group:
                group["weight_decay"] /= factor  # so that all weights decay alike
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
        """Apply the linear scaling rule: the schedule and the warm-up start from its result."""
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
        elif self.lr_factor is None:  # set in the copies that a check trains
            raise ValueError(
                f"reference_batch_size {self.reference_batch_size} is compared with the batch_size "
                "of a data module, and there is none: leave it out, and set lr itself"
            )
        for group in optimizer.param_groups:
            group["lr"] *= self.lr_factor
