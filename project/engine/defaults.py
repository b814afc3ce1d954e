"""Defaults of options that are objects, without making the objects."""

from dataclasses import field
from typing import Any


def by_default(kind: type) -> Any:
    """Return a dataclass field that the command line fills with an instance of a class.

    jsonargparse's `lazy_instance` does the same, but looks through all modules for its caller: a
    sixth of a second for each field, whenever the dataclass is imported.
    """
    path = f"{kind.__module__}.{kind.__qualname__}"
    return field(default_factory=lambda: {"class_path": path})
