"""Which targets are classes, and how targets and outputs are described in messages."""

from typing import Any

from torch import Tensor


def are_classes(targets: Any) -> bool:
    """Return whether targets are one class for each example: whole numbers, (N,)."""
    if not isinstance(targets, Tensor) or targets.ndim != 1:
        return False
    return not (targets.is_floating_point() or targets.is_complex())


def kind(values: Any) -> str:
    """Describe the type and shape of inputs, targets or outputs in words."""
    if not isinstance(values, Tensor):
        return f"a {type(values).__name__}"
    sizes = ["N", *map(str, values.shape[1:])] if values.ndim else []
    comma = "," if len(sizes) == 1 else ""
    return f"{str(values.dtype).removeprefix('torch.')} ({', '.join(sizes)}{comma})"
