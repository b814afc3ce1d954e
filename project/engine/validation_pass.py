"""A pass over the validation examples that keeps a value per example, which validation does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import lightning as L
import torch
from torch import Tensor

from .classification import Classification
from .datamodule import StreamDataModule
from .objective import Objective
from .targets import kind


@dataclass(frozen=True)
class Evaluated:
    """Results of a network on the first N validation examples, in their order."""

    losses: Tensor  # float32 (N,)
    classes: Tensor | None = None  # int64 (N,), the predicted classes, if there are classes
    probabilities: Tensor | None = None  # float32 (N,), probabilities of the predicted classes


def evaluate(
    trainer: L.Trainer, model: L.LightningModule, objective: Objective, num_batches: int
) -> Evaluated:
    """Evaluate a network on the validation batches of a run, without changing it.

    All ranks call this at the same time, and each evaluates its share.

    Raises:
        ValueError: If the outputs do not fit the objective.
        RuntimeError: If another rank has failed; all other ranks raise it.
    """
    found, failure = torch.zeros(0), None
    try:
        found = _share(trainer, model, objective, num_batches)
    except Exception as error:  # the user's network may fail, perhaps on this rank alone
        failure = error
    if not trainer.strategy.reduce_boolean_decision(failure is None):
        raise failure or RuntimeError("another process of the run has failed")
    losses, classes, probabilities = trainer.strategy.reduce(found, reduce_op="sum").cpu().unbind(1)
    if not isinstance(objective, Classification):
        return Evaluated(losses)
    return Evaluated(losses, classes.long(), probabilities)


@torch.no_grad()
def _share(
    trainer: L.Trainer, model: L.LightningModule, objective: Objective, num_batches: int
) -> Tensor:
    """Return loss, class and probability, float32 (N, 3), with zeros for other ranks' examples."""
    data: StreamDataModule = trainer.datamodule  # type: ignore[attr-defined]
    loader: Any = data.val_dataloader()  # a new one, since the trainer's keeps its position
    size = min(len(data.sets["val"][2]), num_batches * loader.batch_size)
    found = torch.zeros(size, 3, dtype=torch.float32, device=model.device)
    own = slice(trainer.global_rank, None, trainer.world_size)
    with evaluating(model):
        for k, batch in enumerate(islice(loader, num_batches)):
            outputs, targets = outputs_of(trainer, model, batch)
            share = found[k * loader.batch_size :][: loader.batch_size][own]
            share[:, 0] = objective.losses(outputs, targets)
            if isinstance(objective, Classification):
                _check_logits(outputs)
                share[:, 2], share[:, 1] = objective.predictions(outputs).max(1)
    return found


def outputs_of(trainer: L.Trainer, model: L.LightningModule, batch: Any) -> tuple[Any, Any]:
    """Return the outputs and the targets of a batch, in the run's precision and on its device."""
    batch = trainer.precision_plugin.convert_input(batch)
    inputs, targets = trainer.strategy.batch_to_device(batch)
    with trainer.precision_plugin.forward_context():
        outputs = model(inputs)
    return outputs.float() if isinstance(outputs, Tensor) else outputs, targets


def _check_logits(outputs: Any) -> None:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise ValueError(f"they need logits (N, classes), and the model gives {kind(outputs)}")


@contextmanager
def evaluating(model: L.LightningModule) -> Iterator[None]:
    """Put a network into evaluation mode, and restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
