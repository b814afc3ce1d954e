"""A short training of a copy of the model on one batch, and what was seen in it."""

import copy
import itertools
import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader, IterableDataset

from ..engine.datamodule import Split, StreamDataModule
from ..engine.internals import BatchNorm, Dropout, make_loader, without_schedules
from ..engine.objective import CrossEntropy
from ..engine.progress import StepBar, shows_progress
from ..engine.protocols import HasObjective
from ..engine.targets import are_classes
from ..engine.values import Batch

MOSTLY = 0.5


class BadStepError(Exception):
    """Ends a rehearsal within a step, so that the weights before it can be looked at."""


class Witness(Callback):
    """Records what one batch does to a model, step by step, and ends it when that is known.

    Args:
        labels: Labels of the batch, int64 (N,).
        smoothing: Label smoothing of the loss.
        enough: Loss below which it ends, if all predictions are right.
        budget_s: Seconds after which it ends.
    """

    def __init__(
        self, labels: Tensor, smoothing: float, enough: float, budget_s: float = math.inf
    ) -> None:
        self.labels, self.smoothing, self.enough = labels, smoothing, enough
        self.deadline = time.monotonic() + budget_s
        self.losses: list[float] = []
        self.gaps: list[float] = []  # of each loss to the cross-entropy of its logits
        self.logits: Tensor | None = None  # of the newest step, if `forward` returns (N, C)
        self.accuracy, self.cross_entropy = math.nan, math.inf  # of these
        self.succeeded = False
        self.out_of_time = False  # before the last of its steps
        self.groups: list[dict[str, Any]] = []  # of the optimiser
        self.silent: list[str] = []  # trainable parameters that never had a gradient
        self.evaluating: list[str] = []  # layers in evaluation mode within the first step
        self.leftover = False  # whether its gradients are still there in the second one
        self.error = ""  # that ended the training
        self.finite = True  # losses and gradients, up to the error

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        without_schedules(trainer)
        self.groups = trainer.optimizers[0].param_groups
        for group in self.groups:  # at the peak, whatever the schedule is
            group["lr"] = group.get("max_lr", group.get("initial_lr", group["lr"]))
        self.silent = [n for n, p in pl_module.named_parameters() if p.requires_grad]
        pl_module.register_forward_hook(self._see)

    def _see(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 2 and len(output) == len(self.labels):
            self.logits = output.detach().float().cpu()

    def on_before_backward(self, trainer: L.Trainer, model: Any, loss: Tensor) -> None:
        if not loss.isfinite():
            self._end(f"the loss of step {len(self.losses)} is {loss.item()}", finite=False)
        if not loss.requires_grad:
            self._end("the loss has no graph: something in the step detaches it")
        if not self.losses:
            self.evaluating = layers_in_mode(model, training=False)
        if len(self.losses) == 1:
            gradients = [p.grad for group in self.groups for p in group["params"]]
            self.leftover = any(g is not None and bool(g.any()) for g in gradients)

    def on_before_optimizer_step(self, trainer: L.Trainer, model: Any, *_: Any) -> None:
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        scaled = getattr(trainer.precision_plugin, "scaler", None)  # which skips such a step
        if scaled is None and not get_total_norm(gradients.values()).isfinite():
            bad = few([n for n, gradient in gradients.items() if not gradient.isfinite().all()])
            self._end(
                f"the gradient of {bad} is not finite at step {len(self.losses)}", finite=False
            )
        self.silent = [n for n in self.silent if n not in gradients or not gradients[n].any()]

    def on_train_batch_end(self, trainer: L.Trainer, _: Any, outputs: Any, *__: Any) -> None:
        if not outputs:
            self._end("training_step returned None, which skips the step")
        loss = outputs["loss"].item()
        self.losses.append(loss)
        if self.logits is not None:
            self.cross_entropy = self.cross_entropy_of(self.logits)
            self.gaps.append(abs(loss - self.cross_entropy))
            self.accuracy = (self.logits.argmax(1) == self.labels).double().mean().item()
        self.succeeded = loss < self.enough and not self.accuracy < 1
        step = len(self.losses)
        self.out_of_time = time.monotonic() > self.deadline and step < trainer.max_steps
        # What no further step can change; a parameter may well have its first gradient later.
        broken = step == 2 and (self.leftover or self.evaluating)
        trainer.should_stop = bool(self.succeeded or self.out_of_time or broken)

    def cross_entropy_of(self, logits: Tensor) -> float:
        return cross_entropy(logits, self.labels, label_smoothing=self.smoothing).item()

    def _end(self, error: str, finite: bool = True) -> None:
        self.error, self.finite = error, finite
        raise BadStepError


def layers_in_mode(model: nn.Module, training: bool) -> list[str]:
    """Names of layers in training or evaluation mode, of those to which it makes a difference."""

    # A part of which everything is frozen may be in evaluation mode as a whole.
    frozen = [n for n, m in model.named_modules() if n and not training and is_frozen(m)]

    def matters(name: str, module: nn.Module) -> bool:
        if isinstance(module, BatchNorm):  # without gradients it is one of a frozen part
            return module.weight is None or module.weight.requires_grad
        inside = any(name.startswith(f"{part}.") for part in frozen)
        return isinstance(module, Dropout) and module.p > 0 and not inside

    return [n for n, m in model.named_modules() if m.training == training and matters(n, m)]


def is_frozen(module: nn.Module) -> bool:
    """Whether a module has parameters, and none of them is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def frozen_share(model: nn.Module) -> float:
    """Share of the parameters, by their elements, that are not trained."""
    total = sum(p.numel() for p in model.parameters())
    return sum(p.numel() for p in model.parameters() if not p.requires_grad) / max(total, 1)


def mostly_frozen(model: nn.Module) -> bool:
    """Whether a network need not be able to learn a batch by heart."""
    return frozen_share(model) > MOSTLY


def few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def smoothing_of(model: nn.Module) -> float:
    """Return the label smoothing of a network's objective."""
    objective = model.objective if isinstance(model, HasObjective) else None
    return objective.label_smoothing if isinstance(objective, CrossEntropy) else 0.0


@contextmanager
def unseen() -> Iterator[None]:
    """Leave the random state as it is, and say nothing."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with isolate_rng(), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def first_examples(trainer: L.Trainer, split: Split, size: int) -> Batch | None:
    """Images without augmentation and labels, if these are classes: the same on each rank."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    batch: Any = None
    if isinstance(data, StreamDataModule):
        batch = data.examples(split, size) if split in data.sets else None
    else:
        loader = make_loader(trainer, split)
        with unseen():
            if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
                generator = torch.Generator().manual_seed(0)
                order = torch.randperm(len(loader.dataset), generator=generator)  # type: ignore[arg-type]
                batch = loader.collate_fn([loader.dataset[i] for i in order[:size].tolist()])
            else:  # a copy, so that its position stays
                batch = next(iter(copy.copy(loader)), None)
    if not isinstance(batch, Sequence) or len(batch) != 2:
        return None
    images, labels = batch
    known = isinstance(images, Tensor) and are_classes(labels)
    return (images[:size], labels[:size]) if known else None


def bare_trainer(trainer: L.Trainer, **kwargs: Any) -> L.Trainer:
    """A trainer with the device, precision and clipping of another, that leaves nothing behind."""
    device = trainer.strategy.root_device
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return L.Trainer(
        accelerator=device.type,
        devices=[device.index] if device.type == "cuda" else 1,
        plugins=[copy.deepcopy(trainer.precision_plugin)],
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        num_sanity_val_steps=0,
        log_every_n_steps=0,
        **dict.fromkeys(off, False),  # type: ignore[arg-type]
        **kwargs,
    )


def copy_of(model: L.LightningModule) -> L.LightningModule:
    """All of a model; not its compiled `forward`, which would compute with the model's weights."""
    twin = copy.deepcopy(model)
    vars(twin).pop("forward", None)
    return twin


def rehearse(
    trainer: L.Trainer,
    model: L.LightningModule,
    batch: Batch,
    steps: int,
    enough: float = -math.inf,
    budget_s: float = math.inf,
) -> tuple[Witness, L.LightningModule]:
    """Train a copy of the model on one batch with its own step, precision and optimiser, at the
    optimiser's learning rate.

    Args:
        trainer: Trainer whose device, precision and clipping are used.
        model: Model to copy; it stays as it is.
        batch: Images and labels of each step.
        steps: Optimiser steps at most.
        enough: Loss below which it ends, if all predictions are right.
        budget_s: Seconds after which it ends; one step is always done.

    Returns:
        What was seen, and the copy, on the CPU.
    """
    twin = copy_of(model)
    witness = Witness(batch[1], smoothing_of(model), enough, budget_s)
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
            witness.error = f"a label is beyond the outputs of the model: {error}"
    return witness, twin.cpu()
