"""Batches of inputs and targets, taken from memory or read from disk."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from .values import Batch, Source, first, rows, stack
from .workers import read_batches


class Together(Dataset[list[Any]]):
    """Several datasets side by side: an example is a list of theirs."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets

    def __getitem__(self, index: int) -> list[Any]:
        return [dataset[index] for dataset in self.datasets]

    def batch(self, indices: list[int]) -> list[Any]:
        """Return a batch of each dataset, read in this process."""
        return [stack(_examples(dataset, indices)) for dataset in self.datasets]


def _examples(dataset: Any, indices: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):  # torch's protocol for reading several at once
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


def read(
    inputs: Source, targets: Source, batches: list[Tensor], num_workers: int, seed: int
) -> Iterator[Batch]:
    """Yield inputs and targets of each batch; only what is on disk goes through processes.

    Args:
        inputs: Inputs of all examples.
        targets: Targets of all examples.
        batches: Indices of the examples of each batch, int64.
        num_workers: Number of processes that read datasets.
        seed: Seed of the random numbers of these processes.
    """
    if not isinstance(inputs, Dataset) and not isinstance(targets, Dataset):
        for batch in batches:
            yield rows(inputs, batch), rows(targets, batch)
        return
    stored = [source for source in (inputs, targets) if isinstance(source, Dataset)]
    for batch, read_parts in zip(batches, _load(stored, batches, num_workers, seed), strict=True):
        parts = iter(read_parts)
        x, y = (
            first(next(parts), len(batch)) if isinstance(source, Dataset) else rows(source, batch)
            for source in (inputs, targets)
        )
        yield x, y


def _load(
    stored: list[Any], batches: list[Tensor], num_workers: int, seed: int
) -> Iterable[list[Any]]:
    """Return for each batch a list of what the datasets hold of it."""
    # A rank without a share of the last batch reads one example to drop it, for its shape.
    indices = [batch.tolist() or [0] for batch in batches]
    together = Together(stored)
    if num_workers:
        return read_batches(together, indices, num_workers, seed)
    return map(together.batch, indices)
