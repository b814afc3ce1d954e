"""Refuses a model that cannot learn one batch by heart, and says why."""

import math
import time

import lightning as L

from ..engine.values import Batch
from .check import Check, Verdict
from .evidence import Evidence, gather
from .faults import FAULTS, first_of
from .goal import goal_of
from .reasons import REASONS
from .rehearsal import rehearse

SLOW = 0.75  # of the first loss: a model that is below it and whose loss still falls does learn


class OverfitOneBatch(Check):
    """Refuses a model that cannot learn one batch by heart, and says why.

    A copy is trained on a fixed batch by the run's own training step, precision, clipping and
    optimiser, at its learning rate without the schedule and without augmentation, until the loss is
    near the lowest there is and each prediction is right. A model that learns slowly but surely
    passes as well, and so does what could not be found out: in the time, because most of the
    network is frozen, or because the objective does not tell which predictions are right.
    """

    trains = True
    examples = 32
    num_steps = 200  # after which the batch must be learnt
    budget_s = 30.0

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        start = time.monotonic()
        goal = goal_of(model, batch[1])
        seen, trained = rehearse(
            trainer, model, batch, self.num_steps, goal, learning=True, budget_s=self.budget_s
        )
        floor = 0.0 if goal is None else goal.floor
        fault, note = self._verdict_on(gather(batch, goal, model, trained, seen), floor)
        first, last = (seen.losses[0], seen.losses[-1]) if seen.losses else (math.nan, math.nan)
        return self.verdict(
            fault,
            note,
            steps=len(seen.losses),
            loss_first=first,
            loss_last=last,
            floor=floor,
            accuracy=seen.right,
            seconds=time.monotonic() - start,
        )

    def _verdict_on(self, e: Evidence, floor: float) -> tuple[str, str]:
        """Return what is wrong, and what could not be found out."""
        if fault := first_of(FAULTS, e):
            return fault, ""
        if e.seen.succeeded or _learns(e, floor):
            return "", ""
        went = f"the loss went from {e.seen.losses[0]:.3g} to {e.seen.losses[-1]:.3g}"
        unknown = f"whether the model can learn one batch by heart was not found out: {went}"
        if e.seen.out_of_time:
            time_s = f"{len(e.seen.losses)} steps, all that fit into {self.budget_s:g} s"
            return "", f"{unknown} in {time_s}"
        if fault := first_of(REASONS, e):
            return fault, ""
        if e.mostly_frozen:
            return "", f"{unknown}, and {e.frozen}"
        return "", f"{unknown} in {len(e.seen.losses)} steps"


def _learns(e: Evidence, floor: float) -> bool:
    """Return whether the loss fell far enough, slowly but surely."""
    first, last = e.seen.losses[0], e.seen.losses[-1]
    fell = last - floor < SLOW * (first - floor)
    return fell and e.seen.still_falling if e.must_learn else fell or e.seen.still_falling
