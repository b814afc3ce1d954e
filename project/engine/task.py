"""The base class of all networks: the training steps, and the metrics of each epoch."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from .batch_size import batch_size_of
from .classification import CrossEntropy
from .full_precision import to_float32
from .internals import is_accumulating
from .loggers import is_logged
from .metrics import MetricFactory, StageMetrics, make_metrics
from .objective import Metrics, Objective
from .optimized import Optimized
from .protocols import class_names_of

Stage = Literal["train", "val", "test"]


class Task(Optimized, ABC):
    """A network and how it is trained. A concrete class defines `__init__` and `forward`.

    Args:
        objective: Objective that the network is trained for: its loss, metrics and predictions. The
            default is cross-entropy, for one class per example.
        metrics: Further metrics, by name: classes of torchmetrics, which are given the number of
            classes, or instances. Each is computed for training, validation and test.
        kwargs: Options of the optimiser and the schedule.
    """

    num_classes: int | None = None  # number of outputs; a network sets it if it has several
    default_objective: ClassVar[type[Objective]] = CrossEntropy
    train_metrics: StageMetrics
    val_metrics: StageMetrics
    test_metrics: StageMetrics

    def __init__(
        self,
        objective: Objective | None = None,
        metrics: dict[str, MetricFactory] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters(
            ignore=["objective", "metrics", "optimizer", "lr_scheduler"], logger=False
        )
        self.objective = objective or self.default_objective()
        self.more_metrics = metrics or {}
        self.written: dict[str, float] = {}  # the newest training metrics, for the progress bar

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `forward` does, in float32 if it is narrower: losses and metrics need it."""
        return to_float32(super().__call__(*args, **kwargs))

    @abstractmethod
    def forward(self, inputs: Any) -> Any:
        """Return the outputs of a batch of inputs."""

    def setup(self, stage: str) -> None:
        """Make the metrics. A network that overrides it calls `super().setup(stage)`."""
        if not self._is_set_up:
            made = [StageMetrics(self.make_metrics()) for _ in range(3)]
            self.train_metrics, self.val_metrics, self.test_metrics = made

    @property
    def _is_set_up(self) -> bool:
        return "train_metrics" in dict(self.named_children())

    def make_metrics(self) -> Metrics:
        """Return new metrics for one stage, besides the loss."""
        own = self.objective.metrics(self.num_classes)
        return {**own, **make_metrics(self.more_metrics, self.num_classes)}

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        inputs, targets = batch
        outputs = self(inputs)
        loss = self.objective.loss(outputs, targets)
        size = batch_size_of(targets) or 0
        self.train_metrics.loss.update(loss.detach() * size, size)
        self._add(self.train_metrics, outputs, targets)
        if is_logged(self.trainer) and not is_accumulating(self.trainer):
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
        computed = metrics.compute(class_names_of(data))
        values = {f"{stage}/{name}": value for name, value in computed.items()}
        if stage == "train":
            self.log_dict(values, logger=False)
            self._write(values, self.global_step - 1)
            return
        of_classes = {name for name in values if name.count("/") > 1}  # too many to show in a bar
        self.log_dict({k: v for k, v in values.items() if k not in of_classes}, prog_bar=True)
        self.log_dict({k: v for k, v in values.items() if k in of_classes})

    def _write(self, values: dict[str, Tensor], step: int) -> None:
        # The row is written before the checkpoint of this step is saved. `self.log` would write it
        # afterwards, and a run that resumes from the checkpoint would lack it. Writing it here also
        # takes 0.5 ms less.
        self.written = {name: value.item() for name, value in values.items()}
        for logger in self.loggers:
            logger.log_metrics(self.written | {"epoch": self.current_epoch}, step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["train_metrics"] = {"ranks": self.train_metrics.states()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        states = checkpoint.get("train_metrics", {}).get("ranks")
        if states and self._is_set_up:  # without a trainer, there are no metrics to restore
            self.train_metrics.load_states(states, self.global_rank, self.device)
