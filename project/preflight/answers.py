"""What the objective says of a network's newest outputs."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.batch_size import batch_size_of
from ..engine.targets import are_classes, kind
from ..engine.values import rows
from .examples import equal
from .goal import Goal
from .rehearsal import Seen

ERRORS = (F.mse_loss, F.l1_loss, F.smooth_l1_loss)  # losses that broadcast outputs and targets


@dataclass(frozen=True)
class Answers:
    """The defaults are those of a healthy network with cross-entropy."""

    name: str = "cross-entropy"
    loss: float = 1.0  # the objective's, of the newest outputs
    right: float = 0.5  # share of the outputs that are right, NaN if nothing tells
    constant_loss: float = 2.3  # the lowest of outputs that are the same for all examples
    classes: int | None = 10  # outputs for each example, if its target is a class
    bounds: tuple[float, float] = (-3.0, 3.0)  # of the outputs
    zeros: int = 0  # of the outputs
    wants_logits: bool = True
    squashed_loss: float | None = None  # of probabilities made of the outputs
    squashed_floor: float = 0.0  # the lowest loss of outputs from 0 to 1
    misshapen: str = ""  # losses that are not one for each example
    ignores_targets: bool = False
    summed: bool = False  # the first loss is the sum over the examples

    @property
    def squashed(self) -> bool:
        """Whether all outputs are from 0 to 1, although logits are wanted."""
        return self.wants_logits and self.bounds[0] >= 0 and self.bounds[1] <= 1


def answers_of(goal: Goal, targets: Any, seen: Seen) -> Answers | None:
    """Ask the objective; None if the outputs are not known."""
    outputs = seen.outputs
    if not isinstance(outputs, Tensor) or not seen.own_losses:
        return None
    wants_logits = _wants_logits(goal, outputs)
    return Answers(
        name=goal.name,
        loss=seen.own_loss,
        right=seen.right,
        constant_loss=goal.constant(outputs, targets) or 0.0,
        classes=outputs.shape[1] if are_classes(targets) and outputs.ndim == 2 else None,
        bounds=(outputs.min().item(), outputs.max().item()),
        zeros=int((outputs == 0).sum()),
        wants_logits=wants_logits,
        squashed_loss=_squashed_loss(goal, outputs, targets) if wants_logits else None,
        squashed_floor=squashed_floor(goal, outputs, targets) if wants_logits else 0.0,
        misshapen=_misshapen(goal, outputs, targets),
        ignores_targets=_ignores_targets(goal, outputs, targets),
        summed=is_sum(seen, len(outputs)),
    )


def is_sum(seen: Seen, examples: int) -> bool:
    """Return whether the first loss is the objective's, summed over the examples."""
    if examples == 1 or not any(seen.own_losses[:1]):
        return False
    return _are_close(seen.losses[0], examples * seen.own_losses[0])


def is_broadcast(seen: Seen, targets: Any) -> bool:
    """Return whether the newest loss compares each output (N, 1) with each target (N,)."""
    outputs = seen.outputs
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not seen.losses:
        return False
    if {outputs.ndim, targets.ndim} != {1, 2} or outputs.numel() != targets.numel():
        return False
    outputs, targets = outputs.cpu(), targets.to(outputs.dtype)
    rows, columns = torch.broadcast_tensors(outputs, targets)
    return any(
        _are_close(seen.losses[-1], error(rows, columns).item())
        and not _are_close(seen.losses[-1], error(outputs.flatten(), targets.flatten()).item())
        for error in ERRORS
    )


def squashed_floor(goal: Goal, outputs: Tensor, targets: Any) -> float:
    """Return the lowest loss of outputs from 0 to 1: 1.46 for cross-entropy of 10 classes.

    Each output is put where its slope in the middle points to, as the loss of logits never turns.
    """
    half, targets = goal.here(torch.full_like(outputs, 0.5), targets)
    with torch.enable_grad():
        half.requires_grad_()
        goal.objective.losses(half, targets).sum().backward()
    assert half.grad is not None
    return goal.loss((half.grad < 0).to(half.dtype), targets)


def _wants_logits(goal: Goal, outputs: Tensor) -> bool:
    """Return whether predictions are probabilities, or classes, that are made of the outputs."""
    made = goal.objective.predictions(1000 * goal.here(outputs)[0])
    if not isinstance(made, Tensor):
        return False
    if not made.is_floating_point():
        return made.numel() < outputs.numel()
    return bool(((made >= 0) & (made <= 1)).all())


def _squashed_loss(goal: Goal, outputs: Tensor, targets: Any) -> float | None:
    made = goal.objective.predictions(goal.here(outputs)[0])
    alike = made.is_floating_point() and made.shape == outputs.shape
    return goal.loss(made, targets) if alike else None


def _misshapen(goal: Goal, outputs: Tensor, targets: Any) -> str:
    losses, number = goal.losses(outputs, targets), batch_size_of(targets)
    if losses.shape == (number,):
        return ""
    return (
        f"{goal.name} returns losses of shape {tuple(losses.shape)} for {number} examples, not one "
        f"for each: its outputs are {kind(outputs)}, its targets {kind(targets)}"
    )


def _ignores_targets(goal: Goal, outputs: Tensor, targets: Any) -> bool:
    """Return whether no loss changes if each example has the targets of another one."""
    shifted = rows(targets, torch.arange(len(outputs)).roll(1))
    losses, others = goal.losses(outputs, targets), goal.losses(outputs, shifted)
    varied = not equal(targets, shifted) and bool((outputs != outputs[:1]).any())
    return varied and torch.equal(losses, others)


def _are_close(value: float, expected: float) -> bool:
    return abs(value - expected) <= 1e-4 * abs(expected)
