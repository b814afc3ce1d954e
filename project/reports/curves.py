"""The curves of a run, from its `metrics.csv`, at the end or while it is running."""

import io
import math
import warnings
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from project.direction import Mode, recorded_mode
from project.files import NotRegularError, write_whole
from project.reports.runs import read_metrics
from project.run import RECORD, read_record

CURVES = "curves.png"
STYLES = {  # told apart without colours too
    "train": ("training", "#0072B2", "-", "o"),
    "val": ("validation", "#D55E00", "--", "s"),
}
SPAN = 100  # from the lowest to the highest loss, beyond which the axis is logarithmic

Points: TypeAlias = list[tuple[float, float]]
Mark: TypeAlias = tuple[float, str]


def draw_curves(run: Path, monitor: str = "val/loss") -> Figure:
    """Loss, accuracy and learning rate over the epochs, with the best epoch marked.

    Args:
        run: A run folder. Before the first epoch is finished, steps are drawn instead of epochs.
        monitor: Metric whose best value is marked as long as the run record names no best epoch,
            if the record or the name says whether its lowest or its highest value is the best.
    """
    metrics = read_metrics(run)
    record = read_record(run) if (run / RECORD).is_file() else {}
    length = _epoch_length(metrics)
    # A row of step s says what s + 1 steps have led to, but the learning rate of the next step.
    curves: dict[str, Points] = {
        name: [
            ((step + (not name.startswith("lr"))) / (length or 1), value) for step, value in rows
        ]
        for name, rows in metrics.items()
    }
    rates = {name: curves[name] for name in curves if name.split("/")[0] == "lr"}
    best = _best(record, curves.get(monitor, []), recorded_mode(monitor, [record]))
    titles = ["loss", "accuracy"] + (["learning rate"] if rates else [])
    figure = Figure(figsize=(3.5 * len(titles), 3.3), layout="constrained")
    panels = figure.subplots(1, len(titles), sharex="all")
    for axes, name in zip(panels, ("loss", "acc"), strict=False):
        _draw_stages(axes, name, curves, best)
    for points in rates.values():
        panels[2].plot(*_columns(points), color=STYLES["train"][1])
        panels[2].set_ylim(bottom=0)
        panels[2].ticklabel_format(axis="y", scilimits=(-2, 3))
    for axes, title in zip(panels, titles, strict=True):
        axes.set(xlabel="epochs trained" if length else "optimiser steps", ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.grid(alpha=0.3)
    title = "{name} {version}, seed {seed}".format_map(record) if record else run.name
    figure.suptitle(title, parse_math=False)
    return figure


def _draw_stages(axes: Axes, name: str, curves: dict[str, Points], best: Mark | None) -> None:
    """Training and validation, the best epoch, and the loss of single batches behind them."""
    for stage, (label, color, line, marker) in STYLES.items():
        points = curves.get(f"{stage}/{name}", [])
        broken = next((f"{x:.4g}" for x, y in points if not math.isfinite(y)), None)
        label += f", not finite from {broken}" if broken else ""
        few = marker if len(points) < 40 else ""
        if points:
            x, y = _columns(points)
            axes.plot(x, y, line, color=color, marker=few, markersize=4, label=label)
    if best is not None:
        axes.axvline(best[0], color="0.4", linestyle=":", label=best[1])
    batches = curves.get(f"train/{name}_step", [])
    if batches:
        x, y = _columns(batches)
        label = "training, single batches"
        axes.plot(x, y, color=STYLES["train"][1], alpha=0.3, linewidth=1, zorder=1, label=label)
    values = [y for stage in STYLES for _, y in curves.get(f"{stage}/{name}", [])]
    finite = [y for y in [*values, *_columns(batches)[1]] if math.isfinite(y)]
    if name == "loss" and finite and 0 < min(finite) * SPAN < max(finite):
        axes.set_yscale("log")
    if axes.lines:
        axes.legend(fontsize=9)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _epoch_length(metrics: dict[str, list[tuple[int, float]]]) -> float | None:
    """Optimiser steps of an epoch, once there is a finished one."""
    if "train/loss" not in metrics:
        return None
    step = metrics["train/loss"][-1][0]
    return (step + 1) / (dict(metrics["epoch"])[step] + 1)


def _best(record: dict[str, Any], monitored: Points, mode: Mode | None) -> Mark | None:
    """Where the best epoch is marked, and what that is called."""
    if record.get("best_epoch") is not None:
        return record["best_epoch"] + 1, f"best epoch {record['best_epoch'] + 1}"
    sign = 1 if mode == "min" else -1
    finite = [(sign * y, x) for x, y in monitored if math.isfinite(y)]
    if not finite or mode is None:
        return None
    x = min(finite)[1]
    return x, f"best so far, after {x:.4g}"


def save_figure(figure: Figure, path: Path) -> bytes:
    """Write a figure as PNG, so that at any instant there is a whole one, and return the PNG.

    A disk that can't be written to is a warning: no run ends because of a picture.
    """
    png = to_png(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, png)
    except (OSError, NotRegularError) as error:
        warnings.warn(f"can't write {path}: {error}", stacklevel=2)
    return png


def to_png(figure: Figure, dpi: int = 120) -> bytes:
    """A figure as PNG, at so many dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi)
    return buffer.getvalue()
