"""Why one batch could not be overfitted, in plain words, from what was measured."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.dropout import _DropoutNd

from project.callbacks.rehearsal import Batch, Witness, few

DEAD = 0.9  # share of a layer's units that are 0 for every example
FORGETTING = 0.01  # share of the weights that decays at a step; usual are 1e-5 to 1e-3
STUCK = 0.01  # relative change of the weights below which nothing was learnt


def smoothing_floor(smoothing: float, num_classes: int) -> float:
    """The lowest cross-entropy with smoothed labels: the entropy of the target."""
    target = torch.full((num_classes,), smoothing / num_classes, dtype=torch.float64)
    target[0] += 1 - smoothing
    return abs(torch.xlogy(target, target).sum().item())


def softmax_floor(num_classes: int) -> float:
    """The lowest cross-entropy where probabilities are taken for logits: 1.46 for 10 classes."""
    return math.log(math.e + num_classes - 1) - 1


def _holds_unregistered(module: nn.Module) -> bool:
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, list | tuple | dict):
            members = value.values() if isinstance(value, dict) else value
            if any(isinstance(m, nn.Module) and [*m.parameters()] for m in members):
                return True
    return False


@dataclass
class Diagnosis:
    """Reasons, from one batch, the model before and after training on it, and what was seen.

    Args:
        batch: Images and labels, on the CPU.
        before: The untrained model.
        after: Its trained copy, on the CPU; after a step that was not finite, the one before it.
        witness: Of the training.
        clipping: The run's gradient_clip_val.
    """

    batch: Batch
    before: L.LightningModule
    after: L.LightningModule
    witness: Witness
    clipping: float | None

    def fault(self) -> str:
        """What is wrong whether or not the loss fell, or nothing."""
        return next(self._broken_steps(), "")

    def why(self) -> str:
        """The most specific reason for a loss that did not fall to its floor."""
        return next(
            chain(self._no_chance(), self._wrong_outputs(), self._wrong_pace()),
            self._too_weak(),
        )

    @property
    def still_falling(self) -> bool:
        losses = self.witness.losses
        return len(losses) >= 40 and fmean(losses[-20:]) < 0.97 * fmean(losses[-40:-20])

    def _broken_steps(self) -> Iterator[str]:
        seen = self.witness
        if not any(p.requires_grad for p in self.before.parameters()):
            yield "every parameter is frozen: none has requires_grad"
        if seen.error:
            yield seen.error + ("" if seen.finite else self._origin())
        if hidden := [n for n, m in self.before.named_modules() if _holds_unregistered(m)]:
            yield (
                f"{few([name or 'the model' for name in hidden])} keeps layers in a list or dict, "
                "which no optimiser sees: use nn.ModuleList or nn.ModuleDict"
            )
        if seen.logits is not None and seen.logits.min() == 0 and (seen.logits == 0).sum() > 1:
            yield "the outputs are never negative: a ReLU comes after the last layer"
        if seen.evaluating:
            yield (
                f"{few(seen.evaluating)} is in evaluation mode within the training step, with "
                "BatchNorm frozen and dropout off: something calls eval()"
            )
        if seen.leftover:
            yield "gradients add up from step to step: zero_grad is not called"
        if seen.outside:
            yield (
                f"the optimiser does not hold {few(seen.outside)}: it needs the parameters of the "
                "complete model, and of no copy"
            )
        if not any(seen.rates):
            yield "the learning rate is 0"
        if seen.silent:
            cause = self._dead_units() or self._constant() or "it is detached, or not used"
            yield f"no gradient reaches {few(seen.silent)}: {cause}"

    def _wrong_outputs(self) -> Iterator[str]:
        seen, logits, (_, labels) = self.witness, self.witness.logits, self.batch
        loss = seen.losses[-1]
        shrinking = max(seen.rates) * seen.weight_decay
        if shrinking > FORGETTING:
            yield (
                f"weight_decay {seen.weight_decay:g} takes {shrinking:.0%} of the weights at each "
                f"step, and the loss stays at {loss:.3g}"
            )
        if loss < 0:
            yield f"the loss is {loss:.3g}, and cross-entropy is never negative: see its formula"
        if logits is None:
            return
        floor = f"is {softmax_floor(logits.shape[1]):.2f} for {logits.shape[1]} classes"
        plain = cross_entropy(logits, labels, label_smoothing=seen.smoothing).item()
        squashed = cross_entropy(logits.softmax(1), labels, label_smoothing=seen.smoothing).item()
        probabilities = logits.min() >= 0 and logits.max() <= 1
        if probabilities or abs(squashed - loss) < 0.01 < abs(plain - loss):
            yield (
                f"softmax or sigmoid comes before cross-entropy, which wants logits: the lowest "
                f"loss then {floor}, and it stays at {loss:.2f}"
            )
        if seen.accuracy == 1:
            yield (
                f"all predictions are right while the loss stays at {loss:.3g}: the outputs are "
                f"bounded ({logits.min():.2g} to {logits.max():.2g}), or the loss has a further "
                f"term (cross-entropy alone is {plain:.3g})"
            )
        if seen.gap > 0.02:
            yield (
                f"the loss, {loss:.3g}, is not the cross-entropy of outputs and labels, "
                f"{plain:.3g}, and only {seen.accuracy:.0%} of the predictions are right: the "
                "training step has labels that do not belong to its images, or another loss"
            )

    def _wrong_pace(self) -> Iterator[str]:
        seen = self.witness
        first, last, highest = seen.losses[0], seen.losses[-1], max(seen.losses)
        rate = f"the learning rate, {', '.join(f'{rate:.1e}' for rate in seen.rates)},"
        course = f"the loss went from {first:.3g} to {last:.3g} in {len(seen.losses)} steps"
        if (moved := self._movement()) < STUCK:
            clipping = f", clipped to {self.clipping:.1e}" if self.clipping else ""
            yield (
                f"{course}, and the weights moved by {moved:.1e} of their size: {rate} is too low "
                f"for gradients of norm {seen.grad_norms[0]:.1e}{clipping}"
            )
        if last > first:
            yield f"{course}, and was {highest:.3g} between: {rate} is too high"
        if constant := self._constant():
            yield self._dead_units() or constant
        if dead := self._dead_units():
            yield f"{course}: {dead}"
        if self.still_falling:
            yield f"{course}, and still falls: {rate} is too low"

    def _no_chance(self) -> Iterator[str]:
        images, labels = self.batch
        first, highest = self.witness.losses[0], max(self.witness.losses)
        if highest > 3 * first:
            rate = max(self.witness.rates)
            yield f"the loss rose from {first:.3g} to {highest:.3g}: lr {rate:.1e} is too high"
        kinds, same = images.flatten(1).unique(dim=0, return_inverse=True)
        if torch.stack([same, labels]).unique(dim=1).shape[1] > len(kinds):
            yield "the batch has equal images with different labels"

    def _too_weak(self) -> str:
        loss, logits = self.witness.losses[-1], self._logits_of_evaluation
        dropout = max((m.p for m in self.after.modules() if isinstance(m, _DropoutNd)), default=0)
        without = loss if logits is None else cross_entropy(logits, self.batch[1]).item()
        if dropout > 0.5 and without < 0.8 * loss:
            return (
                f"the loss stays at {loss:.3g}: dropout of {dropout} is too much for this network"
            )
        parameters = sum(p.numel() for p in self.after.parameters())
        return (
            f"the loss stays at {loss:.3g} and the accuracy at {self.witness.accuracy:.2f}: the "
            f"network, of {parameters:,} parameters, can't tell these images apart"
        )

    def _constant(self) -> str:
        logits = self._logits_of_evaluation
        if logits is None or logits.std(0).max() > 1e-3 * (1 + logits.abs().max()):
            return ""
        return "the outputs are the same for every image, which does not reach them"

    @cached_property
    def _logits_of_evaluation(self) -> Tensor | None:
        with torch.no_grad():
            logits = self.after.eval()(self.batch[0])
        return logits if isinstance(logits, Tensor) and logits.ndim == 2 else None

    def _movement(self) -> float:
        """How far the trained parameters went, relative to their size before."""
        after = dict(self.after.named_parameters())
        before = {n: p.detach().cpu() for n, p in self.before.named_parameters() if p.requires_grad}
        size = nn.utils.get_total_norm(list(before.values()))
        moved = nn.utils.get_total_norm([after[n].detach() - p for n, p in before.items()])
        return (moved / size).item()

    def _dead_units(self) -> str:
        """The layer with the most units that are 0 for every image, if these are nearly all."""
        dead: dict[str, float] = {}

        def measure(name: str, output: Tensor) -> None:
            share = (output <= 0).flatten(1).all(0).double().mean().item()
            dead[name] = max(share, dead.get(name, 0.0))

        self._watch(nn.ReLU, measure)
        name = max(dead, key=dead.__getitem__, default="")
        if dead.get(name, 0.0) < DEAD:
            return ""
        return f"{dead[name]:.0%} of the units of {name} (ReLU) are 0 for every image"

    def _origin(self) -> str:
        """The first layer that gives values that are not finite."""
        first: list[str] = []

        def measure(name: str, output: Tensor) -> None:
            if not first and not output.isfinite().all():
                first.append(name)

        if not self.batch[0].isfinite().all():
            return ": the images are not finite"
        self._watch(nn.Module, measure)
        losses, rates = self.witness.losses, self.witness.rates
        if losses and max(losses) > 3 * losses[0]:
            grown = (
                f": it had grown from {losses[0]:.3g} to {max(losses):.3g}, so the learning rate"
            )
            return f"{grown}, {max(rates):.1e}, is too high"
        if first:
            return f": {first[0]} is the first layer whose output is not finite"
        return (
            ": all layers are finite, so it arises after the last one, as by log or division of 0, "
            "by the slope of sqrt or norm at 0, or by the limits of the precision"
        )

    def _watch(self, kind: type[nn.Module], measure: Callable[[str, Tensor], None]) -> None:
        """Call `measure` with name and output of each layer, in order, for the batch."""

        def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
            return lambda module, args, output: measure(name, output.detach())

        layers = [
            (n, m)
            for n, m in self.after.named_modules()
            if isinstance(m, kind) and not [*m.children()]
        ]
        handles = [layer.register_forward_hook(hook(name)) for name, layer in layers]
        with torch.no_grad(), suppress(RuntimeError):
            self.after.train()(self.batch[0])
        for handle in handles:
            handle.remove()
