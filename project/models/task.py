"""What all tasks share: the steps, metrics of each epoch, optimiser and schedule."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeAlias

import lightning as L
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import LRSchedulerConfigType, OptimizerLRScheduler
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torchmetrics import Metric

from project.loggers import is_logged
from project.run import monitor_mode

OptimizerCallable: TypeAlias = Callable[[Iterable[Any]], Optimizer]
LRSchedulerCallable: TypeAlias = Callable[[Optimizer], LRScheduler]
Stage = Literal["train", "val", "test"]

PER_STEP = (OneCycleLR, CyclicLR)  # schedules that count optimiser steps; the others count epochs


class Task(L.LightningModule, ABC):
    """A model with its loss and its metrics. A concrete class defines `forward` and `measure`.

    Args:
        optimizer: Optimiser, any class of `torch.optim`; `lr` is the learning rate's peak.
        lr_scheduler: Schedule, any class of `torch.optim.lr_scheduler`; constant by default.
            OneCycleLR and CyclicLR count optimiser steps, the others epochs. A length left out
            (`total_steps`, `T_max`) is that of the run, and `max_lr` is the optimiser's `lr`.
        warmup_steps: Optimiser steps in which the learning rate rises linearly from a hundredth.
        reference_batch_size: Batch size that the optimiser's `lr` was chosen for. Where a step has
            k times as many examples, accumulated ones included, it trains with k times the `lr`
            (arXiv:1706.02677, which warms up over 5 epochs); by default `lr` is taken as it is.
        monitor: Metric that ReduceLROnPlateau follows, such as val/loss or val/acc.
    """

    metric: ClassVar[type[Metric]]  # computes the loss, or a dict of the loss and others

    def __init__(
        self,
        optimizer: OptimizerCallable = AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        warmup_steps: int = 0,
        reference_batch_size: int | None = None,
        monitor: str = "val/loss",
    ) -> None:
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps {warmup_steps} can't be negative")
        if reference_batch_size is not None and reference_batch_size < 1:
            raise ValueError(f"reference_batch_size {reference_batch_size} must be positive")
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"], logger=False)
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.warmup_steps, self.monitor = warmup_steps, monitor
        self.reference_batch_size = reference_batch_size
        self.lr_factor: float | None = None  # by which the run multiplies the learning rate
        self.written: dict[str, float] = {}  # the newest training metrics, for the progress bar
        self.train_metrics, self.val_metrics, self.test_metrics = (self.metric() for _ in range(3))

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning names the hook that runs, 48 times a step, and for each of them torch would look
        # whether the name is a parameter, a module or a buffer: a 25th of an MLP's step.
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    @abstractmethod
    def measure(self, metrics: Metric, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, whose examples are added to the metrics."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.measure(self.train_metrics, *batch)
        if is_logged(self.trainer) and not self.trainer.fit_loop._should_accumulate():
            self._write({"train/loss_step": loss}, self.global_step)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.measure(self.val_metrics, *batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.measure(self.test_metrics, *batch)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def on_train_epoch_start(self) -> None:
        self.train_metrics.reset()

    def on_validation_epoch_start(self) -> None:
        self.val_metrics.reset()

    def on_test_epoch_start(self) -> None:
        self.test_metrics.reset()

    def on_train_epoch_end(self) -> None:
        self._report("train", self.train_metrics)

    def on_validation_epoch_end(self) -> None:
        self._report("val", self.val_metrics)

    def on_test_epoch_end(self) -> None:
        self._report("test", self.test_metrics)

    def _report(self, stage: Stage, metrics: Metric) -> None:
        computed = metrics.compute()
        named = computed if isinstance(computed, dict) else {"loss": computed}
        values = {f"{stage}/{name}": value for name, value in named.items()}
        if stage == "train":
            self.log_dict(values, logger=False)
            self._write(values, self.global_step - 1)
        else:
            self.log_dict(values, prog_bar=True)
        if self.monitor in values and self.trainer.state.fn == "fit":
            self._step_plateau(values[self.monitor])

    def _write(self, values: dict[str, Tensor], step: int) -> None:
        # Now, before this moment's checkpoint is saved: `self.log` writes after it, and a run that
        # resumes from it would lack the row. It also costs 0.5 ms less.
        self.written = {name: value.item() for name, value in values.items()}
        for logger in self.loggers:
            logger.log_metrics(self.written | {"epoch": self.current_epoch}, step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        with self.train_metrics.sync_context():  # of all ranks, since rank 0 writes the file
            checkpoint["train_metrics"] = self.train_metrics.metric_state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # As if updated, since torchmetrics takes a metric without any examples for a mistake.
        self.train_metrics._update_count = 1
        if self.global_rank == 0:
            self.train_metrics.merge_state(checkpoint["train_metrics"])

    def _step_plateau(self, value: Tensor) -> None:
        # Here, where the value is new: Lightning steps a plateau schedule after the checkpoint of
        # the epoch is saved, and a run that resumes from it would lose the step.
        schedulers = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            if isinstance(scheduler, ReduceLROnPlateau) and not self.trainer.sanity_checking:
                scheduler.step(value)

    def lr_scheduler_step(self, scheduler: LRScheduler, metric: Any | None) -> None:
        if not isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step()

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
        schedule = self._schedule(optimizer)
        main: LRSchedulerConfigType = {
            "scheduler": schedule,
            "interval": "step" if isinstance(schedule, PER_STEP) else "epoch",
            "monitor": self.monitor,
            "name": "lr",
        }
        if not self.warmup_steps:
            return {"optimizer": optimizer, "lr_scheduler": main}
        if isinstance(schedule, PER_STEP):
            raise ValueError(
                f"{type(schedule).__name__} sets the learning rate of every step and warms up by "
                "itself (pct_start): set --model.warmup_steps 0"
            )
        # Made after the schedule, since it scales the learning rate that it finds.
        warmup = LinearLR(optimizer, start_factor=0.01, total_iters=self.warmup_steps)
        rising: LRSchedulerConfigType = {"scheduler": warmup, "interval": "step", "name": "warmup"}
        return [optimizer], [main, rising]  # type: ignore[return-value]

    def _scale_lr(self, optimizer: Optimizer) -> None:
        """The linear scaling rule, before the schedule and the warm-up, which start from its lr."""
        if self.reference_batch_size is None:
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if batch_size := getattr(data, "batch_size", None):
            size = batch_size * self.trainer.accumulate_grad_batches
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

    def _schedule(self, optimizer: Optimizer) -> LRScheduler:
        """The schedule, with the arguments that follow from the run where they were left out."""
        factory = self.lr_scheduler
        if factory is None:
            return ConstantLR(optimizer, factor=1.0)
        # The class itself, a partial of it, or jsonargparse's partial with it as first argument.
        parts = (factory, getattr(factory, "func", None), *getattr(factory, "args", ()))
        kind = next((part for part in parts if isinstance(part, type)), LRScheduler)
        given = {k: v for k, v in getattr(factory, "keywords", {}).items() if v is not None}
        derived: dict[str, Any] = {}
        if issubclass(kind, OneCycleLR):
            derived["max_lr"] = [group["lr"] for group in optimizer.param_groups]
            if "total_steps" not in given and "epochs" not in given:
                derived["total_steps"] = self._run_length(self.trainer.estimated_stepping_batches)
        elif issubclass(kind, CosineAnnealingLR) and "T_max" not in given:
            derived["T_max"] = self._run_length(self.trainer.max_epochs)
        elif issubclass(kind, ReduceLROnPlateau):
            derived["mode"] = monitor_mode(self.monitor)
        return factory(optimizer, **{**derived, **given})

    @staticmethod
    def _run_length(length: float | None) -> int:
        if length is None or not 0 < length < math.inf:
            raise ValueError(
                "the schedule lasts as long as the run, which has no end: set "
                "--trainer.max_epochs, or the schedule's own length (total_steps, T_max)"
            )
        return int(length)
