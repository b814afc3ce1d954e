"""Refuses a model whose loss, before any training, is not what an untrained model has."""

import math
from dataclasses import dataclass

import lightning as L
from torch import Tensor

from ..engine.classification import ABOVE
from ..engine.objective import UntrainedLoss
from ..engine.targets import are_classes
from ..engine.values import Batch
from .answers import is_sum
from .check import Check, Verdict
from .goal import Goal, goal_of
from .reasons import GAP
from .rehearsal import Seen, rehearse

FAR = 4  # times the expected loss below which any loss leaks, and times the sum that is too much


class InitLossCheck(Check):
    """Refuses a model whose loss, before any training, is not what an untrained model has.

    The objective says which loss to expect, and which range is healthy. Of a training step whose
    loss is not the objective's of the outputs, only the order of magnitude is looked at.
    """

    trains = True
    examples = 128

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        goal = goal_of(model, batch[1])
        untrained = None if goal is None else goal.untrained(batch[1])
        if goal is None or untrained is None:
            return self.skipped("nothing tells which loss to expect of an untrained network")
        seen, _ = rehearse(trainer, model, batch, 1, goal)
        if seen.error:
            return self.verdict(seen.error)
        first = FirstLoss(seen, goal, batch[1], untrained)
        low, high = first.bounds
        fault = "" if low <= first.loss <= high else first.why()
        if not fault and goal.num_classes and first.num_outputs > 2 * goal.num_classes:
            fault = first.of_more_outputs()
        return self.verdict(fault, loss=first.loss, expected=untrained.expected, low=low, high=high)


@dataclass(frozen=True)
class FirstLoss:
    """The loss of the first step, with what there is to compare it with."""

    seen: Seen
    goal: Goal
    targets: Tensor
    untrained: UntrainedLoss

    @property
    def loss(self) -> float:
        return self.seen.losses[0]

    @property
    def is_other(self) -> bool:
        """Whether it is not the objective's loss of the outputs, or has one more term."""
        return bool(self.seen.gaps) and self.seen.gaps[0] > GAP

    @property
    def bounds(self) -> tuple[float, float]:
        if not self.is_other:
            return self.untrained.low, self.untrained.high
        expected = self.untrained.expected
        return expected / FAR, max(len(self.targets) / FAR, FAR) * expected

    @property
    def classes(self) -> int:
        """Number of classes, 0 if the targets are something else."""
        if not are_classes(self.targets):
            return 0
        return self.goal.num_classes or int(self.targets.max()) + 1

    @property
    def num_outputs(self) -> int:
        """Number of outputs for each example, as many as classes if it is not known."""
        outputs = self.seen.outputs
        known = isinstance(outputs, Tensor) and outputs.ndim == 2
        return outputs.shape[1] if known and self.classes else self.classes

    def why(self) -> str:
        """Return why the loss is out of bounds."""
        if self.loss < 0:
            return f"{self}: {self.goal.name} is never negative (nll_loss wants log_softmax)"
        if self.loss < self.untrained.expected:
            what = "labels" if self.classes else "targets"
            return f"{self}: {what} leak into the loss, or the model is already trained"
        if self._is_summed():
            return f"{self}: it is summed over the batch and not averaged"
        if fault := self.of_more_outputs():
            return fault
        outputs = self.seen.outputs
        spread = f", with a spread of {outputs.std():.2g}" if isinstance(outputs, Tensor) else ""
        return f"{self}: the outputs are too large{spread}: normalise the inputs, or start smaller"

    def of_more_outputs(self) -> str:
        """Return the fault if the loss is nearer to that of all outputs than of the classes."""
        if self.num_outputs == self.classes:
            return ""
        distance = abs(self.loss - math.log(self.num_outputs))
        if distance > min(ABOVE, abs(self.loss - math.log(self.classes))):
            return ""
        return f"{self}: the model has {self.num_outputs} outputs for {self.classes} classes"

    def __str__(self) -> str:
        expected = f"{self.untrained.expected:.3g}"
        if self.classes and math.isclose(self.untrained.expected, math.log(self.classes)):
            expected = f"ln {self.classes} = {expected}"
        return f"the untrained loss is {self.loss:.3g}, but {expected} is expected"

    def _is_summed(self) -> bool:
        if self.seen.own_losses:
            return is_sum(self.seen, len(self.targets))
        mean = self.loss / len(self.targets)
        return self.untrained.low <= mean <= self.untrained.high < self.loss
