"""What a checkpoint consists of, so that one that has lost a part is known when it is loaded."""

import hashlib
from typing import Any

WHOLE = ("state_dict", "callbacks")  # compared by name and shape elsewhere, or one by one


def pieces(checkpoint: dict[str, Any]) -> dict[str, str]:
    """Return a hash for each part of a checkpoint, and for each callback's, of what is in it.

    Names, types, shapes and lengths count, and no values: the checksums of the file cover those.
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
