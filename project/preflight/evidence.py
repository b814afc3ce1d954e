"""What was seen of one batch and of the model before and after training on it, gathered once."""

import math
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from ..engine.batch_size import batch_size_of
from ..engine.values import Batch
from .answers import Answers, answers_of, is_broadcast
from .examples import are_images, as_matrix
from .goal import Goal, takes
from .layers import Layers, highest_dropout, look_at_layers, mostly_frozen
from .rehearsal import Seen


@dataclass(frozen=True)
class Evidence:
    """What faults and reasons are drawn from. The defaults are those of a healthy model."""

    seen: Seen = field(default_factory=Seen)
    answers: Answers | None = None  # of the objective, if it is known and takes the outputs
    layers: Layers = field(default_factory=Layers)  # after training
    must_learn: bool = True  # a batch by heart, since something tells which outputs are right
    noun: str = "example"  # or "image"
    examples: int = 32
    trained: dict[str, int] = field(default_factory=lambda: {"weight": 1000})  # and their sizes
    parameters: int = 1000  # all numbers of the model, frozen ones included
    mostly_frozen: bool = False
    moved: float = 1.0  # length of the change of the trained weights, relative to theirs
    dropout: float = 0.0  # the highest of all layers
    inputs_finite: bool = True
    contradictory: bool = False  # equal inputs have different targets
    broadcast: bool = False  # the loss compares each output with each target
    evaluated: float | None = None  # loss of the outputs in evaluation mode
    spread: float = math.inf  # of these over the examples, relative to their size

    @property
    def frozen(self) -> str:
        """What is frozen, and what is left."""
        left = sum(self.trained.values())
        share = f"{1 - left / max(self.parameters, 1):.2%} of the {self.parameters:,} parameters"
        names = ", ".join([*self.trained][:3]) + (", …" if len(self.trained) > 3 else "")
        return f"{share} are frozen, and {left:,} are trained ({names})"


def gather(
    batch: Batch, goal: Goal | None, before: L.LightningModule, after: L.LightningModule, seen: Seen
) -> Evidence:
    """Look at a batch and a model, before and after training on it.

    Args:
        batch: Inputs and targets, on the CPU.
        goal: Goal of the model, if it is known.
        before: Model before training.
        after: Trained copy, on the CPU; if a step was not finite, that before this step.
        seen: What was seen in the training.
    """
    inputs, targets = batch
    after.float()  # as the inputs are, in whatever precision it was trained
    done = seen.succeeded or bool(seen.error) or seen.outputs is None
    layers = look_at_layers(after, inputs)
    outputs = None if done else _evaluate(after, inputs)
    known = goal is not None and takes(goal, outputs, targets)
    return Evidence(
        seen=seen,
        answers=None if goal is None else answers_of(goal, targets, seen),
        layers=layers,
        must_learn=goal is not None and (goal.assumed or not math.isnan(seen.right)),
        noun="image" if are_images(inputs) else "example",
        examples=batch_size_of(targets) or 0,
        trained={n: p.numel() for n, p in after.named_parameters() if p.requires_grad},
        parameters=sum(p.numel() for p in after.parameters()),
        mostly_frozen=mostly_frozen(after),
        moved=_movement(before, after),
        dropout=highest_dropout(after),
        inputs_finite=bool(as_matrix(inputs).isfinite().all()),
        contradictory=_is_contradictory(batch),
        broadcast=is_broadcast(seen, targets),
        evaluated=goal.loss(outputs, targets) if goal is not None and known else None,
        spread=_spread(outputs),
    )


@torch.no_grad()
def _evaluate(model: L.LightningModule, inputs: Any) -> Any:
    return model.eval()(inputs)


def _spread(outputs: Any) -> float:
    if not isinstance(outputs, Tensor) or len(outputs) < 2:
        return math.inf
    outputs = outputs.float()
    return (outputs.std(0).max() / (1 + outputs.abs().max())).item()


def _is_contradictory(batch: Batch) -> bool:
    inputs, targets = map(as_matrix, batch)
    _, same = inputs.unique(dim=0, return_inverse=True)
    pairs = torch.cat([same[:, None].double(), targets], 1).unique(dim=0)
    return len(pairs) > len(same.unique())


def _movement(before: L.LightningModule, after: L.LightningModule) -> float:
    """Return how far the trained parameters went, relative to their size before."""
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    trained = [(p.detach().cpu(), q.detach()) for p, q in pairs if p.requires_grad]
    moved = get_total_norm([q - p for p, q in trained])
    return (moved / get_total_norm([p for p, _ in trained])).item()
