"""Warnings about settings of a class that are lost when a later config names another class."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..runs.plain import read_yaml
from ..runs.settings import flatten


def _kind(value: Any) -> str:
    return str(value).rpartition(".")[2]


def _owners(name: str) -> list[str]:
    """Return the names of the options that contain an option, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def dropped_settings(
    files: Iterable[Path], options: Iterable[str], final: dict[str, Any]
) -> list[str]:
    """Return a sentence for each replaced class, with the settings that are lost with it.

    Args:
        files: Configs, in their order.
        options: Names of the options that the command line sets.
        final: Resulting configuration, in plain types.
    """
    settings = dict(flatten(final))
    classes: dict[str, str] = {}
    given: dict[str, tuple[Any, dict[str, str]]] = {}
    for file in files:
        for name, value in dict(flatten(read_yaml(file))).items():
            classes[name] = _kind(value)
            owners = {owner: classes[owner] for owner in _owners(name) if owner in classes}
            given[name] = value, owners
    lost: dict[str, list[str]] = {}
    for name, (value, owners) in given.items():
        now = settings.get(name)
        if name in options or now == value or (isinstance(now, str) and _kind(now) == _kind(value)):
            continue
        for owner, old in owners.items():
            if (new := _kind(settings.get(owner))) != old:
                sentence = f"{new} replaces {old} as --{owner}, and drops its settings: "
                lost.setdefault(sentence, []).append(name.removeprefix(f"{owner}."))
                break
    return [f"{sentence}{', '.join(names)}." for sentence, names in lost.items()]
