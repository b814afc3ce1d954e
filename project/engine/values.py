"""What inputs and targets may be: tensors, dicts of tensors, or datasets on disk that give these.

Legend: N examples of the data set, B examples of a batch.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .targets import kind

# A tensor with a row for each example, or several of them by name.
Values: TypeAlias = Tensor | dict[str, Tensor]
# All values of a data set: in memory, or read one by one, without the dimension of examples.
Source: TypeAlias = Values | Dataset[Tensor] | Dataset[dict[str, Tensor]]
# The usual source of images: uint8 (N, C, H, W), or a dataset of uint8 (C, H, W).
Images: TypeAlias = Tensor | Dataset[Tensor]
# Inputs and targets of a batch, both `Values`. Any, since only the user's code knows which.
Batch: TypeAlias = tuple[Any, Any]


def count(source: Source) -> int:
    """Return the number of examples.

    Raises:
        ValueError: If the source is of another type, or its tensors differ in length.
    """
    if isinstance(source, Tensor) and source.ndim:
        return len(source)
    if isinstance(source, Dataset):
        return len(source)  # type: ignore[arg-type]  # torch leaves it to map-style datasets
    if isinstance(source, dict) and source and all(isinstance(v, Tensor) for v in source.values()):
        sizes = {name: len(value) for name, value in source.items()}
        if len(set(sizes.values())) == 1:
            return next(iter(sizes.values()))
        raise ValueError(f"the tensors of a dict have other numbers of examples: {sizes}")
    raise ValueError(
        f"{kind(source)} was given where inputs or targets are expected: give a tensor with a row "
        "for each example, a dict of such tensors, or a map-style Dataset"
    )


def rows(values: Values, indices: Tensor) -> Values:
    """Copy some examples, int64 (B,), which is several times faster than `values[indices]`."""
    if isinstance(values, Tensor):
        return values.index_select(0, indices)
    return {name: value.index_select(0, indices) for name, value in values.items()}


def first(values: Any, size: int) -> Any:
    """Return the first examples of a batch."""
    if isinstance(values, dict):
        return {name: value[:size] for name, value in values.items()}
    return values[:size]


def stack(examples: Sequence[Any]) -> Any:
    """Make a batch of examples: tensors, dicts of tensors, or lists of these."""
    one = examples[0]
    if isinstance(one, dict):
        return {name: torch.stack([example[name] for example in examples]) for name in one}
    if isinstance(one, list):
        return [stack(column) for column in zip(*examples, strict=True)]
    return torch.stack(list(examples))
