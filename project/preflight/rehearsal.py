"""A short training of a copy of the model on one batch, and what was seen in it."""

import itertools
import math
import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..engine.internals import without_schedules
from ..engine.progress import StepBar, shows_progress
from ..engine.values import Batch
from .copies import bare_trainer, copy_of, unseen
from .goal import SMALL, Goal, takes
from .layers import few, layers_in_mode


class BadStepError(Exception):
    """Ends a rehearsal within a step, so that the weights before it can be looked at."""


@dataclass
class Seen:
    """What one batch did to a model, step by step."""

    losses: list[float] = field(default_factory=list)  # that the training step returned
    own_losses: list[float] = field(default_factory=list)  # of the objective, for the outputs
    outputs: Any = None  # of the newest step, if `forward` returns what the objective takes
    right: float = math.nan  # share of them that are right, if that can be told
    succeeded: bool = False  # the batch is learnt by heart
    out_of_time: bool = False  # before the last step
    rates: list[float] = field(default_factory=list)  # of the groups of the optimiser
    decays: list[float] = field(default_factory=list)  # weight decay of the groups
    outside: list[str] = field(default_factory=list)  # trainable, and not in the optimiser
    silent: list[str] = field(default_factory=list)  # trainable, and never had a gradient
    evaluating: list[str] = field(default_factory=list)  # layers, within the first step
    leftover: bool = False  # whether gradients of the first step are there in the second one
    error: str = ""  # that ended the training
    finite: bool = True  # losses and gradients, up to the error

    @property
    def own_loss(self) -> float:
        """The objective's loss of the newest outputs, infinite if they are not known."""
        return self.own_losses[-1] if self.own_losses else math.inf

    @property
    def gaps(self) -> list[float]:
        """How far each loss is from the objective's loss of the outputs."""
        pairs = zip(self.losses, self.own_losses, strict=False)
        return [abs(loss - own) for loss, own in pairs]

    @property
    def still_falling(self) -> bool:
        losses = self.losses
        return len(losses) >= 40 and fmean(losses[-20:]) < 0.97 * fmean(losses[-40:-20])


class Witness(Callback):
    """Records what one batch does to a model, and ends the training when that is known.

    Args:
        goal: Goal of the model, if it is known.
        targets: Targets of the batch.
        learning: Whether to end when the batch is learnt by heart.
        budget_s: Seconds after which it ends.
    """

    def __init__(
        self, goal: Goal | None, targets: Any, learning: bool, budget_s: float = math.inf
    ) -> None:
        self.goal, self.targets, self.learning = goal, targets, learning
        self.enough = -math.inf
        self.deadline = time.monotonic() + budget_s
        self.seen = Seen()
        self.parameters: list[nn.Parameter] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.optimizers:
            self._end("configure_optimizers returns no optimiser")
        without_schedules(trainer)
        groups = trainer.optimizers[0].param_groups
        for group in groups:  # at the peak, whatever the schedule is
            group["lr"] = group.get("max_lr", group.get("initial_lr", group["lr"]))
        self.parameters = [p for group in groups for p in group["params"]]
        held = {id(p) for p in self.parameters}
        trained = [(n, p) for n, p in pl_module.named_parameters() if p.requires_grad]
        self.seen.rates = [float(group["lr"]) for group in groups]
        self.seen.decays = [float(group.get("weight_decay", 0)) for group in groups]
        self.seen.outside = [n for n, p in trained if id(p) not in held]
        self.seen.silent = [n for n, _ in trained]
        pl_module.register_forward_hook(self._see)

    def _see(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if takes(self.goal, outputs, self.targets):
            self.seen.outputs = apply_to_collection(outputs, Tensor, _detached)

    def on_before_backward(self, trainer: L.Trainer, model: Any, loss: Tensor) -> None:
        seen = self.seen
        if not loss.isfinite():
            self._end(f"the loss of step {len(seen.losses)} is {loss.item()}", finite=False)
        if not loss.requires_grad:
            self._end("the loss has no graph: something in the step detaches it")
        if not seen.losses:
            seen.evaluating = layers_in_mode(model, training=False)
        if len(seen.losses) == 1:
            gradients = [p.grad for p in self.parameters]
            seen.leftover = any(g is not None and bool(g.any()) for g in gradients)

    def on_before_optimizer_step(self, trainer: L.Trainer, model: Any, *_: Any) -> None:
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        plugin = trainer.precision_plugin
        scaled = isinstance(plugin, MixedPrecision) and plugin.scaler is not None  # skips the step
        if not scaled and not get_total_norm(gradients.values()).isfinite():
            bad = few([n for n, gradient in gradients.items() if not gradient.isfinite().all()])
            step = len(self.seen.losses)
            self._end(f"the gradient of {bad} is not finite at step {step}", finite=False)
        silent = self.seen.silent
        self.seen.silent = [n for n in silent if n not in gradients or not gradients[n].any()]

    def on_train_batch_end(self, trainer: L.Trainer, _: Any, outputs: Any, *__: Any) -> None:
        if not outputs:
            self._end("training_step returned None, which skips the step")
        seen, loss = self.seen, outputs["loss"].item()
        seen.losses.append(loss)
        if self.goal is not None and seen.outputs is not None:
            seen.own_losses.append(self.goal.loss(seen.outputs, self.targets))
            seen.right = self.goal.share_right(seen.outputs, self.targets)
        step = len(seen.losses)
        if step == 1 and self.learning:
            self.enough = self._enough(loss)
        seen.succeeded = loss < self.enough and not seen.right < 1
        seen.out_of_time = time.monotonic() > self.deadline and step < trainer.max_steps
        # What no further step can change; a parameter may well have its first gradient later.
        broken = step == 2 and (seen.leftover or seen.evaluating)
        trainer.should_stop = bool(seen.succeeded or seen.out_of_time or broken)

    def _enough(self, first_loss: float) -> float:
        """Return the loss below which there is no more to find out."""
        goal, outputs = self.goal, self.seen.outputs
        learnt = None if goal is None else goal.learnt(outputs, self.targets)
        return SMALL * first_loss if learnt is None else learnt

    def _end(self, error: str, finite: bool = True) -> None:
        self.seen.error, self.seen.finite = error, finite
        raise BadStepError


def _detached(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.float() if tensor.is_floating_point() else tensor


def rehearse(
    trainer: L.Trainer,
    model: L.LightningModule,
    batch: Batch,
    steps: int,
    goal: Goal | None,
    learning: bool = False,
    budget_s: float = math.inf,
) -> tuple[Seen, L.LightningModule]:
    """Train a copy of the model on one batch, with its own step, precision and optimiser, at the
    optimiser's learning rate.

    Args:
        trainer: Trainer whose device, precision and clipping are used.
        model: Model to copy; it stays as it is.
        batch: Inputs and targets of each step.
        steps: Highest number of optimiser steps.
        goal: Goal of the model, if it is known.
        learning: Whether to end when the batch is learnt by heart.
        budget_s: Seconds after which it ends; one step is always taken.

    Returns:
        What was seen, and the copy, on the CPU.
    """
    twin = copy_of(model)
    witness = Witness(goal, batch[1], learning, budget_s)
    with unseen():
        small = bare_trainer(
            trainer,
            max_steps=steps,
            max_epochs=trainer.max_epochs,  # the length of some schedules
            limit_train_batches=steps,  # else an epoch has no end
            limit_val_batches=0,
            callbacks=[witness, *([StepBar()] if shows_progress(trainer) else [])],
        )
        try:
            small.fit(twin, itertools.repeat(batch))
        except BadStepError:
            pass
        except IndexError as error:  # cross-entropy's
            witness.seen.error = f"a label is beyond the outputs of the model: {error}"
    return witness.seen, twin.cpu()
