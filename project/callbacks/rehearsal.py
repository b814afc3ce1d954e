"""A short training of a copy of the model on one batch, and what was seen in it."""

import copy
import itertools
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from project.data.stream import Split, StreamDataModule

Batch = tuple[Tensor, Tensor]


class BadStepError(Exception):
    """Ends a rehearsal within a step, so that the weights before it can be looked at."""


class Witness(Callback):
    """Records what one batch does to a model, step by step.

    Args:
        labels: int64 (N,), of the batch.
        enough: Loss below which, once all predictions are right, training stops.
        smoothing: Of the labels, in the training step.
    """

    def __init__(self, labels: Tensor, enough: float = -math.inf, smoothing: float = 0.0) -> None:
        self.labels, self.enough, self.smoothing = labels, enough, smoothing
        self.losses: list[float] = []
        self.grad_norms: list[float] = []
        self.logits: Tensor | None = None  # of the newest step, if `forward` returns (N, C)
        self.cross_entropies: list[float] = []  # of each step's logits and labels
        self.rates: list[float] = []  # of the parameter groups
        self.weight_decay = 0.0
        self.outside: list[str] = []  # trainable parameters that the optimiser does not hold
        self.silent: list[str] = []  # those that it holds and that never had a gradient
        self.evaluating: list[str] = []  # layers in evaluation mode within a training step
        self.leftover = False  # gradients of the step before, at the time of the next backward
        self.error = ""  # that ended the training
        self.finite = True  # losses and gradients, up to the error

    @property
    def accuracy(self) -> float:
        """Of the newest step; not a number if `forward` returns no logits."""
        if self.logits is None:
            return math.nan
        return (self.logits.argmax(1) == self.labels).double().mean().item()

    @property
    def gap(self) -> float:
        """Mean distance of the loss from the cross-entropy of logits and labels."""
        pairs = list(zip(self.losses, self.cross_entropies, strict=False))
        return fmean(abs(a - b) for a, b in pairs) if pairs else math.inf

    @property
    def succeeded(self) -> bool:
        return bool(self.losses) and self.losses[-1] < self.enough and not self.accuracy < 1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.strategy.lr_scheduler_configs = []
        groups = trainer.optimizers[0].param_groups
        for group in groups:  # at the peak, whatever the schedule is
            group["lr"] = group.get("max_lr", group.get("initial_lr", group["lr"]))
        self.rates = [float(group["lr"]) for group in groups]
        self.weight_decay = max(float(group.get("weight_decay", 0)) for group in groups)
        held = {id(parameter) for group in groups for parameter in group["params"]}
        trainable = [(n, p) for n, p in pl_module.named_parameters() if p.requires_grad]
        self.outside = [name for name, p in trainable if id(p) not in held]
        self.silent = [name for name, p in trainable if id(p) in held]
        pl_module.register_forward_hook(self._see)

    def _see(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 2 and len(output) == len(self.labels):
            self.logits = output.detach().float().cpu()

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        if not loss.isfinite():
            self.finite = False
            raise BadStepError(f"the loss of step {len(self.losses)} is {loss.item()}")
        if not self.evaluating:
            modules = pl_module.named_modules()
            self.evaluating = [n for n, m in modules if not m.training and mode_matters(m)]
        if len(self.losses) == 1:
            groups = trainer.optimizers[0].param_groups
            gradients = [p.grad for group in groups for p in group["params"]]
            self.leftover = any(g is not None and bool(g.any()) for g in gradients)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        named = {n: p.grad for n, p in pl_module.named_parameters() if p.grad is not None}
        norm = nn.utils.get_total_norm(list(named.values())).item()
        self.grad_norms.append(norm)
        scaled = getattr(trainer.precision_plugin, "scaler", None)  # which skips such a step
        if not math.isfinite(norm) and scaled is None:
            self.finite = False
            names = [name for name, gradient in named.items() if not gradient.isfinite().all()]
            raise BadStepError(
                f"the gradient of {few(names)} is not finite at step {len(self.losses)}"
            )
        self.silent = [n for n in self.silent if n not in named or not named[n].any()]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        if not outputs:
            raise BadStepError("training_step returned None, which skips the step")
        self.losses.append(outputs["loss"].item())
        if self.logits is not None:
            expected = cross_entropy(self.logits, self.labels, label_smoothing=self.smoothing)
            self.cross_entropies.append(expected.item())
        if self.succeeded:
            trainer.should_stop = True


def mode_matters(module: nn.Module) -> bool:
    """Whether a layer that is trained works otherwise in evaluation mode."""
    if isinstance(module, _BatchNorm):  # without gradients it is one of a frozen part
        return module.weight is None or module.weight.requires_grad
    return isinstance(module, _DropoutNd) and module.p > 0


def few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@contextmanager
def unseen() -> Iterator[None]:
    """Leave the random state as it is, and say nothing."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    with isolate_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def first_examples(trainer: L.Trainer, split: Split, size: int) -> Batch | None:
    """Examples without augmentation, the same at each call and on each rank; None of a regression.

    Args:
        trainer: Of a run that is set up.
        split: "train" or "val".
        size: Number of examples, at most.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    if isinstance(data, StreamDataModule):
        return _with_classes(data.examples(split, size)) if split in data.sets else None
    loop = trainer.fit_loop if split == "train" else trainer.fit_loop.epoch_loop.val_loop
    loader = loop._data_source.dataloader()
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        total = len(loader.dataset)  # type: ignore[arg-type]
        order = torch.randperm(total, generator=torch.Generator().manual_seed(0)).tolist()
        subset: Dataset[Any] = Subset(loader.dataset, order[:size])
        loader = DataLoader(subset, size, collate_fn=loader.collate_fn)
    with unseen():
        batch = next(iter(copy.copy(loader)), None)  # a copy, so that its position stays
    if not isinstance(batch, Sequence) or len(batch) != 2:
        return None
    return _with_classes((batch[0][:size], batch[1][:size]))


def _with_classes(batch: Batch) -> Batch | None:
    labels = batch[1]
    return None if labels.ndim > 1 or labels.is_floating_point() else batch


def small_trainer(trainer: L.Trainer, **kwargs: Any) -> L.Trainer:
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
    trainer: L.Trainer, model: L.LightningModule, batch: Batch, num_steps: int, witness: Witness
) -> L.LightningModule:
    """Train a copy of the model on one batch with its own step, precision and optimiser.

    The learning rate is the optimiser's, constant. Model, data and random state stay as they are.

    Returns:
        The trained copy, on the CPU.
    """
    twin = copy_of(model)
    with unseen():
        try:
            small = small_trainer(
                trainer,
                max_steps=num_steps,
                max_epochs=trainer.max_epochs,  # the length of some schedules
                limit_val_batches=0,
                callbacks=[witness],
            )
            small.fit(twin, itertools.repeat(batch))
        except BadStepError as stop:
            witness.error = str(stop)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            witness.error = "the loss has no graph: something in the step detaches it"
        except IndexError as error:
            if "out of bounds" not in str(error):
                raise
            witness.error = f"a label is beyond the outputs of the model: {error}"
    return twin.cpu()
