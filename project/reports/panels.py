"""The panels of a figure of curves, one for each metric that was logged."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

STAGES = ("train", "val")
COLUMNS = 4  # number of panels in a row
MOST = 11  # most panels of metrics; with the learning rate they fill three rows
TITLES = {"acc": "accuracy"}


@dataclass(frozen=True)
class Panel:
    """A metric that is drawn for training and validation.

    Args:
        metric: Name of the metric, without its stage.
        classes: Names of the classes that it has values for, in the order of the file.
    """

    metric: str
    classes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return TITLES.get(self.metric, self.metric)


def choose_panels(names: Iterable[str], monitor: str) -> list[Panel]:
    """Return the panels for the metrics of a file, with the loss and the monitored metric first.

    Values of single classes, such as val/recall/cat, share a panel.

    Args:
        names: Names of the columns of `metrics.csv`.
        monitor: Name of the monitored metric, which may have no stage.
    """
    columns = list(names)
    found: dict[str, list[str]] = {}
    for name in columns:
        stage, _, rest = name.partition("/")
        if stage in STAGES and rest:
            rest = rest.removesuffix("_step") if stage == "train" else rest
            metric, _, label = rest.partition("/")
            classes = found.setdefault(metric, [])
            if label and label not in classes:
                classes.append(label)
    stage, _, rest = monitor.partition("/")
    followed = rest.partition("/")[0] if stage in STAGES else monitor
    if followed in columns:  # the monitored metric was logged without a stage
        found.setdefault(followed, [])
    order = sorted(found, key=lambda metric: (metric != "loss", metric != followed))
    return [_panel(metric, found[metric], columns) for metric in order] or [Panel("loss")]


def _panel(metric: str, classes: list[str], columns: list[str]) -> Panel:
    """Return a panel; a single class without a value over all classes counts as a metric."""
    whole = any(name in columns for name in (metric, *(f"{stage}/{metric}" for stage in STAGES)))
    if len(classes) == 1 and not whole:
        return Panel(f"{metric}/{classes[0]}")
    return Panel(metric, classes)


def grid(number: int, xlabel: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with this many panels, at most four in a row."""
    columns = min(number, COLUMNS)
    rows = math.ceil(number / columns)
    size = (max(3.5 * columns, 5), 3.6 + 2.8 * (rows - 1))
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, sharex="all", squeeze=False).flat)
    for axes in panels[number:]:
        axes.remove()
    for axes in panels[:number]:
        axes.set(xlabel=xlabel)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.grid(alpha=0.3)
    return figure, panels[:number]


def draw_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Draw a legend for all panels below them, where it covers no data."""
    lines = {str(line.get_label()): line for axes in panels for line in axes.lines}
    order = sorted(lines, key=lambda label: label.startswith("class "))
    shown = {label: lines[label] for label in order if not label.startswith("_")}
    if shown:
        legend = figure.legend(
            [*shown.values()],
            [*shown],
            loc="outside lower center",
            ncols=min(len(panels), COLUMNS) + 1,
            fontsize=9,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
