"""Hashes of what examples hold, by which a resumed run recognises its data."""

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .values import Source

CHUNK = 1000  # examples that are copied at once


@runtime_checkable
class Identified(Protocol):
    """A dataset on disk that knows what each example holds without reading it again."""

    def identity(self, indices: Tensor) -> bytes:
        """Return what the examples of some indices hold, in their order."""


def content(source: Source, indices: Tensor) -> Iterator[Any]:
    """Yield what identifies some examples, in their order, as bytes or buffers.

    Raises:
        ValueError: If a dataset does not say what it holds.
    """
    if isinstance(source, Tensor):
        for chunk in indices.split(CHUNK):
            yield _buffer(source.index_select(0, chunk))
    elif isinstance(source, dict):
        for name in sorted(source):
            yield name.encode()
            yield from content(source[name], indices)
    elif isinstance(source, Identified):
        yield source.identity(indices)
    elif type(source).__repr__ is object.__repr__:
        raise ValueError(
            f"{type(source).__name__} needs a __repr__ that names its content, by which a resumed "
            "run recognises its data"
        )
    else:
        yield repr(source).encode(errors="surrogateescape")


def example_digest(source: Source, index: int) -> bytes:
    """Return a hash of what one example holds, 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(source, Tensor | Dataset):
        example: Any = source[index]
    else:
        example = {name: value[index] for name, value in source.items()}
    if isinstance(example, dict):
        for name in sorted(example):
            digest.update(name.encode())
            digest.update(_buffer(example[name]))
    else:
        digest.update(_buffer(example))
    return digest.digest()


def _buffer(tensor: Tensor) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
