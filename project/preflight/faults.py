"""What is wrong whether or not the loss fell: functions of the evidence, in order of priority."""

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from .answers import Answers
from .evidence import Evidence
from .layers import few

Reason: TypeAlias = Callable[[Evidence], str | None]

DEAD = 0.9  # share of a layer's units that are 0 for every example
FIRST_GRADIENTS = 10  # steps in which each parameter has one; some begin behind a factor of zero
RISEN = 3  # times the first loss, where training diverges


def first_of(reasons: Iterable[Reason], e: Evidence) -> str:
    """Return the first sentence that the evidence gives, or nothing."""
    return next((found for reason in reasons if (found := reason(e))), "")


def all_frozen(e: Evidence) -> str | None:
    return None if e.trained else "every parameter is frozen: none has requires_grad"


def error(e: Evidence) -> str | None:
    return e.seen.error + ("" if e.seen.finite else f": {_origin(e)}") or None


def _origin(e: Evidence) -> str:
    """Return where values that are not finite come from."""
    first, highest = e.seen.losses[:1], max(e.seen.losses, default=0.0)
    if not e.inputs_finite:
        return f"the {'images' if e.noun == 'image' else 'inputs'} are not finite"
    if first and highest > RISEN * first[0]:
        grown = f"it had grown from {first[0]:.3g} to {highest:.3g}"
        return f"{grown}, so the learning rate, {max(e.seen.rates):.1e}, is too high"
    if e.layers.not_finite:
        return f"{e.layers.not_finite[0]} is the first layer whose output is not finite"
    return (
        "all layers are finite, so it arises after the last one, as by log or division of 0, "
        "by the slope of sqrt or norm at 0, or by the limits of the precision"
    )


def hidden_layers(e: Evidence) -> str | None:
    if not e.layers.hidden:
        return None
    where = f"the model keeps layers in a list or dict ({few(e.layers.hidden)})"
    return f"{where}, which no optimiser sees: use nn.ModuleList or nn.ModuleDict"


def relu_on_outputs(e: Evidence) -> str | None:
    if e.answers is None or not e.answers.wants_logits:
        return None
    if e.answers.bounds[0] != 0 or e.answers.zeros < 2:
        return None
    return "the outputs are never negative: a ReLU comes after the last layer"


def evaluation_mode(e: Evidence) -> str | None:
    if not e.seen.evaluating:
        return None
    names = few(e.seen.evaluating)
    return f"{names} is in evaluation mode in the training step: something calls eval()"


def gradients_add_up(e: Evidence) -> str | None:
    if not e.seen.leftover:
        return None
    return "gradients add up from step to step: zero_grad is not called"


def outside_the_optimiser(e: Evidence) -> str | None:
    if not e.seen.outside:
        return None
    return (
        f"the optimiser is missing {few(e.seen.outside)}: give it all parameters of this model "
        "(not of a copy)"
    )


def no_learning_rate(e: Evidence) -> str | None:
    return "the learning rate is 0" if e.seen.rates and not any(e.seen.rates) else None


def no_gradient(e: Evidence) -> str | None:
    early = e.seen.out_of_time and len(e.seen.losses) < FIRST_GRADIENTS
    if not e.seen.silent or early:
        return None
    cause = dead_units(e) or same_outputs(e) or "it is detached, or not used"
    return f"no gradient reaches {few(e.seen.silent)}: {cause}"


def misshapen_losses(e: Evidence) -> str | None:
    return e.answers.misshapen if e.answers else None


def broadcast(e: Evidence) -> str | None:
    if not e.broadcast:
        return None
    return (
        "the loss compares each output with the target of every example: the shapes (N, 1) and "
        "(N,) of outputs and targets are broadcast to (N, N); make them the same"
    )


def ignored_targets(e: Evidence) -> str | None:
    if e.answers is None or not e.answers.ignores_targets:
        return None
    return f"the targets do not reach {e.answers.name}: no loss changes with them"


def summed(e: Evidence) -> str | None:
    if e.answers is None or not e.answers.summed:
        return None
    first = f"the loss of the first step is {e.seen.losses[0]:.3g}"
    return f"{first}: it is summed over the batch and not averaged"


def at_the_squashed_floor(e: Evidence) -> str | None:
    if e.answers is None or not e.answers.squashed or not e.seen.losses:
        return None
    floor, loss = e.answers.squashed_floor, e.seen.losses[-1]
    return squashed_words(e.answers, loss) if 0.99 * floor < loss < 1.1 * floor else None


def squashed_words(a: Answers, loss: float) -> str:
    classes = f" for {a.classes} classes" if a.classes else ""
    return (
        f"softmax or sigmoid comes before {a.name}, which wants logits: the loss, {loss:.2f}, "
        f"can't fall below {a.squashed_floor:.2f}{classes}"
    )


def other_targets(e: Evidence) -> str | None:
    """Of an objective that does not tell what is right; else the batch would not be learnt."""
    a, losses = e.answers, e.seen.losses
    if a is None or e.must_learn or not losses or losses[-1] > losses[0] / 2:
        return None
    no_better = a.loss > 0.8 * a.constant_loss  # than an output that is the same for all
    return other_loss_words(e, a) if no_better and losses[-1] < a.loss / 2 else None


def other_loss_words(e: Evidence, a: Answers) -> str:
    loss = f"the loss, {e.seen.losses[-1]:.3g}, is not {a.name} of the outputs, {a.loss:.3g}"
    what = "labels" if a.classes else "targets"
    return f"{loss}: the step has {what} that do not belong to its {e.noun}s, or another loss"


def dead_units(e: Evidence) -> str | None:
    dead = e.layers.dead
    name = max(dead, key=dead.__getitem__, default="")
    if dead.get(name, 0.0) < DEAD:
        return None
    return f"{dead[name]:.0%} of the units of {name} (ReLU) are 0 for every {e.noun}"


def same_outputs(e: Evidence) -> str | None:
    # Values that are far from 0 may for long differ less than logits do.
    if e.spread > (1e-3 if e.must_learn else 1e-6) or math.isnan(e.spread):
        return None
    return f"the outputs are the same for every {e.noun}: the input has no effect on them"


FAULTS: list[Reason] = [all_frozen, error, misshapen_losses, hidden_layers, relu_on_outputs]
FAULTS += [evaluation_mode, gradients_add_up, outside_the_optimiser, no_learning_rate]
FAULTS += [no_gradient, broadcast, ignored_targets, summed, at_the_squashed_floor, other_targets]
