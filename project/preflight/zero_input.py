"""Refuses a model that learns from something else than its inputs."""

import math

import lightning as L

from ..engine.values import Batch
from .check import Check, Verdict
from .examples import are_images, zeros_like
from .goal import Goal, goal_of
from .layers import mostly_frozen
from .rehearsal import Seen, rehearse

CERTAIN = 0.8  # times what a constant output reaches: zeros with a lower loss know more


class ZeroInputCheck(Check):
    """Refuses a model that zeros train as well as inputs do, or better than they could.

    A network that sees the same for all examples can do no better than the best constant output:
    with cross-entropy, the entropy of the labels.
    """

    trains = True
    examples = 32
    num_steps = 50
    budget_s = 30.0

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        inputs, targets = batch
        goal = goal_of(model, targets)
        if goal is None:
            return self.skipped("the network has no objective, and its targets are not classes")
        budget_s = self.budget_s / 2
        seen, _ = rehearse(trainer, model, batch, self.num_steps, goal, budget_s=budget_s)
        steps = max(len(seen.losses), 1)  # the same for both
        try:
            zeros = (zeros_like(inputs), targets)
            seen_of_zeros, _ = rehearse(trainer, model, zeros, steps, goal)
        except (RuntimeError, ValueError) as error:
            return self.skipped(f"the network takes no inputs of zeros: {error}")
        if seen_of_zeros.error and not seen.error:
            return self.skipped(f"with inputs of zeros, {seen_of_zeros.error}")
        return self._compare(goal, model, batch, seen, seen_of_zeros)

    def _compare(
        self, goal: Goal, model: L.LightningModule, batch: Batch, seen: Seen, of_zeros: Seen
    ) -> Verdict:
        inputs, targets = batch
        constant = None if seen.outputs is None else goal.constant(seen.outputs, targets)
        learnt = goal.learnt(seen.outputs, targets) or 0.0
        what = "images" if are_images(inputs) else "inputs"
        loss, loss_of_zeros = seen.own_loss, of_zeros.own_loss
        fault = note = ""
        if constant is not None and loss_of_zeros < CERTAIN * constant:
            fault = (
                f"{what} of zeros train to a loss of {loss_of_zeros:.3g}, and a constant output "
                f"reaches {constant:.3g} at best: targets are learnt from something else than "
                f"{what}"
            )
        elif math.inf > loss >= loss_of_zeros and loss > learnt:
            fault = f"{what} train no better than zeros ({loss:.3g} and {loss_of_zeros:.3g})"
            if seen.out_of_time or mostly_frozen(model) or math.isnan(seen.right):
                fault, note = "", f"not found out: in {len(seen.losses)} steps, {fault}"
        return self.verdict(
            fault,
            note,
            loss=loss,
            loss_of_zeros=loss_of_zeros,
            constant=math.nan if constant is None else constant,
        )
