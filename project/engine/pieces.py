"""A list of the parts of a checkpoint, so that a missing one is noticed when it is loaded."""

import hashlib
from typing import Any

WHOLE = ("state_dict", "callbacks")  # weights are compared elsewhere, callbacks one by one


def pieces(checkpoint: dict[str, Any]) -> dict[str, str]:
    """Return a hash of the structure of each part of a checkpoint, and of each callback's state.

    The structure is names, types, shapes and lengths. Values are covered by the file's checksums.
    """
    parts = {name: part for name, part in checkpoint.items() if name not in WHOLE}
    parts |= {f"callbacks.{name}": s for name, s in checkpoint.get("callbacks", {}).items()}
    return {name: hashlib.sha256(_shape(part).encode()).hexdigest() for name, part in parts.items()}


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        inside = sorted(f"{_name(key)}:{_shape(part)}" for key, part in value.items())
        return f"{{{','.join(inside)}}}"
    if isinstance(value, list | tuple):
        inside = [_shape(part) for part in value]
        return f"[{len(inside)}*{inside[0]}]" if len(set(inside)) == 1 else f"[{','.join(inside)}]"
    if hasattr(value, "shape"):  # a tensor, without importing torch
        return f"{type(value).__name__}{tuple(value.shape)}"
    return type(value).__name__


def _name(key: Any) -> str:
    return "path" if isinstance(key, str) and "/" in key else repr(key)  # a run can be moved
