"""What a network is trained for, as its objective says, or as its targets let assume.

Legend: N examples.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from ..engine.batch_size import batch_size_of
from ..engine.classification import CrossEntropy
from ..engine.objective import Objective, UntrainedLoss
from ..engine.protocols import objective_of, own_objective
from .constant import constant_loss

SMALL = 0.05  # share of the loss of a constant output: of 10 equal classes, p = 0.89 for the right


@runtime_checkable
class HasNumClasses(Protocol):
    """A network that says how many classes it has, without an objective."""

    num_classes: int | None


@dataclass(frozen=True)
class Goal:
    """The objective of a network, and what follows from it for a batch."""

    objective: Objective  # a copy, in training mode and float32
    num_classes: int | None
    device: torch.device  # of the objective
    assumed: bool = False  # because the targets are classes

    @property
    def name(self) -> str:
        kind_of = type(self.objective)
        return "cross-entropy" if kind_of is CrossEntropy else kind_of.__name__

    @property
    def floor(self) -> float:
        """The lowest loss that outputs can reach."""
        return self.objective.lowest_loss(self.num_classes)

    @torch.no_grad()
    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each example, float (N,)."""
        return self.objective.losses(*self.here(outputs, targets))

    def loss(self, outputs: Any, targets: Any) -> float:
        return self.losses(outputs, targets).mean().item()

    @torch.no_grad()
    def share_right(self, outputs: Any, targets: Any) -> float:
        """Return the share of the examples that are predicted right, NaN if nothing tells."""
        right = self.objective.correct(*self.here(outputs, targets))
        return math.nan if right is None else right.double().mean().item()

    def untrained(self, targets: Any) -> UntrainedLoss | None:
        return self.objective.untrained_loss(self.here(targets)[0], self.num_classes)

    def constant(self, outputs: Any, targets: Any) -> float | None:
        """Return the lowest loss of outputs that are the same for all examples."""
        return constant_loss(self.objective, *self.here(outputs, targets))

    def learnt(self, outputs: Any, targets: Any) -> float | None:
        """Return the loss below which a batch is learnt by heart; None if nothing tells.

        It is just above the lowest loss there is, by a share of what a constant output reaches, or
        of the loss to expect untrained: if all labels of a batch are the same, the first is 0.

        Args:
            outputs: Outputs of the batch, or None if they are not known.
            targets: Targets of the batch.
        """
        untrained = self.untrained(targets)
        constant = None if outputs is None else self.constant(outputs, targets)
        reached = max(constant or 0.0, untrained.expected if untrained else 0.0)
        return self.floor + SMALL * reached if reached else None

    def here(self, *values: Any) -> tuple[Any, ...]:
        """Move values to the device of the objective."""
        return tuple(move_data_to_device(value, self.device) for value in values)


def goal_of(model: L.LightningModule, targets: Any) -> Goal | None:
    """Return the goal of a network: its objective, or cross-entropy if targets are classes."""
    objective = objective_of(model, targets)
    if objective is None:
        return None
    num_classes = model.num_classes if isinstance(model, HasNumClasses) else None
    assumed = own_objective(model) is None
    return Goal(copy.deepcopy(objective).float().train(), num_classes, model.device, assumed)


def takes(goal: Goal | None, outputs: Any, targets: Any) -> bool:
    """Return whether what `forward` returned may be what the loss compares with the targets."""
    if goal is not None and not goal.assumed:
        return batch_size_of(outputs) == batch_size_of(targets)
    if not isinstance(outputs, Tensor) or batch_size_of(outputs) != batch_size_of(targets):
        return False
    return goal is None or (outputs.ndim == 2 and outputs.shape[1] > int(targets.max()))
