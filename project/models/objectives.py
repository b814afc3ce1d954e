"""Objectives that a network can be trained for, besides cross-entropy.

To add one, write a class here that defines `losses`, and select it by its name:
`--model.objective FocalLoss --model.objective.gamma 2`.

Legend: N examples, K classes or labels, H height, W width.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import MeanAbsoluteError
from torchmetrics.classification import MulticlassJaccardIndex, MultilabelF1Score

from project.engine.classification import (
    Classification,
    CrossEntropy,
    untrained_cross_entropy,
    weights_of,
)
from project.engine.objective import Metrics, Objective, UntrainedLoss
from project.engine.targets import are_classes, kind

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "FocalLoss", "Huber", "PixelCrossEntropy"]
__all__ += ["SquaredError"]


class FocalLoss(Classification):
    """Cross-entropy in which well-classified examples count less (arXiv:1708.02002).

    Args:
        gamma: Exponent of the factor (1 - p)^gamma on the loss of an example whose true class has
            probability p; 0 gives cross-entropy.
        class_weights: Factor on the training loss of each class.
    """

    def __init__(self, gamma: float = 2.0, class_weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if not 0 <= gamma < math.inf:
            raise ValueError(f"gamma {gamma} must be finite and not negative")
        self.gamma = gamma
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", weights_of(class_weights), persistent=False)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs, targets, reduction="none")
        losses = self._focused(losses)
        if self.class_weights is None or not self.training:
            return losses
        return losses * self.class_weights[targets]

    def _focused(self, losses: Tensor) -> Tensor:
        return losses * (-torch.expm1(-losses)) ** self.gamma  # 1 - p, exact near p = 1

    def untrained_loss(self, targets: Tensor, num_classes: int | None) -> UntrainedLoss | None:
        if not are_classes(targets) or self.class_weights is not None:
            return None
        plain = untrained_cross_entropy(targets, num_classes or int(targets.max()) + 1)
        return UntrainedLoss(*self._focused(torch.tensor(plain)).tolist())


class BinaryCrossEntropy(Objective):
    """Several labels per example, each present or absent; the loss is the mean over the labels.

    Outputs are logits, float (N, K); targets are 0 or 1, (N, K).

    Args:
        pos_weight: Factor on the training loss of each label in the examples that have it.
    """

    def __init__(self, pos_weight: Sequence[float] | None = None) -> None:
        super().__init__()
        self.pos_weight: Tensor | None
        self.register_buffer("pos_weight", weights_of(pos_weight), persistent=False)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape:
            raise ValueError(
                "BinaryCrossEntropy needs a 0 or a 1 for each output, and the outputs are "
                f"{kind(outputs)}, the targets {kind(targets)}"
            )
        weight = self.pos_weight if self.training else None
        losses = F.binary_cross_entropy_with_logits(
            outputs, targets.to(outputs), reduction="none", pos_weight=weight
        )
        return losses.flatten(1).mean(1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label, float (N, K)."""
        return outputs.sigmoid()

    def captions(self, outputs: Tensor, targets: Tensor, class_names: Sequence[str]) -> list[str]:
        def named(present: Tensor) -> str:
            return ", ".join(class_names[k] for k in present.nonzero().flatten()) or "none"

        pairs = zip(outputs > 0, targets.bool(), strict=True)
        return [named(p) + ("" if p.equal(t) else f"\ntrue: {named(t)}") for p, t in pairs]

    def metrics(self, num_classes: int | None) -> Metrics:
        return {"f1": MultilabelF1Score(num_classes)} if num_classes else {}  # mean over the labels

    def labels(self, targets: Tensor) -> Tensor:
        return targets.long()

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether all labels of each example are right."""
        return ((outputs > 0) == targets.bool()).all(1)

    def untrained_loss(self, targets: Tensor, num_classes: int | None) -> UntrainedLoss | None:
        if self.pos_weight is not None:
            return None
        expected = math.log(2)
        return UntrainedLoss(expected, expected / 4, 2 * expected)


class Regression(Objective):
    """One or several numbers per example: outputs and targets are (N,), (N, 1) or (N, K).

    Subclasses define `errors`.
    """

    @abstractmethod
    def errors(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each number, with the same shape as `values`."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values, targets = self.predictions(outputs), self.labels(targets)
        if values.shape != targets.shape:
            raise ValueError(
                f"{type(self).__name__} needs a target for each output, and the outputs are "
                f"{kind(outputs)}, the targets {kind(targets)}"
            )
        return self.errors(values, targets.to(values)).view(len(values), -1).mean(1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the values, float (N,) if there is one per example, otherwise (N, K)."""
        return outputs.squeeze(1) if outputs.ndim == 2 else outputs

    def labels(self, targets: Tensor) -> Tensor:
        return targets.squeeze(1) if targets.ndim == 2 else targets

    def captions(self, outputs: Tensor, targets: Tensor, class_names: Sequence[str]) -> list[str]:
        def written(values: Tensor) -> str:
            return ", ".join(f"{value:.3g}" for value in values.flatten().tolist())

        pairs = zip(self.predictions(outputs), self.labels(targets), strict=True)
        return [f"{written(value)}\ntrue: {written(target)}" for value, target in pairs]

    def metrics(self, num_classes: int | None) -> Metrics:
        return {"mae": MeanAbsoluteError()}


class SquaredError(Regression):
    """Mean squared error."""

    def errors(self, values: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(values, targets, reduction="none")


class Huber(Regression):
    """Huber loss: squared error near the target, absolute error far from it.

    Args:
        delta: Distance from the target at which the squared error becomes the absolute error, in
            the unit of the targets.
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        if not 0 < delta < math.inf:
            raise ValueError(f"delta {delta} must be positive and finite")
        self.delta = delta

    def errors(self, values: Tensor, targets: Tensor) -> Tensor:
        return F.huber_loss(values, targets, reduction="none", delta=self.delta)


class PixelCrossEntropy(Objective):
    """One class per pixel; the loss is the mean cross-entropy over the pixels of each image.

    Outputs are logits, float (N, K, H, W); targets are classes, int64 (N, H, W).

    Args:
        ignore_index: Target of pixels that are left out.
    """

    def __init__(self, ignore_index: int = 255) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(
            outputs, targets, ignore_index=self.ignore_index, reduction="none"
        )  # (N, H, W), 0 where a pixel is left out
        counted = (targets != self.ignore_index).flatten(1).sum(1)
        return losses.flatten(1).sum(1) / counted.clamp(min=1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the class of each pixel, int64 (N, H, W)."""
        return outputs.argmax(1)

    def metrics(self, num_classes: int | None) -> Metrics:
        if num_classes is None:
            return {}
        make = partial(MulticlassJaccardIndex, num_classes, ignore_index=self.ignore_index)
        return {"miou": make(), "iou": make(average="none")}

    def untrained_loss(self, targets: Tensor, num_classes: int | None) -> UntrainedLoss | None:
        labels = targets[targets != self.ignore_index]
        if num_classes is None or len(labels) == 0:
            return None
        return untrained_cross_entropy(labels, num_classes)
