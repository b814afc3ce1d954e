"""Why one batch was not learnt by heart: functions of the evidence, in order of priority.

Those that are no more than a loss that stays too high apply only if the objective tells what is
right, and most of the model is trained.
"""

from statistics import fmean

from .evidence import Evidence
from .faults import RISEN, Reason, dead_units, other_loss_words, same_outputs, squashed_words

FORGETTING = 0.01  # share of the weights that decays at a step; usual are 1e-5 to 1e-3
GAP = 0.02  # by which a loss is not the objective's, of outputs and targets
STUCK = 0.01  # relative change of the weights below which nothing was learnt
HEAVY = 0.5  # dropout that may be too much for one batch


def risen(e: Evidence) -> str | None:
    first, highest = e.seen.losses[0], max(e.seen.losses)
    if highest <= RISEN * first or first < 0:
        return None
    return f"the loss rose from {first:.3g} to {highest:.3g}: lr {_rates(e)} is too high"


def contradictory_targets(e: Evidence) -> str | None:
    if not (e.must_learn and e.contradictory):
        return None
    what = "images" if e.noun == "image" else "inputs"
    return f"the batch has equal {what} with different labels"


def forgetting(e: Evidence) -> str | None:
    pairs = zip(e.seen.decays, e.seen.rates, strict=True)
    decay, rate = max(pairs, default=(0.0, 0.0))
    if decay * rate <= FORGETTING:
        return None
    share = f"{decay * rate:.0%} of the weights at each step"
    return f"weight_decay {decay:g} takes {share}, and the loss stays at {e.seen.losses[-1]:.3g}"


def squashed(e: Evidence) -> str | None:
    a, loss = e.answers, e.seen.losses[-1]
    if a is None or not a.wants_logits:
        return None
    in_step = a.squashed_loss is not None and abs(a.squashed_loss - loss) < 0.01
    if not a.squashed and not (in_step and abs(a.loss - loss) > 0.01):
        return None
    return squashed_words(a, loss)


def bounded_or_more(e: Evidence) -> str | None:
    a = e.answers
    if a is None or a.right < 1 or not e.must_learn:
        return None
    bounds = f"the outputs are bounded ({a.bounds[0]:.2g} to {a.bounds[1]:.2g})"
    term = f"the loss has a further term ({a.name} alone is {a.loss:.3g})"
    right = f"all predictions are right while the loss stays at {e.seen.losses[-1]:.3g}"
    return f"{right}: {bounds}, or {term}"


def other_loss(e: Evidence) -> str | None:
    a = e.answers
    if a is None or fmean(e.seen.gaps) <= GAP * max(1.0, a.constant_loss):
        return None
    return other_loss_words(e, a)


def unmoved(e: Evidence) -> str | None:
    if e.moved >= STUCK:
        return None
    moved = f"the weights moved by {e.moved:.1e} of their size"
    return f"{_course(e)}, and {moved}: the learning rate, {_rates(e)}, is too low"


def too_few_trained(e: Evidence) -> str | None:
    if not (e.must_learn and e.mostly_frozen) or sum(e.trained.values()) >= e.examples:
        return None
    return f"{e.frozen}: too few to learn {e.examples} {e.noun}s by heart"


def rising(e: Evidence) -> str | None:
    if e.mostly_frozen or e.seen.losses[-1] <= e.seen.losses[0]:
        return None
    between = f"and was {max(e.seen.losses):.3g} between"
    return f"{_course(e)}, {between}: the learning rate, {_rates(e)}, is too high"


def no_signal(e: Evidence) -> str | None:
    cause = None if e.mostly_frozen else dead_units(e) or same_outputs(e)
    return f"{_course(e)}: {cause}" if cause else None


def heavy_dropout(e: Evidence) -> str | None:
    last = e.seen.losses[-1]
    if not _should_have(e) or e.dropout <= HEAVY or e.evaluated is None:
        return None
    if e.evaluated >= 0.8 * last:
        return None
    return f"the loss stays at {last:.3g}: dropout of {e.dropout} is too much for this network"


def slow(e: Evidence) -> str | None:
    if not _should_have(e) or not e.seen.still_falling:
        return None
    return f"{_course(e)}, and still falls: the learning rate, {_rates(e)}, is too low"


def too_small(e: Evidence) -> str | None:
    if not _should_have(e):
        return None
    right = f"{e.seen.right:.2f} of the predictions are right"
    return (
        f"the loss stays at {e.seen.losses[-1]:.3g} and {right}: the network, of "
        f"{e.parameters:,} parameters, can't tell these {e.noun}s apart"
    )


REASONS: list[Reason] = [risen, contradictory_targets, forgetting, squashed, bounded_or_more]
REASONS += [other_loss, unmoved, too_few_trained, rising, no_signal, heavy_dropout, slow, too_small]


def _should_have(e: Evidence) -> bool:
    """Return whether not to have learnt the batch is itself a fault."""
    return e.must_learn and not e.mostly_frozen


def _course(e: Evidence) -> str:
    first, last = e.seen.losses[0], e.seen.losses[-1]
    return f"the loss went from {first:.3g} to {last:.3g} in {len(e.seen.losses)} steps"


def _rates(e: Evidence) -> str:
    return ", ".join(f"{rate:.1e}" for rate in e.seen.rates)
