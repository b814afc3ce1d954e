"""Shared by the speed benchmarks: interleaved timing, rows with a verdict, a table and JSON.

A machine's speed changes by the minute, so competitors take turns, and only ratios are compared.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L
import torch

from project.runs.provenance import package_versions

RESULTS = Path(__file__).parent / "results"
REPEATS = 7

Row = dict[str, Any]


class Clock(L.Callback):
    """Records when the epochs and steps of a fit begin, and when training ends.

    An epoch lasts until the next one begins or training ends, so it includes its validation,
    checkpoints and rows, but not what a run does once. A step lasts until the next step of the
    epoch begins, so it includes loading the next batch.
    """

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self.steps: list[list[float]] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.epochs.append(time.perf_counter())
        self.steps.append([])

    def on_train_batch_start(self, *_: Any) -> None:
        self.steps[-1].append(time.perf_counter())

    def on_train_end(self, *_: Any) -> None:
        self.epochs.append(time.perf_counter())

    @property
    def epochs_s(self) -> list[float]:
        return [end - begin for begin, end in pairwise(self.epochs)]

    @property
    def steps_s(self) -> list[float]:
        return [end - begin for steps in self.steps for begin, end in pairwise(steps)]


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Hide everything that is printed."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        yield


def seconds(function: Callable[[], Any]) -> float:
    """Return the time of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def interleave(
    competitors: Mapping[str, Callable[[], Any]], repeats: int, warm_up: int = 1
) -> dict[str, list[Any]]:
    """Return each competitor's results; all run once per round, and warm-up rounds are dropped.

    Every other round runs in reverse order, so that none always follows the same competitor.
    """
    found: dict[str, list[Any]] = {name: [] for name in competitors}
    for k in range(warm_up + repeats):
        for name in list(competitors)[:: 1 if k % 2 else -1]:
            result = competitors[name]()
            if k >= warm_up:
                found[name].append(result)
    return found


def versus(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: float | None,
    **more: Any,
) -> Row:
    """Return our time over theirs as a row: the ratio of medians, and the range over the rounds.

    Args:
        name: Name of the row.
        ours: Our seconds in each round.
        theirs: Their seconds in the same rounds.
        target: Largest acceptable ratio; None if there is no target.
        more: Additional entries of the row.
    """
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    row = {"name": name, "ratio": median(ours) / median(theirs), "target": target}
    row |= {"met": None if target is None else row["ratio"] <= target}
    row |= {"ours_s": median(ours), "theirs_s": median(theirs)}
    return row | {"lowest": ratios[0], "highest": ratios[-1], "repeats": len(ours)} | more


def faster(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: float | None,
    **more: Any,
) -> Row:
    """Return a row like that of `versus`, inverted: how many times faster we are, at least."""
    row = versus(name, theirs, ours, target, **more)
    row |= {"ours_s": median(ours), "theirs_s": median(theirs), "at_least": True}
    return row | {"met": None if target is None else row["ratio"] >= target}


def hardware() -> str:
    """Return the processor, the cores that this process may use, and the GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    text = f"{names[0] if names else platform.processor() or platform.machine()}, {cores} cores"
    if torch.cuda.is_available():
        text += f", {torch.cuda.get_device_name()}"
    return text


def load() -> float | None:
    """Return the load of the last minute: measurements on a busy machine are not reliable."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def save(command: str, rows: Sequence[Row], path: Path, **more: Any) -> None:
    """Write rows as JSON, with the hardware and versions they were measured on."""
    result = {"command": command, "hardware": hardware(), "versions": package_versions()}
    result |= {"threads": torch.get_num_threads(), "load": load(), **more, "rows": list(rows)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def report(command: str, rows: Sequence[Row], path: Path, **more: Any) -> None:
    """Print the rows as a table, and write them."""
    print(f"\n{command}   on {hardware()}, {torch.get_num_threads()} threads, load {load()}")
    print(f"{'ratio':>9}  {'target':>9}  {'':7}what")
    for row in rows:
        sign = "≥" if row.get("at_least") else "≤"
        target = "" if row["target"] is None else f"{sign} {row['target']:.2f}"
        verdict = {True: "met", False: "missed", None: ""}[row["met"]]
        print(f"{row['ratio']:9.3f}  {target:>9}  {verdict:7}{row['name']}")
    save(command, rows, path, **more)
