"""The order in which an epoch shows its examples, and the number of its batches."""

import torch
from torch import Tensor

from .keyed import generator


def shuffled(examples: Tensor, seed: int, epoch: int) -> Tensor:
    """Return the examples in an order that depends on the seed and the epoch."""
    return examples[torch.randperm(len(examples), generator=generator(seed, epoch))]


def class_balanced(indices: Tensor, labels: Tensor, size: int, seed: int, epoch: int) -> Tensor:
    """Return the examples of an epoch, int64 (size,), equally many of each class.

    Classes take turns, and so do the examples of each class. The turns continue from epoch to
    epoch, so that all examples of a class are used equally often.

    Args:
        indices: The examples to draw from, int64.
        labels: Class of each example of the data set, int64 (N,).
        size: Number of examples in an epoch.
        seed: Random seed of the order.
        epoch: Epoch, counted from 0.
    """
    turn = epoch * size + torch.arange(size)
    mixed = shuffled(indices, seed, -1)
    sorted_labels, places = labels[mixed].sort(stable=True)
    counts = sorted_labels.unique_consecutive(return_counts=True)[1]
    label, first = turn % len(counts), counts.cumsum(0) - counts
    return mixed[places[first[label] + turn // len(counts) % counts[label]]]


def count_batches(
    examples: int, batch_size: int, ranks: int, training: bool, drop_last: bool
) -> int:
    """Count the batches of an epoch; the last one may be smaller if the ranks can share it.

    Raises:
        ValueError: If they can't share it equally in training, or if there is no batch at all.
    """
    rest = examples % batch_size
    if training and not drop_last and rest > ranks and rest % ranks:
        raise ValueError(
            f"the last training batch has {rest} examples, which {ranks} ranks can't share "
            "equally: set --data.drop_last true, or another --data.train_size"
        )
    keep_rest = rest > ranks if training else rest > 0
    number = examples // batch_size + (keep_rest and not drop_last)
    if number == 0:
        raise ValueError(
            f"{examples} examples make no batch of {batch_size}: set a smaller --data.batch_size"
        )
    return number
