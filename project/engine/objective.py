"""The base class of objectives: the loss of each example, and the meaning of the outputs.

Legend: N examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

Metrics: TypeAlias = Mapping[str, Metric | MetricCollection]


class UntrainedLoss(NamedTuple):
    """The loss to expect of an untrained network, and the range that is healthy."""

    expected: float
    low: float
    high: float


class Objective(nn.Module, ABC):
    """An objective that a network is trained for. Only `losses` must be defined by a subclass.

    An objective is a module, so that it can tell training from evaluation by `self.training`, and
    so that its buffers move with the network. It has no weights.
    """

    @abstractmethod
    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each example, float (N,), from a batch of outputs and targets."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the mean of `losses`, a scalar. Override it if torch has a faster way."""
        return self.losses(outputs, targets).mean()

    def predictions(self, outputs: Any) -> Any:
        """Return the form of the outputs that users and metrics read: probabilities, values, masks.

        The default returns the outputs unchanged.
        """
        return outputs

    def labels(self, targets: Any) -> Any:
        """Return the form of the targets that metrics compare predictions with."""
        return targets

    def metrics(self, num_classes: int | None) -> Metrics:
        """Make the metrics besides the loss, which are updated with `predictions` and `labels`.

        Args:
            num_classes: Number of the network's outputs; None if it does not say.
        """
        return {}

    def correct(self, outputs: Any, targets: Any) -> Tensor | None:
        """Return whether each prediction is right, bool (N,); None if that is not defined."""
        return None

    def captions(self, outputs: Any, targets: Any, class_names: Sequence[str]) -> list[str]:
        """Return a short caption of the prediction for each example, for pictures."""
        return [""] * len(self.losses(outputs, targets))

    def untrained_loss(self, targets: Any, num_classes: int | None) -> UntrainedLoss | None:
        """Return the training loss to expect of an untrained network; None if it is unknown.

        Args:
            targets: Targets of a batch.
            num_classes: Number of the network's outputs; None if it does not say.
        """
        return None

    def lowest_loss(self, num_classes: int | None) -> float:
        """Return the lowest training loss that outputs can reach."""
        return 0.0
