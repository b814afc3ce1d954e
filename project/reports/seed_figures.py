"""Figures of runs that differ in their seed."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..runs.sets import read_metrics
from .seed_report import SeedNoiseReport
from .sweep import SweepReport
from .tables import Scale

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "black")  # Okabe, Ito
NUMBERED = 10  # most seeds with their numbers drawn; more would overlap


def draw_seeds(report: SeedNoiseReport) -> Figure:
    """Draw each seed as a dot, with mean and interval, and next to it the curves of all seeds."""
    scale = Scale(report.metric, report.std)
    unit = scale.percent.replace(" %", ", %")
    measured = report.metric.replace("test/", "val/")  # validation is measured once an epoch
    figure = Figure(figsize=(10, 4), layout="constrained")
    dots, curves = figure.subplots(1, 2)
    low, high = (end * scale.factor for end in report.ci95)
    dots.axhspan(low, high, color="C0", alpha=0.15, label="95 % interval of the mean")
    dots.axhline(report.mean * scale.factor, color="C0", label=f"mean {scale.value(report.mean)}")
    for i, (record, value) in enumerate(zip(report.records, report.values, strict=True)):
        color = COLORS[i % len(COLORS)]
        dots.plot(i, value * scale.factor, "o", color=color)
        epochs, curve = _curve(record.run, measured)
        y = [value * scale.factor for value in curve]
        curves.plot(epochs, y, color=color, linewidth=1, label=f"seed {record.seed}")
        epoch = -1 if record.best_epoch is None else record.best_epoch + 1
        best = dict(zip(map(round, epochs), y, strict=True)).get(epoch)
        if best is not None and len(report.records) <= NUMBERED:
            badge = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": color}
            place = {"ha": "center", "va": "center", "fontsize": 9, "bbox": badge}
            curves.text(epoch, best, str(record.seed), **place)
    seeds = [str(record.seed) for record in report.records]
    dots.set_xticks(range(len(seeds)), seeds, rotation=90 if len(seeds) > 15 else 0)
    dots.set(xlabel="seed", ylabel=report.metric + unit, title="Best epoch of each seed")
    curves.set(
        xlabel="epochs trained",
        ylabel=measured + unit,
        title="Curves of all seeds, best epochs numbered",
    )
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    dots.margins(y=0.15)
    dots.legend()
    for axes in (dots, curves):
        axes.grid(alpha=0.3)
    figure.suptitle(report.name)
    return figure


def draw_sweep(sweep: SweepReport) -> Figure:
    """Draw each seed as a dot, with the mean and the interval of each variant, the best first."""
    scale = Scale(sweep.metric, 1.0)
    figure = Figure(figsize=(max(5, 2 + 0.9 * len(sweep.reports)), 4), layout="constrained")
    axes = figure.add_subplot()
    for i, report in enumerate(sweep.reports):
        values = [value * scale.factor for value in report.values]
        axes.plot([i - 0.15] * len(values), values, "o", color="0.6", markersize=4)
        mean, (low, high) = report.mean * scale.factor, (end * scale.factor for end in report.ci95)
        axes.errorbar(i, mean, [[mean - low], [high - mean]], fmt="s", color="C0", capsize=4)
    labels = [sweep.label(report) for report in sweep.reports]
    turned = max(map(len, labels)) > 12
    axes.set_xticks(
        range(len(labels)), labels, rotation=30 if turned else 0, ha="right" if turned else "center"
    )
    axes.set(ylabel=sweep.metric + scale.percent.replace(" %", ", %"), title=sweep.name)
    axes.set_xlabel("dots: seeds; square and bar: mean and its 95 % interval")
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.grid(alpha=0.3)
    return figure


def _curve(run: Path, metric: str) -> tuple[list[float], list[float]]:
    """Return epochs and values, both empty for a run that logged no metrics."""
    metrics = read_metrics(run)
    trained = metrics.get("train/loss", [(0, 0.0)])
    steps = (trained[-1][0] + 1) / len(trained)  # number of optimiser steps of an epoch
    points = metrics.get(metric, [])
    return [(step + 1) / steps for step, _ in points], [value for _, value in points]
