"""The lowest loss of outputs that do not depend on the inputs."""

import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..engine.objective import Objective

ITERATIONS = 50  # of LBFGS; cross-entropy takes about 15


def constant_loss(objective: Objective, outputs: Any, targets: Any) -> float | None:
    """Return the lowest mean of `losses` that one output, the same for all examples, can reach.

    It is the entropy of the labels for cross-entropy, and the variance of the targets for squared
    error. It is found numerically, so that any objective has one.

    Args:
        objective: Objective whose `losses` are minimised.
        outputs: Outputs of a batch, float (N, …); their shape matters, and their mean is where the
            search begins if the loss of zeros is not finite.
        targets: Targets of the batch.

    Returns:
        None if the outputs are not one tensor, or no finite loss is found.
    """
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        return None
    outputs = outputs.detach().float()
    mean = outputs.mean(0, keepdim=True)
    found = _lowest(objective, torch.zeros_like(mean), len(outputs), targets)
    if not math.isfinite(found):
        found = _lowest(objective, mean, len(outputs), targets)
    return found if math.isfinite(found) else None


def _lowest(objective: Objective, output: Tensor, examples: int, targets: Any) -> float:
    """Return the lowest loss that is found on the way down from an output (1, …)."""
    output = output.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [output], max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe"
    )
    found = [math.inf]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective.losses(output.expand(examples, *output.shape[1:]), targets).mean()
        loss.backward()
        found.append(loss.item())
        return loss

    with torch.enable_grad(), suppress(RuntimeError):  # of a step that is not finite
        if closure().isfinite():
            optimizer.step(closure)
    return min(loss if math.isfinite(loss) else math.inf for loss in found)
