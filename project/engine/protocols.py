"""What the machinery expects of networks and of data."""

from typing import Protocol, runtime_checkable

from .objective import Metrics, Objective


@runtime_checkable
class HasClasses(Protocol):
    """Data whose targets are classes or labels with names."""

    class_names: list[str]  # in the order of their labels


@runtime_checkable
class HasObjective(Protocol):
    """A network that says what it is trained for."""

    objective: Objective
    num_classes: int | None  # outputs, if there are several for each example


@runtime_checkable
class MakesMetrics(Protocol):
    """A network that can say which metrics it will have."""

    def make_metrics(self) -> Metrics: ...
