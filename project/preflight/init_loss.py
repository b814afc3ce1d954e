"""Refuses a model whose loss, before any training, is not what an untrained model has."""

import math

import lightning as L
import torch
from torch import Tensor

from ..engine.values import Batch
from .check import Check, Verdict
from .diagnosis import GAP
from .rehearsal import Witness, rehearse

# Measured by benchmarks.initial_loss; docs/checks.md explains them.
ABOVE, BELOW = 0.7, 0.3  # of the loss to ln C, and to the entropy of the labels
SPREAD = 0.55  # standard deviation of one class's logit over seeds, whatever the width
SIGMAS = 4  # standard deviations that a healthy model may be away
FAR = 4  # times ln C below which any loss leaks, and times less than the sum of the batch


def label_entropy(labels: Tensor) -> float:
    """Of labels, int64 (N,), in nats: the lowest loss of a constant prediction."""
    share = labels.bincount() / len(labels)
    return -torch.xlogy(share, share).sum().item()


def healthy_range(labels: Tensor, classes: int) -> tuple[float, float]:
    """The lowest and highest loss of an untrained model.

    Its logits differ between the classes by chance, and alike for all images: that makes the loss
    higher than ln C, the more so the fewer classes there are to average over. If the classes are
    unequal in number, it depends on which of them has the higher logit.

    Args:
        labels: Labels of the batch, int64 (N,).
        classes: Number of classes.
    """
    entropy, expected = label_entropy(labels), math.log(classes)
    inequality = (labels.bincount(minlength=classes) / len(labels) - 1 / classes).norm().item()
    few = SIGMAS**2 / (2 * classes)  # half the mean square of the logits, four deviations away
    high = expected + max(ABOVE, few * SPREAD**2) + SIGMAS * SPREAD * inequality
    return max(entropy / 10, entropy - max(BELOW, 0.9 / math.sqrt(classes))), high


class InitLossCheck(Check):
    """Refuses a model whose loss, untrained, is far from ln C, that of equal probabilities.

    The loss is that of the model's own training step, in training mode and in the run's precision.
    How far it may be depends on the classes: their number, and how unequal they are. Of a loss that
    is not the cross-entropy of the outputs, only the order of magnitude is looked at.
    """

    examples = 128

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        labels = batch[1]
        seen, _ = rehearse(trainer, model, batch, 1)
        if seen.error:
            return self.verdict(seen.error)
        loss, declared = seen.losses[0], getattr(model, "num_classes", None)
        classes = declared or int(labels.max()) + 1
        expected = math.log(classes)
        low, high = healthy_range(labels, classes)
        if _is_other_loss(seen):
            low, high = expected / FAR, max(len(labels) / FAR, FAR) * expected
        fault = "" if low <= loss <= high else self._why(loss, classes, seen)
        if not fault and declared and _outputs(seen, classes) > 2 * classes:
            fault = self._of_more_outputs(loss, classes, seen)
        return self.verdict(fault, loss=loss, expected=expected, low=low, high=high)

    def _why(self, loss: float, classes: int, seen: Witness) -> str:
        found = _found(loss, classes)
        if loss < 0:
            return f"{found}: cross-entropy is never negative (nll_loss wants log_softmax)"
        if loss < math.log(classes):
            return f"{found}: the labels reach the loss without being learnt, or it is trained"
        if _is_summed(loss, classes, seen):
            return f"{found}: it is summed over the batch and not averaged"
        if fault := self._of_more_outputs(loss, classes, seen):
            return fault
        spread = "" if seen.logits is None else f", with a spread of {seen.logits.std():.2g}"
        return f"{found}: the outputs are too large{spread}: normalise the inputs, or start smaller"

    @staticmethod
    def _of_more_outputs(loss: float, classes: int, seen: Witness) -> str:
        """The fault, if the loss is nearer to that of all outputs than to that of the classes."""
        outputs = _outputs(seen, classes)
        distance = abs(loss - math.log(outputs))
        if outputs == classes or distance > min(ABOVE, abs(loss - math.log(classes))):
            return ""
        return f"{_found(loss, classes)}: the model has {outputs} outputs for {classes} classes"


def _found(loss: float, classes: int) -> str:
    expected = math.log(classes)
    return f"the untrained loss is {loss:.3g}, where ln {classes} = {expected:.3g} is expected"


def _outputs(seen: Witness, classes: int) -> int:
    return classes if seen.logits is None else seen.logits.shape[1]


def _is_other_loss(seen: Witness) -> bool:
    """Whether it is not the cross-entropy of the outputs, or has one more term."""
    return bool(seen.gaps) and seen.gaps[0] > GAP


def _is_summed(loss: float, classes: int, seen: Witness) -> bool:
    """Whether the loss of one example is healthy, and that of the batch is not."""
    low, high = healthy_range(seen.labels, classes)
    mean = loss / len(seen.labels)
    return low <= mean <= high < loss and (seen.logits is None or _is_other_loss(seen))
