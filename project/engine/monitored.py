"""Whether lower or higher values are better, of the metric that a run follows."""

from collections.abc import Iterator

from lightning import LightningModule
from torchmetrics import Metric

from ..runs.direction import Mode, mode_by_name
from ..runs.errors import UsageError
from ..runs.names import nearest
from .metrics import flat
from .protocols import MakesMetrics

STAGES = ("train", "val", "test")
OWN = {f"{stage}_metrics" for stage in STAGES}  # a Task makes them at the start of a run


def monitor_mode(monitor: str, given: Mode | None, model: LightningModule) -> Mode:
    """Return whether a lower or a higher value of the monitored metric is better.

    Args:
        monitor: Name of the metric.
        given: Value of --monitor_mode, which decides if there is one.
        model: Model that computes the metric.

    Raises:
        UsageError: If it is not given, and neither the name nor torchmetrics tells.
    """
    mode = given or mode_by_name(monitor) or _mode_in(model_modes(model), _named(monitor))
    if mode is None:
        hint = nearest(monitor, ("val/loss", "val/acc", "train/loss", "train/acc"))
        raise UsageError(
            f"nothing says whether a lower or a higher {monitor} is better{hint}: add "
            "--monitor_mode min or --monitor_mode max"
        )
    return mode


def _mode_in(modes: dict[str, Mode], name: str) -> Mode | None:
    """Return the direction of a metric or of one of its values: `recall/cat` follows recall."""
    return modes.get(name) or modes.get(name.partition("/")[0])


def model_modes(model: LightningModule) -> dict[str, Mode]:
    """Return the directions that torchmetrics knows of the model's metrics, by their names.

    A metric is named after its attribute, or after its key in a MetricCollection: both `self.f1`
    and `self.val_f1` are f1. Metrics that share a name and disagree are left out.
    """
    found: dict[str, set[Mode | None]] = {}
    for path, metric in _metrics(model):
        found.setdefault(_named(path), set()).add(_mode_of(metric))
    known = {name: next(iter(modes)) for name, modes in found.items() if len(modes) == 1}
    return {name: mode for name, mode in known.items() if mode is not None}


def _metrics(model: LightningModule) -> Iterator[tuple[str, Metric]]:
    if isinstance(model, MakesMetrics):
        yield from flat(model.make_metrics())
    for path, module in model.named_modules():
        stage = path.partition(".")[0]
        if isinstance(module, Metric) and stage not in OWN:
            yield path.rsplit(".", 1)[-1], module


def _mode_of(metric: Metric) -> Mode | None:
    known: dict[bool | None, Mode] = {True: "max", False: "min"}
    return known.get(metric.higher_is_better)


def _named(name: str) -> str:
    """Return a metric's name without its stage: `val/f1` and `val_f1` are f1."""
    for stage in STAGES:
        for mark in ("/", "_"):
            name = name.removeprefix(f"{stage}{mark}")
    return name
