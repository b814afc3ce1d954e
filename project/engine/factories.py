"""Factories, such as those that jsonargparse makes for an option that takes a class."""

from collections.abc import Callable
from typing import Any


def class_of(factory: Callable[..., Any]) -> type[Any] | None:
    """Return the class that a factory makes, unless it is a function that does not say."""
    # The class itself, a partial of it, or jsonargparse's partial with it among the arguments.
    parts = (factory, getattr(factory, "func", None), *getattr(factory, "args", ()))
    return next((part for part in parts if isinstance(part, type)), None)


def given_to(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a factory will pass on, without those that are None."""
    keywords = getattr(factory, "keywords", {})
    return {name: value for name, value in keywords.items() if value is not None}
