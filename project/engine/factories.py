"""Factories such as jsonargparse makes for an option that takes a class."""

from collections.abc import Callable
from functools import partial
from typing import Any


def class_of(factory: Callable[..., Any]) -> type[Any] | None:
    """Return the class that a factory makes, or None if it is a function that does not say."""
    # The class itself, a partial of it, or jsonargparse's partial with it among the arguments.
    parts = (factory.func, *factory.args) if isinstance(factory, partial) else (factory,)
    return next((part for part in parts if isinstance(part, type)), None)


def given_to(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a factory will pass on, without those that are None."""
    keywords = factory.keywords if isinstance(factory, partial) else {}
    return {name: value for name, value in keywords.items() if value is not None}
