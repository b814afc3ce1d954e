"""Objectives with one class per example, and cross-entropy, which is the default.

Legend: N examples, K classes.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from .objective import Metrics, Objective, UntrainedLoss
from .targets import are_classes

# Measured by benchmarks.initial_loss; docs/checks.md explains them.
ABOVE, BELOW = 0.7, 0.3  # most nats that a healthy loss is above ln K, or below the label entropy
SPREAD = 0.55  # standard deviation of one class's logit over seeds, whatever the width
SIGMAS = 4  # number of standard deviations by which a healthy model may deviate


class Accuracy(Metric):
    """Share of the examples whose class has the highest probability.

    It equals torchmetrics' MulticlassAccuracy with `average="micro"` at a third of its cost, which
    shows in the step of a small network.
    """

    full_state_update, higher_is_better = False, True

    def __init__(self) -> None:
        super().__init__()
        self.add_state("correct", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("examples", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.correct: Tensor
        self.examples: Tensor

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Add a batch: probabilities, float (N, K), and labels, int64 (N,)."""
        self.correct += (probabilities.argmax(1) == labels).sum()
        self.examples += len(labels)

    def compute(self) -> Tensor:
        return self.correct.double() / self.examples


class Classification(Objective):
    """One class per example, from logits, float (N, K). Subclasses define `losses`.

    Targets are labels, int64 (N,), or the probabilities of the classes, float (N, K).
    """

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return probabilities, float (N, K)."""
        return outputs.softmax(1)

    def labels(self, targets: Tensor) -> Tensor:
        """Return labels, int64 (N,); from probabilities (N, K), the most probable classes."""
        return targets.argmax(1) if targets.ndim > 1 else targets

    def metrics(self, num_classes: int | None) -> Metrics:
        return {"acc": Accuracy()}

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == self.labels(targets)


class CrossEntropy(Classification):
    """Cross-entropy of the logits with the labels.

    Args:
        label_smoothing: Share of the target that is spread over all classes, from 0 to below 1
            (arXiv:1512.00567). It changes only the training loss.
        class_weights: Factor on the loss of each class. It changes only the training loss, which is
            the plain mean over the examples, so that it is the same for any number of processes;
            torch divides by the sum of the weights instead.
    """

    def __init__(
        self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing {label_smoothing} must be from 0 to below 1")
        self.label_smoothing = label_smoothing
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", weights_of(class_weights), persistent=False)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self.training:
            return F.cross_entropy(outputs, targets, reduction="none")
        return F.cross_entropy(
            outputs,
            targets,
            self.class_weights,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.class_weights is not None and self.training:
            return super().loss(outputs, targets)
        smoothing = self.label_smoothing if self.training else 0.0
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing)

    def untrained_loss(self, targets: Tensor, num_classes: int | None) -> UntrainedLoss | None:
        if not are_classes(targets) or self.class_weights is not None:
            return None
        return untrained_cross_entropy(targets, num_classes or int(targets.max()) + 1)

    def lowest_loss(self, num_classes: int | None) -> float:
        """Return the entropy of the smoothed target, the highest of any weighted class."""
        if not self.label_smoothing or not num_classes:
            return 0.0
        smoothing = self.label_smoothing
        targets = (1 - smoothing) * torch.eye(num_classes, dtype=torch.float64)
        targets += smoothing / num_classes
        if self.class_weights is not None:
            targets *= self.class_weights.cpu()
        shares = targets / targets.sum(1, keepdim=True)
        return -torch.xlogy(targets, shares).sum(1).min().item()


def weights_of(class_weights: Sequence[float] | None) -> Tensor | None:
    """Return the class weights as float32 (K,); None if there are none."""
    if class_weights is None:
        return None
    if min(class_weights, default=-1.0) < 0 or not math.isfinite(sum(class_weights)):
        raise ValueError(f"class_weights {list(class_weights)} must be finite and not negative")
    return torch.tensor(class_weights, dtype=torch.float32)


def label_entropy(labels: Tensor) -> float:
    """Return the entropy of labels, int64 (N,), in nats: the lowest loss of any constant output."""
    share = labels.bincount() / len(labels)
    return -torch.xlogy(share, share).sum().item()


def untrained_cross_entropy(labels: Tensor, num_classes: int) -> UntrainedLoss:
    """Return the cross-entropy to expect of an untrained network: ln K, and the healthy range.

    The logits of an untrained network differ between the classes by chance, in the same way for all
    examples. This makes the loss higher than ln K, and more so the fewer classes there are to
    average over. If the classes differ in size, the loss depends on which of them has the higher
    logit.

    Args:
        labels: Labels of the batch, int64 (N,).
        num_classes: Number of classes.
    """
    entropy, expected = label_entropy(labels), math.log(num_classes)
    shares = labels.bincount(minlength=num_classes) / len(labels)
    inequality = (shares - 1 / num_classes).norm().item()
    few = SIGMAS**2 / (2 * num_classes)  # half the mean square of the logits, SIGMAS away
    low = max(entropy / 10, entropy - max(BELOW, 0.9 / math.sqrt(num_classes)))
    high = expected + max(ABOVE, few * SPREAD**2) + SIGMAS * SPREAD * inequality
    return UntrainedLoss(expected, low, high)
