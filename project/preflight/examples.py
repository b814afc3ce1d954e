"""The examples that the checks look at, whatever inputs and targets are made of."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..engine.batch_size import batch_size_of
from ..engine.datamodule import Split, StreamDataModule
from ..engine.internals import make_loader
from ..engine.values import Batch, Values, first
from .copies import unseen


def first_examples(trainer: L.Trainer, split: Split, size: int) -> Batch | None:
    """Return inputs without augmentation and targets, the same on each rank.

    It is None if there are none, or if a batch is not a pair of tensors or dicts of tensors with a
    row for each example.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    batch: Any = None
    if isinstance(data, StreamDataModule):
        batch = data.examples(split, size) if split in data.sets else None
    else:
        loader = make_loader(trainer, split)
        with unseen():
            batch = _of_loader(loader, size)
    if not isinstance(batch, Sequence) or len(batch) != 2 or not all(map(_is_values, batch)):
        return None
    inputs, targets = (first(values, size) for values in batch)
    return (inputs, targets) if batch_size_of(inputs) == batch_size_of(targets) else None


def _of_loader(loader: Any, size: int) -> Any:
    """Return examples of a loader, whose position stays."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return next(iter(copy.copy(loader)), None)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(loader.dataset), generator=generator)  # type: ignore[arg-type]
    return loader.collate_fn([loader.dataset[i] for i in order[:size].tolist()])


def _is_values(values: Any) -> bool:
    tensors = list(values.values()) if isinstance(values, dict) else [values]
    return bool(tensors) and all(isinstance(t, Tensor) and t.ndim for t in tensors)


def apply(change: Callable[[Tensor], Tensor], values: Values) -> Values:
    """Return values with each tensor changed."""
    if isinstance(values, dict):
        return {name: change(value) for name, value in values.items()}
    return change(values)


def zeros_like(values: Values) -> Values:
    """Return values with zeros for all numbers; masks, which are bool, stay."""
    return apply(lambda t: t if t.dtype == torch.bool else torch.zeros_like(t), values)


def equal(one: Any, other: Any) -> bool:
    """Return whether two batches, of whatever collections, hold the same values."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def are_images(inputs: Any) -> bool:
    """Return whether inputs are to be called images: float (N, C, H, W)."""
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.is_floating_point()


def as_matrix(values: Values) -> Tensor:
    """Return values as a float64 matrix with a row for each example."""
    tensors = values.values() if isinstance(values, dict) else [values]
    return torch.cat([t.flatten(1) if t.ndim > 1 else t[:, None] for t in tensors], 1).double()
