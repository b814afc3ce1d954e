"""The curves of a run, from its `metrics.csv`."""

import csv
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from project.run import read_record

CURVES = "curves.png"
STYLES = {"train": ("C0", "-", "o"), "val": ("C1", "--", "s")}  # told apart without colours too


def read_metrics(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Optimiser step and value of every row, by metric."""
    metrics: dict[str, list[tuple[int, float]]] = {}
    with (run / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("step", "epoch"):
                    metrics.setdefault(name, []).append((int(row["step"]), float(value)))
    return metrics


def draw_curves(run: Path) -> Figure:
    """Loss, accuracy and learning rate over the epochs, with the best epoch marked.

    Args:
        run: A run folder with at least one finished epoch.
    """
    metrics, record = read_metrics(run), read_record(run)
    last_step = metrics["train/loss"][-1][0]
    steps = (last_step + 1) / len(metrics["train/loss"])  # of an epoch
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (name, title) in zip(
        figure.subplots(1, 3),
        (("loss", "loss"), ("acc", "accuracy"), ("lr", "learning rate")),
        strict=True,
    ):
        for stage, (color, line, marker) in STYLES.items():
            points = metrics.get(f"{stage}/{name}", [])
            x, y = [(step + 1) / steps for step, _ in points], [value for _, value in points]
            label = "training" if stage == "train" else "validation"
            few = marker if len(points) < 40 else ""
            axes.plot(x, y, line, color=color, marker=few, markersize=4, label=label)
        if name == "lr":
            points = metrics.get("lr", [])
            axes.plot([s / steps for s, _ in points], [v for _, v in points], color="C0")
            axes.set_ylim(bottom=0)
        elif record["best_epoch"] is not None:
            best = record["best_epoch"] + 1
            axes.axvline(best, color="0.4", linestyle=":", label=f"best, after {best}")
            axes.legend()
        axes.set(xlabel="epochs trained", ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.suptitle(f"{record['name']} {record['version']}, seed {record['seed']}")
    return figure
