"""The runs that count in a report.

Every finished run counts, whatever started it: hand-picking runs shows whatever you hoped for.
"""

import csv
import glob
import math
from collections.abc import Iterable
from pathlib import Path

from .files import NotRegularError, read_text
from .folder import METRICS, RECORD
from .record import Record, read_record

REPORT = "seed_noise.json"


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders in the folder of one name, in the order of their versions."""
    runs = [path.parent for path in folder.glob(f"version_*/{RECORD}")]
    return sorted(runs, key=lambda run: (len(run.name), run.name))


def read_metrics(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the optimiser step and the value of every row, by metric, including `epoch`."""
    path = run / METRICS
    if not path.exists():
        return {}
    metrics: dict[str, list[tuple[int, float]]] = {}
    try:
        lines = read_text(path).splitlines(keepends=True)
        for row in csv.DictReader(line for line in lines if line.endswith("\n")):  # whole lines
            for name, value in row.items():
                if value and name != "step":
                    metrics.setdefault(name, []).append((int(row["step"]), float(value)))
    except NotRegularError:
        raise
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: it has rows that are not metrics of steps") from error
    if metrics and not all(
        math.isfinite(epoch) for _, epoch in metrics.get("epoch", [(0, math.nan)])
    ):
        raise ValueError(f"{path} is damaged: it has rows without an epoch")
    return metrics


def read_runs(runs: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """Return the records of the runs that can be read, and why the others can't be."""
    records, unreadable = [], []
    for run in runs:
        try:
            records.append(read_record(run))
        except ValueError as error:
            unreadable.append(str(error))
    return records, unreadable


def finished(
    runs: Iterable[Path], metric: str | None = None, sha256: str | None = None
) -> tuple[list[Record], list[str]]:
    """Return the records of the runs that count, by seed, and why the others do not.

    Args:
        runs: Paths of run folders.
        metric: Name of a metric that the runs must have.
        sha256: Hash of the config that the runs must have.
    """
    counted: dict[int, Record] = {}
    records, left_out = read_runs(runs)
    for record in records:
        seed, stopped_by = record.seed, record.stopped_by
        value = record.metrics.get(metric) if metric else 0.0
        twin = counted.get(seed)
        first = next(iter(counted.values()), record)
        if sha256 not in (None, record.config_sha256):
            reason = "another config"
        elif not record.has_ended:
            reason = f"stopped by {stopped_by}" if stopped_by else "not finished"
        elif value is None or not math.isfinite(value):
            reason = f"no {metric}" if value is None else f"{metric} is {value}"
        elif record.data_sha256 != first.data_sha256:
            reason = f"other data than {first.version}"
        elif twin:
            reason = f"the same seed as {twin.version}"
        else:
            counted[seed] = record
            continue
        left_out.append(f"{record.run} (seed {seed}): {reason}")
    return [counted[seed] for seed in sorted(counted)], left_out


def find_runs(spec: str) -> list[Path]:
    """Return the run folders named by paths, folders around them or globs, separated by commas."""
    runs: list[Path] = []
    for part in [spec] if Path(spec).exists() else spec.split(","):
        paths = [Path(p) for p in ([part] if Path(part).exists() else sorted(glob.glob(part)))]
        found = [run for p in paths for run in ([p] if (p / RECORD).is_file() else runs_in(p))]
        if not found:
            raise ValueError(f"{part} is neither a run folder nor a folder of runs")
        runs += found
    return list(dict.fromkeys(runs))
