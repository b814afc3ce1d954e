"""An overview of runs and their status: finished, running, stopped, crashed or broken."""

import math
import os
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .direction import recorded_mode
from .folder import CONFIG, LAST, METRICS, RECORD, read_config
from .lock import is_free
from .record import Record, load_record, status
from .sets import read_metrics


@dataclass(frozen=True)
class Row:
    """A run folder in the table.

    Args:
        run: Path of the run folder.
        status: Status of the run, in words.
        record: Record of the run, with the best metrics so far; None if it can't be read.
        monitor: Name of the monitored metric.
        when: Time of the first start.
        resumable: Whether `fit --run` can continue it.
    """

    run: Path
    status: str
    record: Record | None = None
    monitor: str | None = None
    when: str | None = None
    resumable: bool = False

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that are finite, since JSON has no infinity and no NaN."""
        known = self.record.metrics.items() if self.record else ()
        return {name: value for name, value in known if math.isfinite(value)}

    def to_json(self) -> dict[str, Any]:
        """Return the run record, together with the status and what else the row shows."""
        found = {"run": str(self.run), "status": self.status, "resumable": self.resumable}
        found |= {"metrics": self.metrics}
        if self.record is None:
            return found
        seconds = {"seconds": round(self.record.seconds)}
        known = {"when": self.when, "monitor": self.monitor}
        return self.record.to_json() | seconds | known | found

    def values(self) -> dict[str, Any]:
        """Return the values that columns can show, by the names of the columns."""
        return self.to_json() | self.metrics


def find(folder: Path) -> set[Path]:
    """Return the run folders in a folder, including incomplete ones."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name one with runs, or train first")
    return {path.parent for path in folder.rglob(RECORD)} | set(folder.rglob("version_*/"))


def look(run: Path) -> Row:
    """Return the row of a run; if its files are broken, the status says what is wrong."""
    try:
        locked = not is_free(run)  # checked before reading the record, which changes at the end
        if locked and not (run / RECORD).exists():
            return Row(run, "starting")
        record = load_record(run)
        monitor = str(read_config(run).get("monitor", "val/loss"))
        started = time.localtime((run / CONFIG).stat().st_mtime)
        record = _so_far(record, monitor) if record.stopped_by is None else record
    except OSError as error:
        return Row(run, f"broken: {Path(error.filename or RECORD).name}: {error.strerror}")
    except ValueError as error:
        return Row(run, f"broken: {error}".replace(f"{run}{os.sep}", ""))
    resumable = not record.is_finished and not locked and _is_whole(run / LAST)
    when = time.strftime("%Y-%m-%d %H:%M:%S", started)
    return Row(run, status(record, locked), record, monitor, when, resumable)


def _is_whole(checkpoint: Path) -> bool:
    return checkpoint.is_file() and zipfile.is_zipfile(checkpoint)


def _so_far(record: Record, monitor: str) -> Record:
    """Fill the record of an unfinished run with the best metrics so far, from `metrics.csv`."""
    run = record.run
    rows = read_metrics(run)
    if not (values := [value for _, value in rows.get(monitor, [])]):
        return record
    mode = recorded_mode(monitor, [record])
    newest = len(values) - 1  # used if the better direction is unknown
    best = values.index((max if mode == "max" else min)(values)) if mode else newest
    whole = {k: v for k, v in rows.items() if k.startswith("val/") and len(v) == len(values)}
    took = max((run / METRICS).stat().st_mtime - (run / RECORD).stat().st_mtime, 0)
    return replace(
        record,
        epochs=int(rows["epoch"][-1][1]) + 1,
        seconds=record.seconds + took,
        metrics={name: points[best][1] for name, points in whole.items()},
    )
