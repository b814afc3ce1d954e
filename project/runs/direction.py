"""Whether a lower or a higher value of a metric is better: known, or not known, but never guessed.

Nothing here imports torch, so that commands that only read runs start at once.
"""

from collections.abc import Iterable
from typing import Any, Literal

Mode = Literal["min", "max"]

BY_NAME: dict[str, Mode] = {"loss": "min", "acc": "max"}  # the last part of a metric's name
MODES = "modes"  # the key of the run record


def mode_by_name(metric: str) -> Mode | None:
    """The better direction of a loss or an accuracy (`val/loss`, `val/acc`), and of no others."""
    return BY_NAME.get(metric.rsplit("/", 1)[-1])


def recorded_mode(metric: str, records: Iterable[dict[str, Any]]) -> Mode | None:
    """The better direction of a metric by the run records, or else by its name.

    Args:
        metric: Name of the metric, such as test/f1. What is recorded of val/f1 holds for it too.
        records: Run records; those of runs before directions were recorded say nothing.

    Returns:
        None if no record says so, or if they contradict each other.
    """
    found = {
        mode
        for record in records
        for name, mode in record.get(MODES, {}).items()
        if _without_stage(name) == _without_stage(metric) and mode in ("min", "max")
    }
    return found.pop() if len(found) == 1 else None if found else mode_by_name(metric)


def _without_stage(metric: str) -> str:
    return metric.split("/", 1)[-1]
