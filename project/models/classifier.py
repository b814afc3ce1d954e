"""What all classifiers share: cross-entropy and accuracy."""

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from project.engine.task import Task


class LossAndAccuracy(Metric):
    """Mean loss and accuracy over examples, exact over uneven batches and over ranks.

    One metric of three sums: torchmetrics' MeanMetric and MulticlassAccuracy give the same values
    at three times the cost, which shows in the step of a small network.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        # So that the order of the sums, and with it the number of ranks, does not show; MPS has no
        # float64.
        dtype = torch.float32 if torch.backends.mps.is_available() else torch.float64
        self.add_state("loss", torch.zeros((), dtype=dtype), dist_reduce_fx="sum")
        self.add_state("correct", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("examples", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.loss: Tensor
        self.correct: Tensor
        self.examples: Tensor

    def update(self, losses: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: its losses or their sum, its logits (N, num_classes) and its labels (N,)."""
        self.loss += losses.sum(dtype=self.loss.dtype)
        self.correct += (logits.argmax(1) == labels).sum()
        self.examples += len(labels)

    def compute(self) -> dict[str, Tensor]:
        return {
            "loss": self.loss / self.examples,
            "acc": self.correct.to(self.loss) / self.examples,
        }


class Classifier(Task):
    """An image classifier trained by cross-entropy. A concrete class defines `forward`.

    Args:
        num_classes: Number of classes; the command line takes it from the data.
        class_names: Names of the classes, in the order of their labels.
        label_smoothing: Share of the target that is spread over all classes in training,
            arXiv:1512.00567. The losses of validation and test are without it.
        kwargs: As for every task.
    """

    metric = LossAndAccuracy

    def __init__(
        self,
        num_classes: int = 10,
        class_names: list[str] | None = None,
        label_smoothing: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing {label_smoothing} must be from 0 to below 1")
        self.num_classes, self.label_smoothing = num_classes, label_smoothing
        self.class_names = class_names or [str(i) for i in range(num_classes)]

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits, float (N, num_classes), of images, float32 (N, C, H, W)."""

    def measure(self, metrics: Metric, images: Tensor, labels: Tensor) -> Tensor:
        logits = self(images)
        if metrics is self.train_metrics:
            loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
            metrics.update(loss.detach() * len(labels), logits.detach(), labels)
            return loss
        losses = F.cross_entropy(logits, labels, reduction="none")
        metrics.update(losses, logits, labels)
        return losses.mean()

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Probabilities, float32 (N, num_classes)."""
        return self(batch[0]).float().softmax(1)
