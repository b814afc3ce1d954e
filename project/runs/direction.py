"""The better direction of a metric, lower or higher, which may be unknown but is never guessed.

Nothing here imports torch, so that commands that only read runs start at once.
"""

from collections.abc import Iterable
from typing import Literal

from .record import Record

Mode = Literal["min", "max"]

BY_NAME: dict[str, Mode] = {"loss": "min", "acc": "max"}  # parts of a metric's name


def mode_by_name(metric: str) -> Mode | None:
    """Return the better direction of a loss or an accuracy, such as val/loss or val/acc/cat."""
    return next((BY_NAME[part] for part in reversed(metric.split("/")) if part in BY_NAME), None)


def recorded_mode(metric: str, records: Iterable[Record]) -> Mode | None:
    """Return the better direction of a metric according to the run records, or else to its name.

    Args:
        metric: Name of the metric, such as test/f1 or val/recall/cat. The recorded direction of
            val/f1 applies to the first, and that of val/recall to the second.
        records: Run records. Those of older versions hold no directions.

    Returns:
        The direction, or None if it is not recorded or if the records contradict each other.
    """
    modes = [(name.partition("/")[2] or name, m) for r in records for name, m in r.modes.items()]
    name = metric.partition("/")[2] or metric
    while name:
        found = {mode for known, mode in modes if known == name and mode in ("min", "max")}
        if len(found) == 1:
            return "min" if "min" in found else "max"
        if found:
            return None
        name = name.rpartition("/")[0]
    return mode_by_name(metric)
