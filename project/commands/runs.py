"""List the runs in folders: how they stand, and what they have measured.

    %(prog)s
    %(prog)s runs/cifar --sort val/acc

Metrics are those of the best epoch so far: the monitored one, and with --all the others. A
resumable run was stopped or has crashed; `fit --run FOLDER` continues it from its last.ckpt.
"""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reports.tables import Scale, fit, table
from ..runs.direction import Mode, recorded_mode
from ..runs.errors import UsageError
from ..runs.names import PROGRAM
from ..runs.overview import Row, find, look
from .table import OptionParser

WIDEST = 200  # characters of a line, if the output is not a terminal


def order(rows: Sequence[Row], key: str) -> list[Row]:
    """Sort rows by a column or a metric: the best or newest first, those without it last.

    If no run records which values of a metric are better, the lowest comes first.
    """

    def value(row: Row) -> tuple[Any, ...]:
        found = row.values().get(key)
        return (isinstance(found, str), found) if isinstance(found, int | float | str) else ()

    if rows and not any(map(value, rows)):
        known = [item for row in rows for item in row.values().items()]
        names = {name for name, found in known if isinstance(found, int | float | str)}
        raise UsageError(f"--sort {key}: no run has it; there are {', '.join(sorted(names))}")
    metric = any(key in row.metrics for row in rows)
    down = key == "when" or (metric and _mode(rows, key) == "max")
    return sorted(sorted(rows, key=value, reverse=down), key=lambda row: not value(row))


def _mode(rows: Sequence[Row], metric: str) -> Mode | None:
    return recorded_mode(metric, [row.record for row in rows if row.record])


def describe(rows: Sequence[Row], key: str | None, width: int | None = None) -> str:
    """Return the table, and the command that continues the newest of the resumable runs.

    Args:
        rows: Runs, in their order.
        key: Column or metric that they are sorted by, if any.
        width: Characters of a line; by default every column is shown, in full.
    """
    first, metrics = _metrics(rows, key, full=width is None)
    columns = ["run", *metrics, "seed", "epochs", "seconds", "when", "status"]
    cells = [columns, *(_cells(row, columns) for row in rows)]
    if width:
        chosen = ["run", key if key in first else first[0]] if first else ["run"]
        more = [key] if key in columns else []
        others = metrics[len(first) :]
        wanted = [*chosen, "status", *more, *first, "epochs", *others, "when"]
        cells = fit(cells, [name for name in wanted if name], width)
    parts = [table(cells)]
    if key in metrics and _mode(rows, key) is None:
        parts.append(
            f"No run says whether a lower or a higher {key} is better: the lowest comes first."
        )
    resumable = [row for row in rows if row.resumable]
    if again := max(resumable, key=lambda row: row.when or "", default=None):
        run = shlex.quote(str(again.run))
        parts.append(f"To continue the newest of the resumable runs: {PROGRAM} fit --run {run}")
    return "\n\n".join(parts)


def _metrics(rows: Sequence[Row], key: str | None, full: bool) -> tuple[list[str], list[str]]:
    """Return the metrics that come first in a table, and all that it has room for if it is full."""
    measured = list(dict.fromkeys(name for row in rows for name in row.metrics))
    monitored = list(dict.fromkeys(row.monitor for row in rows if row.monitor))
    first = [name for name in dict.fromkeys([*monitored, key]) if name in measured]
    tests = [f"test/{name.removeprefix('val/')}" for name in monitored]
    others = measured if full else [name for name in tests if name in measured]
    return first, [*first, *(name for name in others if name not in first)]


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    shown = row.values() | {name: Scale(name, 1e-3).value(v) for name, v in row.metrics.items()}
    shown["status"] += ", resumable" * row.resumable
    return ["" if shown.get(name) is None else str(shown[name]) for name in columns]


def main(args: list[str]) -> int:
    """Run the command."""
    parser = OptionParser("runs", str(__doc__))
    parser.add_argument("folders", nargs="*", default=["runs"], metavar="FOLDER")
    parser.add_argument(
        "--sort", metavar="NAME", help="column or metric to sort by, the best first"
    )
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
        print(
            json.dumps([row.to_json() for row in rows], indent=2) if options.json else text,
            flush=True,
        )
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
