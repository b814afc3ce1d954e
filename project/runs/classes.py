"""Comparison of classes by their names, since their numbers depend on which other folders exist.

Nothing here imports torch, since reports compare the classes of runs too.
"""

from collections.abc import Sequence
from typing import Any

NAMED = 5  # most classes that a message names


def saved_classes(checkpoint: dict[str, Any]) -> list[str] | None:
    """Return the names of a checkpoint's classes, in the order of their labels.

    Returns:
        The names, or None if the task has no classes or the checkpoint holds only weights.
    """
    for state in checkpoint.values():
        if isinstance(state, dict) and isinstance(facts := state.get("preprocessing"), dict):
            return _names(facts.get("class_names"))
    arguments = checkpoint.get("hyper_parameters")
    return _names(arguments.get("class_names")) if isinstance(arguments, dict) else None


def _names(value: Any) -> list[str] | None:
    listed = isinstance(value, list) and value and all(isinstance(name, str) for name in value)
    return value if listed else None


def difference(
    saved: Sequence[str],
    now: Sequence[str],
    places: tuple[str, str] = ("in the checkpoint", "in the data"),
) -> str:
    """Return how two lists of classes differ, in words; empty if they are equal.

    Args:
        saved: Names of the first list.
        now: Names of the second list.
        places: Words that say where each list was found.
    """
    if list(saved) == list(now):
        return ""
    if same_names(saved, now):
        name = next(a for a, b in zip(saved, now, strict=True) if a != b)
        i, k = list(saved).index(name), list(now).index(name)
        order = f"{name!r} is class {i} {places[0]} and class {k} {places[1]}"
        return f"the same names in another order: {order}"
    counts = f"{len(saved)} classes {places[0]}, {len(now)} {places[1]}"
    only = [
        _only([name for name in names if name not in set(others)], place)
        for names, others, place in ((saved, now, places[0]), (now, saved, places[1]))
    ]
    return f"{counts}: {' and '.join(filter(None, only))}"


def _only(names: Sequence[str], place: str) -> str:
    if not names:
        return ""
    shown = ", ".join(repr(name) for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'} only {place}"


def same_names(saved: Sequence[str], now: Sequence[str]) -> bool:
    """Return whether two lists hold the same classes, in any order."""
    return sorted(saved) == sorted(now)


def positions(saved: Sequence[str], now: Sequence[str]) -> list[int]:
    """Return the index in `saved` of each class of `now`; both hold the same names."""
    number = {name: i for i, name in enumerate(saved)}
    return [number[name] for name in now]
