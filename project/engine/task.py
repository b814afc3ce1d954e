"""What all networks share: the steps, the metrics of each epoch, optimiser and schedule."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeAlias

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..runs.direction import Mode
from .batch_size import batch_size_of
from .datamodule import StreamDataModule
from .factories import class_of
from .full_precision import to_float32
from .loggers import is_logged
from .metrics import MetricFactory, StageMetrics, make_metrics
from .monitored import monitor_mode
from .objective import CrossEntropy, Metrics, Objective
from .plateau import PlateauStepper
from .protocols import HasClasses
from .schedule import (
    Interval,
    LRSchedulerCallable,
    advance,
    build,
)

OptimizerCallable: TypeAlias = Callable[[Iterable[Any]], Optimizer]
Stage = Literal["train", "val", "test"]


class Task(L.LightningModule, ABC):
    """A network and how it is trained. A concrete class defines `__init__` and `forward`.

    Args:
        objective: What the network is trained for: its loss, metrics and predictions; by default
            cross-entropy, for one class for each example.
        metrics: Further metrics by their names: torchmetrics' classes, which are given the number
            of classes, or metrics. Each is computed for training, validation and test.
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

    num_classes: int | None = None  # outputs of the network, which sets it if there are several
    default_objective: ClassVar[type[Objective]] = CrossEntropy
    train_metrics: StageMetrics
    val_metrics: StageMetrics
    test_metrics: StageMetrics

    def __init__(
        self,
        objective: Objective | None = None,
        metrics: dict[str, MetricFactory] | None = None,
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
        self.save_hyperparameters(
            ignore=["objective", "metrics", "optimizer", "lr_scheduler"], logger=False
        )
        self.objective = objective or self.default_objective()
        self.more_metrics = metrics or {}
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.warmup_steps, self.interval = warmup_steps, interval
        self.monitor, self.monitor_mode = monitor, monitor_mode
        self.reference_batch_size = reference_batch_size
        self.lr_factor: float | None = None  # by which the run multiplies the learning rate
        self.written: dict[str, float] = {}  # the newest training metrics, for the progress bar

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning names the hook that runs, 48 times a step, and for each of them torch would look
        # whether the name is a parameter, a module or a buffer: a 25th of an MLP's step.
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `forward` does, in float32 if it is narrower: losses and metrics need it."""
        return to_float32(super().__call__(*args, **kwargs))

    @abstractmethod
    def forward(self, inputs: Any) -> Any:
        """Return the outputs of a batch of inputs."""

    def setup(self, stage: str) -> None:
        """Make the metrics. A network that overrides it calls `super().setup(stage)`."""
        if not hasattr(self, "train_metrics"):
            made = [StageMetrics(self.make_metrics()) for _ in range(3)]
            self.train_metrics, self.val_metrics, self.test_metrics = made

    def make_metrics(self) -> Metrics:
        """Return new metrics beside the loss, for one stage."""
        own = self.objective.metrics(self.num_classes)
        return {**own, **make_metrics(self.more_metrics, self.num_classes)}

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        inputs, targets = batch
        outputs = self(inputs)
        loss = self.objective.loss(outputs, targets)
        size = batch_size_of(targets) or 0
        self.train_metrics.loss.update(loss.detach() * size, size)
        self._add(self.train_metrics, outputs, targets)
        if is_logged(self.trainer) and not self.trainer.fit_loop._should_accumulate():
            self._write({"train/loss_step": loss}, self.global_step)
        return loss

    def validation_step(self, batch: tuple[Any, Any], batch_idx: int) -> None:
        self._evaluate(self.val_metrics, batch)

    def test_step(self, batch: tuple[Any, Any], batch_idx: int) -> None:
        self._evaluate(self.test_metrics, batch)

    def _evaluate(self, metrics: StageMetrics, batch: tuple[Any, Any]) -> None:
        inputs, targets = batch
        outputs = self(inputs)
        losses = self.objective.losses(outputs, targets)
        metrics.loss.update(losses, len(losses))
        self._add(metrics, outputs, targets)

    @torch.no_grad()
    def _add(self, metrics: StageMetrics, outputs: Any, targets: Any) -> None:
        if metrics.names:
            metrics.update(self.objective.predictions(outputs), self.objective.labels(targets))

    def predict_step(self, batch: tuple[Any, Any], batch_idx: int) -> Any:
        return self.objective.predictions(self(batch[0]))

    def on_train_epoch_start(self) -> None:
        self.train_metrics.reset()

    def on_validation_epoch_start(self) -> None:
        self.val_metrics.reset()

    def on_test_epoch_start(self) -> None:
        self.test_metrics.reset()

    def on_train_epoch_end(self) -> None:
        self._report("train", self.train_metrics)
        if self.monitor.startswith("train/"):
            self.step_plateau()

    def on_validation_epoch_end(self) -> None:
        self._report("val", self.val_metrics)

    def on_test_epoch_end(self) -> None:
        self._report("test", self.test_metrics)

    def _report(self, stage: Stage, metrics: StageMetrics) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        names = data.class_names if isinstance(data, HasClasses) else None
        values = {f"{stage}/{name}": value for name, value in metrics.compute(names).items()}
        if stage == "train":
            self.log_dict(values, logger=False)
            self._write(values, self.global_step - 1)
            return
        of_classes = {name for name in values if name.count("/") > 1}  # too many for a bar
        self.log_dict({k: v for k, v in values.items() if k not in of_classes}, prog_bar=True)
        self.log_dict({k: v for k, v in values.items() if k in of_classes})

    def _write(self, values: dict[str, Tensor], step: int) -> None:
        # Now, before this moment's checkpoint is saved: `self.log` writes after it, and a run that
        # resumes from it would lack the row. It also costs 0.5 ms less.
        self.written = {name: value.item() for name, value in values.items()}
        for logger in self.loggers:
            logger.log_metrics(self.written | {"epoch": self.current_epoch}, step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["train_metrics"] = {"ranks": self.train_metrics.states()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if states := checkpoint.get("train_metrics", {}).get("ranks"):
            self.train_metrics.load_states(states, self.global_rank, self.device)

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
            self._run_length,
            interval=self.interval,
            warmup_steps=self.warmup_steps,
            mode=lambda: monitor_mode(self.monitor, self.monitor_mode, self),
        )
        return [optimizer], schedules  # type: ignore[return-value]

    def _scale_lr(self, optimizer: Optimizer) -> None:
        """The linear scaling rule, before the schedule and the warm-up, which start from its lr."""
        if self.reference_batch_size is None:
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if batch_size := getattr(data, "batch_size", None):
            size = self._examples_per_step(data, batch_size)
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

    def _examples_per_step(self, data: Any, batch_size: int) -> int:
        """Those of an optimiser step; of the largest, if the last of an epoch has fewer."""
        trainer = self.trainer
        if any(isinstance(c, GradientAccumulationScheduler) for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise ValueError(
                "reference_batch_size needs steps of one size, and GradientAccumulationScheduler "
                "changes it: leave one of them out"
            )
        trainer.fit_loop.setup_data()
        batches = trainer.num_training_batches
        if batches < trainer.accumulate_grad_batches:
            # Lightning steps at the end of an epoch all the same, but would divide the gradients by
            # the number of batches that never come.
            rank_zero_info(f"An epoch has {batches:g} batches: no more of them are accumulated.")
            trainer.accumulate_grad_batches = int(batches)
        size = batch_size * trainer.accumulate_grad_batches
        if isinstance(data, StreamDataModule):
            size = min(size, len(data.sets["train"][2]))
        return size

    def _run_length(self, interval: Interval) -> float:
        """The optimiser steps or epochs after which `max_epochs` or `max_steps` ends the run."""
        trainer = self.trainer
        limit = trainer.max_epochs
        epochs = math.inf if limit is None or limit < 0 else max(limit, 1)
        if interval == "epoch" and trainer.max_steps < 0:
            return epochs
        trainer.fit_loop.setup_data()
        steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
        steps = steps if steps >= 0 else math.inf  # Lightning's -1
        if interval == "step" or math.isinf(batches):
            return steps if interval == "step" else epochs
        per_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        return min(epochs, math.ceil(steps / per_epoch))
