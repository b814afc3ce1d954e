"""The number of examples in a batch, whatever it is made of."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def batch_size_of(batch: Any) -> int | None:
    """Return the number of examples in a batch, or None if there is no tensor in it.

    This is the common length of all tensors in the batch; or the length of its lists, if it is for
    example a pair of a list of images and a list of targets; or the length of its first tensor.
    """
    sizes = list(_lengths(batch))
    if len(set(sizes)) > 1 and isinstance(batch, list | tuple):
        lists = {len(part) if isinstance(part, list | tuple) else 0 for part in batch}
        if len(lists) == 1 and 0 not in lists:
            return lists.pop()
    return sizes[0] if sizes else None


def _lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, Tensor):
        yield from batch.shape[:1]
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _lengths(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from _lengths(value)
    elif is_dataclass(batch):
        for field in fields(batch):
            yield from _lengths(getattr(batch, field.name))
