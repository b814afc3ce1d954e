"""Curves of a run, drawn from its `metrics.csv` at the end or while it is training."""

import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..runs.direction import Mode, recorded_mode
from ..runs.files import NotRegularError, write_whole
from ..runs.folder import METRICS, RECORD
from ..runs.record import Record, read_record
from ..runs.sets import read_metrics
from .fonts import glyphs_for
from .panels import MOST, Panel, choose_panels, draw_legend, grid
from .tables import shorten

CURVES = "curves.png"
STYLES = {  # distinguishable even without colours
    "train": ("training", "#0072B2", "-", "o"),
    "val": ("validation", "#D55E00", "--", "s"),
}
SPAN = 100  # ratio of the highest to the lowest loss above which the axis is logarithmic

NAMED = 10  # most classes in the legend
CLASS_COLORS = [f"C{i}" for i in range(NAMED)]
LONG = 24  # most characters of a class name in the legend

Points: TypeAlias = list[tuple[float, float]]
Mark: TypeAlias = tuple[float, str]


def draw_curves(run: Path, monitor: str = "val/loss") -> Figure:
    """Draw each metric and the learning rate over the epochs, with the best epoch marked.

    Args:
        run: Path of the run folder. Until the first epoch is finished, steps are drawn instead.
        monitor: Name of the metric whose best value is marked as long as the run record names no
            best epoch, provided that the record or the name says whether lower or higher is better.
    """
    metrics = read_metrics(run)
    record = read_record(run) if (run / RECORD).is_file() else None
    length = _epoch_length(metrics, monitor)
    # The row of step s holds the results of s + 1 steps, but the learning rate of the next step.
    curves: dict[str, Points] = {
        name: [
            ((step + (not name.startswith("lr"))) / (length or 1), value) for step, value in rows
        ]
        for name, rows in metrics.items()
    }
    rates = [points for name, points in curves.items() if name.split("/")[0] == "lr"]
    mode = recorded_mode(monitor, [record] if record else [])
    best = _best(record, curves.get(monitor, []), mode)
    every = choose_panels(curves, monitor)
    shown = every[:MOST]
    xlabel = "epochs trained" if length else "optimiser steps"
    figure, panels = grid(len(shown) + bool(rates), xlabel)
    named = _named_classes(shown, monitor)
    for axes, panel in zip(panels, shown, strict=False):
        axes.set_ylabel(panel.title, parse_math=False)
        _draw_classes(axes, panel, curves, named)
        _draw_stages(axes, panel.metric, curves, best)
    if rates:
        _draw_rates(panels[-1], rates)
    draw_legend(figure, panels)
    title = f"{record.name} {record.version}, seed {record.seed}" if record else run.name
    left_out = len(every) - len(shown)
    title += f" ({left_out} more metrics in {METRICS})" if left_out else ""
    figure.suptitle(title, parse_math=False)
    return figure


def _named_classes(panels: Sequence[Panel], monitor: str) -> dict[str, str]:
    """Return the colours of the classes in the legend: the monitored class and the first ones."""
    labels = dict.fromkeys(label for panel in panels for label in panel.classes)
    monitored = monitor.split("/", 2)[-1]
    first = sorted(labels, key=lambda label: label != monitored)[:NAMED]
    return {label: CLASS_COLORS[i] for i, label in enumerate(first)}


def _draw_classes(
    axes: Axes, panel: Panel, curves: dict[str, Points], named: dict[str, str]
) -> None:
    """Draw a thin line for each class, of validation if it was measured."""
    for label in panel.classes:
        stages = [f"{stage}/{panel.metric}/{label}" for stage in ("val", "train")]
        points = next((curves[name] for name in stages if name in curves), [])
        known = label in named
        axes.plot(
            *_columns(points),
            color=named.get(label, "0.75"),
            marker="." if len(points) < 2 else "",
            linewidth=1 if known else 0.6,
            zorder=1.5 if known else 1,
            label=f"class {shorten(label, LONG)}" if known else "_",
        )


def _draw_rates(axes: Axes, rates: Sequence[Points]) -> None:
    axes.set_ylabel("learning rate")
    for points in rates:
        axes.plot(*_columns(points), color=STYLES["train"][1])
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", scilimits=(-2, 3))


def _draw_stages(axes: Axes, name: str, curves: dict[str, Points], best: Mark | None) -> None:
    """Draw training, validation and the best epoch, with the single batches behind them."""
    whole = {"": (name, "0.2", "-", "o")} if name in curves else {}  # a metric without a stage
    for stage, (label, color, line, marker) in (STYLES | whole).items():
        points = curves.get(f"{stage}/{name}".lstrip("/"), [])
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


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _epoch_length(metrics: dict[str, list[tuple[int, float]]], monitor: str) -> float | None:
    """Return the number of optimiser steps of an epoch, or None before the first is finished.

    A Task logs its training loss at the end of each epoch. For other models, the rows of the
    monitored metric are used.
    """
    name = next((name for name in ("train/loss", monitor) if name in metrics), None)
    if name is None:
        return None
    step = metrics[name][-1][0]
    return (step + 1) / (dict(metrics["epoch"])[step] + 1)


def _best(record: Record | None, monitored: Points, mode: Mode | None) -> Mark | None:
    """Return the position and the label of the mark of the best epoch; None without a mark."""
    if record and record.best_epoch is not None:
        return record.best_epoch + 1, f"best epoch {record.best_epoch + 1}"
    sign = 1 if mode == "min" else -1
    finite = [(sign * y, x) for x, y in monitored if math.isfinite(y)]
    if not finite or mode is None:
        return None
    x = min(finite)[1]
    return x, f"best so far, after {x:.4g}"


def save_figure(figure: Figure, path: Path) -> bytes:
    """Write a figure as PNG, so that at any instant there is a whole file, and return the PNG.

    If the file can't be written, only a warning is printed: no run ends because of a picture.
    """
    png = to_png(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, png)
    except (OSError, NotRegularError) as error:
        warnings.warn(f"can't write {path}: {error}", stacklevel=2)
    return png


def to_png(figure: Figure, dpi: int = 120) -> bytes:
    """Return a figure as PNG, at a resolution of `dpi` dots per inch."""
    buffer = io.BytesIO()
    with glyphs_for(figure):
        figure.savefig(buffer, dpi=dpi)
    return buffer.getvalue()
