"""List the runs in folders: how they stand, and what came out of them.

    %(prog)s
    %(prog)s runs/cifar --sort val/acc

Metrics are those of the best epoch so far: the monitored one, and with --all the others. What is
resumable was stopped or has crashed, and goes on from its last.ckpt with `fit --run FOLDER`.
"""

import json
import math
import os
import re
import shlex
import shutil
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reports.tables import Scale, table
from ..runs.direction import recorded_mode
from ..runs.errors import UsageError
from ..runs.folder import (
    CONFIG,
    LAST,
    RECORD,
    is_finished,
    is_free,
    read_config,
    read_record,
)
from ..runs.names import PROGRAM
from ..runs.sets import METRICS, Record, read_metrics
from .table import OptionParser

KEPT = 3  # columns that are always shown: run, monitored metric or sorted column, status
LONG = 32  # characters to which the name of a run is shortened in favour of another column
NARROWEST = 8  # characters of a shortened column
WIDEST = 200  # characters of a line, where the output is no terminal


def find(folder: Path) -> set[Path]:
    """Run folders, whole or not."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name one with runs, or train first")
    return {path.parent for path in folder.rglob(RECORD)} | set(folder.rglob("version_*/"))


def look(run: Path) -> Record:
    """The record of a run and how it stands, or what is wrong with it."""
    row: Record = {"run": str(run), "status": "starting", "resumable": False, "metrics": {}}
    try:
        training = not is_free(run)  # before the record is read, which is written at the end
        if training and not (run / RECORD).exists():
            return row
        record = read_record(run)
        monitor = read_config(run).get("monitor", "val/loss")
        started = time.localtime((run / CONFIG).stat().st_mtime)
        record["when"] = time.strftime("%Y-%m-%d %H:%M:%S", started)
        record["monitor"] = str(monitor)
        stopped_by = record["stopped_by"]
        if stopped_by is None:
            record |= _so_far(run, record)
        record["seconds"] = round(record["seconds"])
        record["metrics"] = {k: v for k, v in record["metrics"].items() if math.isfinite(v)}
        finished = is_finished(record)
        if finished or training:
            return row | record | {"status": "finished" if finished else "running"}
        stopped = re.match("SIG|KeyboardInterrupt|max_time", stopped_by or "")
        status = f"stopped by {stopped_by}" if stopped else f"crashed: {stopped_by or 'killed'}"
        return row | record | {"status": status, "resumable": _is_whole(run / LAST)}
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        cause = error.__cause__ or error
        file = Path(getattr(cause, "filename", None) or RECORD).name
        reason = getattr(cause, "strerror", None) or str(cause).removeprefix(f"{run / RECORD} ")
        return row | {"status": f"broken: {file}: {reason}"}


def _is_whole(checkpoint: Path) -> bool:
    return checkpoint.is_file() and zipfile.is_zipfile(checkpoint)


def _so_far(run: Path, record: Record) -> Record:
    """What `metrics.csv` says of a run that has not written down its end."""
    rows, monitor = read_metrics(run), record["monitor"]
    if not (values := [value for _, value in rows.get(monitor, [])]):
        return {}
    mode = recorded_mode(monitor, [record])
    newest = len(values) - 1  # unless it is known which is better
    best = values.index((max if mode == "max" else min)(values)) if mode else newest
    whole = {k: v for k, v in rows.items() if k.startswith("val/") and len(v) == len(values)}
    took = max((run / METRICS).stat().st_mtime - (run / RECORD).stat().st_mtime, 0)
    found = {"epochs": int(rows["epoch"][-1][1]) + 1, "seconds": record["seconds"] + took}
    return found | {"metrics": {name: points[best][1] for name, points in whole.items()}}


def order(rows: Sequence[Record], key: str) -> list[Record]:
    """Rows by a column or a metric, the best or newest first, and those without it last.

    Of a metric of which no run says which values are better, the lowest comes first.
    """

    def value(row: Record) -> tuple[Any, ...]:
        found = (row | row["metrics"]).get(key)
        return (isinstance(found, str), found) if isinstance(found, int | float | str) else ()

    if rows and not any(map(value, rows)):
        known = [item for row in rows for item in (row | row["metrics"]).items()]
        names = {name for name, found in known if isinstance(found, int | float | str)}
        raise UsageError(f"--sort {key}: no run has it; there are {', '.join(sorted(names))}")
    metric = any(key in row["metrics"] for row in rows)
    down = key == "when" or (metric and recorded_mode(key, rows) == "max")
    return sorted(sorted(rows, key=value, reverse=down), key=lambda row: not value(row))


def describe(rows: Sequence[Record], key: str, width: int | None = None) -> str:
    """The table, and how the newest of the runs that can be resumed goes on.

    Args:
        rows: Records of the runs.
        key: Column or metric that they are sorted by, if any.
        width: Characters of a line; by default every column is shown, in full.
    """
    measured = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    monitored = list(dict.fromkeys(row["monitor"] for row in rows if "monitor" in row))
    tests = [f"test/{name.removeprefix('val/')}" for name in monitored]
    first = [name for name in dict.fromkeys([*monitored, key]) if name in measured]
    last = [name for name in tests if name in measured and name not in first]
    metrics = [*first, *(last if width else (name for name in measured if name not in first))]
    columns = ["run", *metrics, "seed", "epochs", "seconds", "when", "status"]
    cells = [columns]
    for row in rows:
        shown = row | {name: Scale(name, 1e-3).value(v) for name, v in row["metrics"].items()}
        shown["status"] += ", resumable" * row["resumable"]
        cells.append(["" if shown.get(name) is None else str(shown[name]) for name in columns])
    if width:
        chosen = ["run", key if key in first else first[0]] if first else ["run"]
        more = [key] if key in columns else []
        cells = fit(cells, [*chosen, "status", *more, *first, "epochs", *last, "when"], width)
    again = max((r for r in rows if r["resumable"]), key=lambda r: r["when"], default=None)
    unknown = key in metrics and recorded_mode(key, rows) is None
    note = f"\n\nNo run says whether a lower or a higher {key} is better: the lowest comes first."
    hint = f"\n\nThe newest that can go on: {PROGRAM} fit --run "
    return table(cells) + note * unknown + (hint + shlex.quote(again["run"]) if again else "")


def fit(cells: list[list[str]], wanted: Sequence[str], width: int) -> list[list[str]]:
    """The wanted columns of a table, as many as there is room for, the first ones in any case.

    What is still too wide is shortened, the widest column first.
    """
    widths = {column[0]: max(map(len, column)) for column in zip(*cells, strict=True)}
    least = widths | {"run": min(widths["run"], LONG)}
    kept: list[str] = []
    for name in dict.fromkeys(wanted):
        if len(kept) < KEPT or 1 + sum(least[k] + 3 for k in [*kept, name]) <= width:
            kept.append(name)
    room = {name: widths[name] for name in kept}
    while 1 + sum(size + 3 for size in room.values()) > width and max(room.values()) > NARROWEST:
        room[max(room, key=room.__getitem__)] -= 1
    shown = [(cells[0].index(name), room[name]) for name in cells[0] if name in kept]
    return [[shorten(row[i], size) for i, size in shown] for row in cells]


def shorten(text: str, size: int) -> str:
    """Text without its middle, if it is longer than so many characters."""
    if len(text) <= size:
        return text
    end = (size - 1) // 2
    return f"{text[: size - 1 - end]}…{text[len(text) - end :]}"


def main(args: list[str]) -> int:
    """The command."""
    parser = OptionParser("runs", str(__doc__))
    parser.add_argument("folders", nargs="*", default=["runs"], metavar="FOLDER")
    parser.add_argument("--sort", metavar="NAME", help="of a column or a metric: best first")
    parser.add_argument("--all", action="store_true", help="show all columns, in full")
    parser.add_argument("--json", action="store_true", help="print the run records")
    options = parser.parse_args(args)
    runs = set[Path]().union(*(find(Path(folder)) for folder in options.folders))
    rows = list(map(look, sorted(runs, key=lambda run: (run.parent, len(run.name), run.name))))
    rows = order(rows, options.sort) if options.sort else rows
    width = None if options.all else shutil.get_terminal_size((WIDEST, 0)).columns
    nothing = f"No runs in {', '.join(options.folders)}."
    text = describe(rows, options.sort, width) if rows else nothing
    try:
        print(json.dumps(rows, indent=2) if options.json else text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
