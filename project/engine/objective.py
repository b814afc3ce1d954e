"""What a network is trained for: the loss of each example, and what is made of the outputs.

Legend: N examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

Metrics: TypeAlias = Mapping[str, Metric | MetricCollection]


class UntrainedLoss(NamedTuple):
    """The loss to expect of an untrained network, and the range of healthy ones."""

    expected: float
    low: float
    high: float


class Objective(nn.Module, ABC):
    """What a network is trained for. A concrete class defines `losses`; the rest has defaults.

    An objective is a module, so that it can tell training from evaluation by `self.training`, and
    so that its buffers move with the network. It has no weights.
    """

    @abstractmethod
    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each example, float (N,), from a batch of outputs and targets."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the mean of `losses`, a scalar. Override it where torch has a faster way."""
        return self.losses(outputs, targets).mean()

    def predictions(self, outputs: Any) -> Any:
        """Return what users and metrics read: probabilities, values, masks."""
        return outputs

    def labels(self, targets: Any) -> Any:
        """Return what metrics compare predictions with."""
        return targets

    def metrics(self, num_classes: int | None) -> Metrics:
        """Make the metrics beside the loss, which are updated with `predictions` and `labels`.

        Args:
            num_classes: Number of the network's outputs, if it says so.
        """
        return {}

    def correct(self, outputs: Any, targets: Any) -> Tensor | None:
        """Return whether each example is predicted right, bool (N,); None if nothing tells."""
        return None

    def captions(self, outputs: Any, targets: Any, class_names: Sequence[str]) -> list[str]:
        """Return a few words on the prediction for each example, for pictures."""
        return [""] * len(self.losses(outputs, targets))

    def untrained_loss(self, targets: Any, num_classes: int | None) -> UntrainedLoss | None:
        """Return the training loss to expect of an untrained network; None if nothing tells.

        Args:
            targets: Targets of a batch.
            num_classes: Number of the network's outputs, if it says so.
        """
        return None

    def lowest_loss(self, num_classes: int | None) -> float:
        """Return the lowest training loss that outputs can reach."""
        return 0.0
