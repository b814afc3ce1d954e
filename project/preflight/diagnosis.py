"""Why one batch could not be overfitted, in plain words, from what was measured."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import get_total_norm

from ..engine.internals import Dropout
from ..engine.values import Batch
from .rehearsal import Witness, few, frozen_share, mostly_frozen, unseen

DEAD = 0.9  # share of a layer's units that are 0 for every example
FORGETTING = 0.01  # share of the weights that decays at a step; usual are 1e-5 to 1e-3
FIRST_GRADIENTS = 10  # steps in which each parameter has one; some begin behind a factor of zero
GAP = 0.02  # by which a loss is not the cross-entropy of outputs and labels
RISEN = 3  # times the first loss, where training diverges
STUCK = 0.01  # relative change of the weights below which nothing was learnt


def smoothing_floor(smoothing: float, num_classes: int) -> float:
    """The lowest cross-entropy with smoothed labels: the entropy of the target."""
    target = torch.full((num_classes,), smoothing / num_classes, dtype=torch.float64)
    target[0] += 1 - smoothing
    return abs(torch.xlogy(target, target).sum().item())


def softmax_floor(num_classes: int) -> float:
    """The lowest cross-entropy where probabilities are taken for logits: 1.46 for 10 classes."""
    return math.log(math.e + num_classes - 1) - 1


@dataclass
class Diagnosis:
    """Reasons, the most specific first, from one batch, the model before and after training on it,
    and what was seen then."""

    batch: Batch
    before: L.LightningModule
    after: L.LightningModule  # on the CPU; if a step was not finite, that of the step before
    seen: Witness
    # Of the layers, in the order in which the batch passes through them:
    not_finite: list[str] = field(default_factory=list)  # outputs
    dead: dict[str, float] = field(default_factory=dict)  # share of a ReLU's units that stay 0
    hidden: list[str] = field(default_factory=list)  # trainable, and no parts of the model

    def __post_init__(self) -> None:
        names = {layer: name for name, layer in self.after.named_modules()}

        def look(layer: nn.Module, args: Any, output: Any) -> None:
            if [*layer.children()] or not isinstance(output, Tensor):
                return
            name = names.get(layer, type(layer).__name__)
            if layer not in names and any(p.requires_grad for p in layer.parameters()):
                self.hidden.append(name)
            if not output.isfinite().all():
                self.not_finite.append(name)
            if isinstance(layer, nn.ReLU):
                self.dead[name] = (output <= 0).flatten(1).all(0).double().mean().item()

        # A `forward` that takes something else than images is not looked into.
        with register_module_forward_hook(look), unseen(), torch.no_grad(), suppress(Exception):
            self.after.train()(self.batch[0])

    @property
    def still_falling(self) -> bool:
        losses = self.seen.losses
        return len(losses) >= 40 and fmean(losses[-20:]) < 0.97 * fmean(losses[-40:-20])

    def faults(self) -> Iterator[str]:
        """What is wrong whether or not the loss fell."""
        seen, logits = self.seen, self.seen.logits
        trained = [(n, p) for n, p in self.after.named_parameters() if p.requires_grad]
        held = {id(p) for group in seen.groups for p in group["params"]}
        if not trained:
            yield "every parameter is frozen: none has requires_grad"
        if seen.error:
            yield seen.error + ("" if seen.finite else self._origin())
        if self.hidden:
            where = f"the model keeps layers in a list or dict ({few(self.hidden)})"
            yield f"{where}, which no optimiser sees: use nn.ModuleList or nn.ModuleDict"
        if logits is not None and logits.min() == 0 and (logits == 0).sum() > 1:
            yield "the outputs are never negative: a ReLU comes after the last layer"
        if seen.evaluating:
            names = few(seen.evaluating)
            yield f"{names} is in evaluation mode in the training step: something calls eval()"
        if seen.leftover:
            yield "gradients add up from step to step: zero_grad is not called"
        if outside := [n for n, p in trained if id(p) not in held]:
            names = few(outside)
            yield f"the optimiser does not hold {names}: it needs all of the model, and of no copy"
        if not any(group["lr"] for group in seen.groups):
            yield "the learning rate is 0"
        if seen.silent and not (seen.out_of_time and len(seen.losses) < FIRST_GRADIENTS):
            cause = self._dead_units() or self._constant() or "it is detached, or not used"
            yield f"no gradient reaches {few(seen.silent)}: {cause}"

    def reasons(self) -> Iterator[str]:
        """Why the loss did not fall to its floor."""
        seen, (images, labels) = self.seen, self.batch
        first, last, highest = seen.losses[0], seen.losses[-1], max(seen.losses)
        rates = ", ".join(f"{group['lr']:.1e}" for group in seen.groups)
        rate = f"the learning rate, {rates},"
        course = f"the loss went from {first:.3g} to {last:.3g} in {len(seen.losses)} steps"
        if highest > RISEN * first:
            yield f"the loss rose from {first:.3g} to {highest:.3g}: lr {rates} is too high"
        _, same = images.flatten(1).unique(dim=0, return_inverse=True)
        if len(torch.stack([same, labels], 1).unique(dim=0)) > len(same.unique()):
            yield "the batch has equal images with different labels"
        decays = [(group.get("weight_decay", 0), group["lr"]) for group in seen.groups]
        if (decay := max(decays))[0] * decay[1] > FORGETTING:
            share = f"{decay[0] * decay[1]:.0%} of the weights at each step"
            yield f"weight_decay {decay[0]:g} takes {share}, and the loss stays at {last:.3g}"
        yield from self._wrong_outputs(last)
        if (moved := self._movement()) < STUCK:
            yield f"{course}, and the weights moved by {moved:.1e} of their size: {rate} is too low"
        if mostly_frozen(self.after):
            if sum(p.numel() for p in self.after.parameters() if p.requires_grad) < len(labels):
                yield f"{self.frozen()}: too few to learn {len(labels)} images by heart"
            return  # the frozen part bounds how well one batch can be learnt
        if last > first:
            yield f"{course}, and was {highest:.3g} between: {rate} is too high"
        if cause := self._dead_units() or self._constant():
            yield f"{course}: {cause}"
        dropout = max((m.p for m in self.after.modules() if isinstance(m, Dropout)), default=0)
        outputs = self._evaluate()
        if dropout > 0.5 and outputs is not None and seen.cross_entropy_of(outputs) < 0.8 * last:
            yield f"the loss stays at {last:.3g}: dropout of {dropout} is too much for this network"
        if self.still_falling:
            yield f"{course}, and still falls: {rate} is too low"
        network = f"the network, of {sum(p.numel() for p in self.after.parameters()):,} parameters"
        plateau = f"the loss stays at {last:.3g} and the accuracy at {seen.accuracy:.2f}"
        yield f"{plateau}: {network}, can't tell these images apart"

    def frozen(self) -> str:
        """What is frozen, and what is left."""
        trained = [(n, p.numel()) for n, p in self.after.named_parameters() if p.requires_grad]
        total = sum(p.numel() for p in self.after.parameters())
        left = sum(number for _, number in trained)
        share = f"{frozen_share(self.after):.2%} of the {total:,} parameters are frozen"
        return f"{share}, and {left:,} are trained ({few([name for name, _ in trained])})"

    def _wrong_outputs(self, loss: float) -> Iterator[str]:
        seen, logits, plain = self.seen, self.seen.logits, self.seen.cross_entropy
        if logits is None:
            return
        squashed = seen.cross_entropy_of(logits.softmax(1))
        probabilities = logits.min() >= 0 and logits.max() <= 1
        if probabilities or abs(squashed - loss) < 0.01 < abs(plain - loss):
            classes = logits.shape[1]
            yield (
                f"softmax or sigmoid comes before cross-entropy, which wants logits: the loss, "
                f"{loss:.2f}, can't fall below {softmax_floor(classes):.2f} for {classes} classes"
            )
        if seen.accuracy == 1:
            bounds = f"the outputs are bounded ({logits.min():.2g} to {logits.max():.2g})"
            term = f"it has a further term (cross-entropy alone is {plain:.3g})"
            right = f"all predictions are right while the loss stays at {loss:.3g}"
            yield f"{right}: {bounds}, or {term}"
        if fmean(seen.gaps) > GAP:
            found = f"the loss, {loss:.3g}, is not the cross-entropy of the outputs, {plain:.3g}"
            yield f"{found}: the step has labels that do not belong to its images, or another loss"

    def _movement(self) -> float:
        """How far the trained parameters went, relative to their size before."""
        pairs = zip(self.before.parameters(), self.after.parameters(), strict=True)
        trained = [(p.detach().cpu(), q.detach()) for p, q in pairs if p.requires_grad]
        moved = get_total_norm([q - p for p, q in trained])
        return (moved / get_total_norm([p for p, _ in trained])).item()

    def _evaluate(self) -> Tensor | None:
        """Outputs (N, C) in evaluation mode, if it has such."""
        if self.seen.logits is None:
            return None
        with torch.no_grad():
            return self.after.eval()(self.batch[0])

    def _constant(self) -> str:
        outputs = self._evaluate()
        if outputs is None or outputs.std(0).max() > 1e-3 * (1 + outputs.abs().max()):
            return ""
        return "the outputs are the same for every image, which does not reach them"

    def _dead_units(self) -> str:
        name = max(self.dead, key=self.dead.__getitem__, default="")
        if self.dead.get(name, 0.0) < DEAD:
            return ""
        return f"{self.dead[name]:.0%} of the units of {name} (ReLU) are 0 for every image"

    def _origin(self) -> str:
        """Where values that are not finite come from."""
        first, highest = self.seen.losses[:1], max(self.seen.losses, default=0.0)
        if not self.batch[0].isfinite().all():
            return ": the images are not finite"
        if first and highest > RISEN * first[0]:
            rate = max(group["lr"] for group in self.seen.groups)
            grown = f"it had grown from {first[0]:.3g} to {highest:.3g}"
            return f": {grown}, so the learning rate, {rate:.1e}, is too high"
        if self.not_finite:
            return f": {self.not_finite[0]} is the first layer whose output is not finite"
        return (
            ": all layers are finite, so it arises after the last one, as by log or division of 0, "
            "by the slope of sqrt or norm at 0, or by the limits of the precision"
        )
