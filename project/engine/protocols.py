"""What the machinery expects of networks and of data."""

from typing import Any, Protocol, runtime_checkable

from .classification import CrossEntropy
from .objective import Metrics, Objective
from .targets import are_classes


@runtime_checkable
class HasClasses(Protocol):
    """Data whose targets are classes or labels with names."""

    class_names: list[str]  # in the order of their labels


def class_names_of(data: Any) -> list[str] | None:
    """Return the names of the classes, if the data have some."""
    return data.class_names if isinstance(data, HasClasses) else None


@runtime_checkable
class HasBatchSize(Protocol):
    """Data that say how many examples a batch has, over all processes."""

    batch_size: int


@runtime_checkable
class HasObjective(Protocol):
    """A network that says what it is trained for."""

    objective: Objective
    num_classes: int | None  # outputs, if there are several for each example


@runtime_checkable
class MakesMetrics(Protocol):
    """A network that can say which metrics it will have."""

    def make_metrics(self) -> Metrics: ...


def objective_of(model: Any, targets: Any) -> Objective | None:
    """Return what a network is trained for: cross-entropy is assumed if targets are classes."""
    if isinstance(model, HasObjective):
        return model.objective
    return CrossEntropy() if are_classes(targets) else None
