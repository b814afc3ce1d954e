"""The protocols that the machinery expects networks and data to follow."""

from typing import Any, Protocol, runtime_checkable

from .classification import CrossEntropy
from .objective import Metrics, Objective
from .targets import are_classes


@runtime_checkable
class HasClasses(Protocol):
    """Data whose targets are classes or labels with names."""

    class_names: list[str]  # in the order of their labels


def class_names_of(data: Any) -> list[str] | None:
    """Return the names of the classes; None if the data have none."""
    return data.class_names if isinstance(data, HasClasses) else None


@runtime_checkable
class HasBatchSize(Protocol):
    """Data with a batch size: the number of examples of a batch over all processes."""

    batch_size: int


@runtime_checkable
class HasObjective(Protocol):
    """A network that has an objective."""

    objective: Objective
    num_classes: int | None  # number of outputs per example, if there are several


@runtime_checkable
class MakesMetrics(Protocol):
    """A network that can list the metrics that it will have."""

    def make_metrics(self) -> Metrics: ...


def own_objective(model: Any) -> Objective | None:
    """Return what a network says that it is trained for; other modules may use the name freely."""
    found = model.objective if isinstance(model, HasObjective) else None
    return found if isinstance(found, Objective) else None


def objective_of(model: Any, targets: Any) -> Objective | None:
    """Return the objective of a network; if it has none, cross-entropy if targets are classes."""
    return own_objective(model) or (CrossEntropy() if are_classes(targets) else None)
