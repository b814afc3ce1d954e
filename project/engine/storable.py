"""What a checkpoint can hold: tensors and plain values, which can be read without running code."""

import argparse
import types
from collections import Counter, OrderedDict
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import jsonargparse
import numpy as np
import torch
from torch import Tensor

SCALARS: tuple[Any, ...] = (bool, int, float, complex, str, bytes, bytearray, type(None))
# Types of torch that `torch.load(weights_only=True)` reads.
NATIVE = (Tensor, torch.Size, torch.dtype, torch.device, torch.layout)
NAMESPACES = (argparse.Namespace, jsonargparse.Namespace, types.SimpleNamespace)
FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType)


def storable(value: Any, name: str) -> Any:
    """Return a value in plain types: a path as text, an Enum by its name, an array as a list.

    A value that is plain already is returned itself, not a copy.

    Args:
        value: Value at any depth of a checkpoint.
        name: Name of the value, for the error.

    Raises:
        ValueError: If a part of it can't be held safely by a checkpoint.
    """
    if type(value) in SCALARS or isinstance(value, NATIVE):
        return value
    if isinstance(value, Enum):
        return storable(value.value if isinstance(value, int | str) else value.name, name)
    if isinstance(value, PurePath | np.dtype):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return storable(value.tolist(), name)
    if isinstance(value, FUNCTIONS):
        return f"{value.__module__}.{value.__qualname__}"
    if (base := next((kind for kind in SCALARS if isinstance(value, kind)), None)) is not None:
        return base(value)
    return _container(vars(value) if isinstance(value, NAMESPACES) else value, name)


def _container(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        pairs = {
            storable(key, name): storable(part, f"{name}.{key}") for key, part in value.items()
        }
        same = all(a is b and value[a] is pairs[b] for a, b in zip(value, pairs, strict=False))
        return value if same and type(value) in (dict, OrderedDict, Counter) else pairs
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            parts = [storable(part, f"{name}[{i}]") for i, part in enumerate(value)]
            same = all(a is b for a, b in zip(value, parts, strict=True))
            plain = set if kind is frozenset else kind
            return value if same and type(value) is plain else plain(parts)
    raise ValueError(
        f"a checkpoint can't hold {name}, of type {type(value).__module__}."
        f"{type(value).__qualname__}: make it a number, a text, a tensor, or a list or dict of "
        "them, or keep it out of save_hyperparameters (ignore=[…])"
    )
