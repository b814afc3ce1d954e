"""The curves of a run, from its `metrics.csv`, at the end or while it is running."""

import io
import math
import warnings
from pathlib import Path
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..runs.direction import Mode, recorded_mode
from ..runs.files import NotRegularError, write_whole
from ..runs.folder import RECORD
from ..runs.record import Record, read_record
from ..runs.sets import read_metrics
from .fonts import glyphs_for

CURVES = "curves.png"
STYLES = {  # told apart without colours too
    "train": ("training", "#0072B2", "-", "o"),
    "val": ("validation", "#D55E00", "--", "s"),
}
SPAN = 100  # from the lowest to the highest loss, beyond which the axis is logarithmic

Points: TypeAlias = list[tuple[float, float]]
Mark: TypeAlias = tuple[float, str]


def draw_curves(run: Path, monitor: str = "val/loss") -> Figure:
    """Loss, accuracy, the monitored metric and the learning rate over the epochs: those that there
    are, with the best epoch marked.

    Args:
        run: A run folder. Before the first epoch is finished, steps are drawn instead of epochs.
        monitor: Metric whose best value is marked as long as the run record names no best epoch,
            if the record or the name says whether its lowest or its highest value is the best.
    """
    metrics = read_metrics(run)
    record = read_record(run) if (run / RECORD).is_file() else None
    length = _epoch_length(metrics, monitor)
    # A row of step s says what s + 1 steps have led to, but the learning rate of the next step.
    curves: dict[str, Points] = {
        name: [
            ((step + (not name.startswith("lr"))) / (length or 1), value) for step, value in rows
        ]
        for name, rows in metrics.items()
    }
    rates = {name: curves[name] for name in curves if name.split("/")[0] == "lr"}
    best = _best(
        record, curves.get(monitor, []), recorded_mode(monitor, [record] if record else [])
    )
    titles = _panels(curves, monitor) | ({"lr": "learning rate"} if rates else {})
    figure = Figure(figsize=(max(3.5 * len(titles), 5), 3.6), layout="constrained")
    panels = figure.subplots(1, len(titles), sharex="all", squeeze=False)[0]
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        if name == "lr":
            _draw_rates(axes, rates)
        else:
            _draw_stages(axes, name, curves, best)
        axes.set(xlabel="epochs trained" if length else "optimiser steps")
        axes.set_ylabel(title, parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.grid(alpha=0.3)
    lines = {str(line.get_label()): line for axes in panels for line in axes.lines}
    shown = {label: line for label, line in lines.items() if not label.startswith("_")}
    if shown:  # below the panels, where it covers no data
        columns = len(titles) + 1
        figure.legend(
            [*shown.values()], [*shown], loc="outside lower center", ncols=columns, fontsize=9
        )
    title = f"{record.name} {record.version}, seed {record.seed}" if record else run.name
    figure.suptitle(title, parse_math=False)
    return figure


def _panels(curves: dict[str, Points], monitor: str) -> dict[str, str]:
    """Metrics without their stage, and the title of each: those that there are."""
    stage, _, rest = monitor.partition("/")
    monitored = rest if stage in STYLES and rest else monitor
    titles = {"loss": "loss", "acc": "accuracy"}
    titles |= {} if monitored in titles else {monitored: monitored}
    measured = {
        name: title
        for name, title in titles.items()
        if {name, f"train/{name}_step", *(f"{stage}/{name}" for stage in STYLES)} & curves.keys()
    }
    return measured or {"loss": "loss"}


def _draw_rates(axes: Axes, rates: dict[str, Points]) -> None:
    for points in rates.values():
        axes.plot(*_columns(points), color=STYLES["train"][1])
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", scilimits=(-2, 3))


def _draw_stages(axes: Axes, name: str, curves: dict[str, Points], best: Mark | None) -> None:
    """Training and validation, the best epoch, and the loss of single batches behind them."""
    whole = {"": (name, "0.2", "-", "o")} if name in curves else {}  # a metric of no stage
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
    """Optimiser steps of an epoch, once there is a finished one.

    A Task measures its training loss then; of other models it is the monitored metric that tells.
    """
    name = next((name for name in ("train/loss", monitor) if name in metrics), None)
    if name is None:
        return None
    step = metrics[name][-1][0]
    return (step + 1) / (dict(metrics["epoch"])[step] + 1)


def _best(record: Record | None, monitored: Points, mode: Mode | None) -> Mark | None:
    """Where the best epoch is marked, and what that is called."""
    if record and record.best_epoch is not None:
        return record.best_epoch + 1, f"best epoch {record.best_epoch + 1}"
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
    with glyphs_for(figure):
        figure.savefig(buffer, dpi=dpi)
    return buffer.getvalue()
