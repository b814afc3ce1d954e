"""The metrics of a stage, which stay exact over uneven batches and ranks and after a resume."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, TypeAlias

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, distributed, nn
from torchmetrics import Metric, MetricCollection

from .factories import class_of, given_to
from .full_precision import full_precision
from .internals import count_as_updated, merge_state
from .objective import Metrics

State: TypeAlias = dict[str, Tensor | list[Tensor]]
MetricFactory: TypeAlias = Callable[[], Metric]

NUMBERS = ("num_classes", "num_labels")  # torchmetrics' arguments that the network determines


class MeanLoss(Metric):
    """Mean loss over all examples, however they are distributed over batches and ranks."""

    full_state_update, higher_is_better = False, False

    def __init__(self) -> None:
        super().__init__()
        # In float64, the result does not depend on the order of the sums, and so not on the number
        # of ranks. MPS has no float64.
        dtype = torch.float32 if torch.backends.mps.is_available() else torch.float64
        self.add_state("total", torch.zeros((), dtype=dtype), dist_reduce_fx="sum")
        self.add_state("examples", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.total: Tensor
        self.examples: Tensor

    def update(self, losses: Tensor, examples: int) -> None:
        """Add a batch.

        Args:
            losses: Loss of each example, or their sum.
            examples: Number of examples of the batch.
        """
        self.total += losses.sum(dtype=self.total.dtype)
        self.examples += examples

    def compute(self) -> Tensor:
        return self.total / self.examples


class StageMetrics(nn.Module):
    """The mean loss and any other metrics of one stage.

    Args:
        metrics: Metrics, or collections of them, by name. They are updated with predictions and
            targets.

    Raises:
        ValueError: If two of them have the same name, or one is named like the loss.
    """

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        pairs = list(flat(metrics))
        named = dict(pairs)
        if len(named) < len(pairs):
            names = ", ".join(name for name, _ in pairs)
            raise ValueError(f"two metrics have the same name, of {names}: choose another for one")
        if "loss" in named:
            raise ValueError("a metric named loss would hide the objective's: choose another name")
        self.names = list(named)
        self.loss = full_precision(MeanLoss())
        self.others = nn.ModuleList(full_precision(metric) for metric in named.values())

    def update(self, predictions: Any, targets: Any) -> None:
        """Add a batch to all metrics except the loss."""
        for metric in self.others:
            metric.update(predictions, targets)  # type: ignore[operator]

    def reset(self) -> None:
        for metric in _metrics(self):
            metric.reset()

    def compute(self, class_names: Sequence[str] | None) -> dict[str, Tensor]:
        """Return the loss and each metric, with one entry per class for those computed by class.

        Args:
            class_names: Names of the classes, in the order of their labels; None if they have none.
        """
        values = {"loss": self.loss.compute()}
        for name, metric in zip(self.names, self.others, strict=True):
            values |= _named(name, metric.compute(), class_names)  # type: ignore[operator]
        return values

    def states(self) -> list[list[State]]:
        """Return the state of each metric on each rank, for a checkpoint. All ranks call this."""
        own = [_on_cpu(metric.metric_state) for metric in _metrics(self)]
        if not distributed.is_available() or not distributed.is_initialized():
            return [own]
        states = [own] * distributed.get_world_size()
        distributed.all_gather_object(states, own)
        return states

    def load_states(self, states: list[list[State]], rank: int, device: torch.device) -> None:
        """Continue from this rank's states in a checkpoint.

        If the checkpoint is from another number of ranks, the first rank continues from the states
        of all of them, which is exact only for sums.
        """
        alike = distributed.is_initialized() and len(states) == distributed.get_world_size()
        for i, metric in enumerate(_metrics(self)):
            count_as_updated(metric)
            if alike or (len(states) == 1 and rank == 0):
                _set_state(metric, states[rank][i], device)
            elif rank == 0:
                for state in states:
                    merge_state(metric, _moved(state[i], device))


def make_metrics(made: Mapping[str, Metric | MetricFactory], num_classes: int | None) -> Metrics:
    """Make the metrics of one stage from those given by option or in Python.

    Args:
        made: Metrics, which are cloned, or functions that make them, by name. Their arguments
            `num_classes` and `num_labels` are taken from the network if they are not given.
        num_classes: Number of the network's outputs; None if it does not say.
    """
    return {name: _make(metric, num_classes) for name, metric in made.items()}


def _make(metric: Metric | MetricCollection | MetricFactory, num_classes: int | None) -> Any:
    if isinstance(metric, Metric | MetricCollection):
        return metric.clone()
    parameters, given = signature(class_of(metric) or metric).parameters, given_to(metric)
    missing = [name for name in NUMBERS if name in parameters and name not in given]
    return metric(**dict.fromkeys(missing, num_classes))


def flat(metrics: Metrics) -> Iterator[tuple[str, Metric]]:
    """Yield the name and the metric of each one, and of each metric within a collection."""
    for name, metric in metrics.items():
        if isinstance(metric, MetricCollection):
            yield from metric.items(keep_base=False, copy_state=False)
        else:
            yield name, metric


def _metrics(module: nn.Module) -> list[Metric]:
    """Return all metrics in a module, including those within other metrics, in a fixed order."""
    return [part for part in module.modules() if isinstance(part, Metric)]


def _named(name: str, value: Any, class_names: Sequence[str] | None) -> dict[str, Tensor]:
    """Return a metric's values by name, one entry for each number that it has computed."""
    if isinstance(value, Mapping):
        return {k: v for key, part in value.items() for k, v in _named(key, part, None).items()}
    if not isinstance(value, Tensor) or value.ndim > 1:
        rank_zero_warn(f"{name} is not logged: it is neither a number nor one for each class")
        return {}
    if value.ndim == 0:
        return {name: value}
    known = class_names is not None and len(class_names) == len(value)
    parts = class_names if class_names is not None and known else range(len(value))
    return {f"{name}/{part}": v for part, v in zip(parts, value, strict=True)}


def _on_cpu(state: Mapping[str, Tensor | list[Tensor]]) -> State:
    return _moved(state, torch.device("cpu"))


def _moved(state: Mapping[str, Tensor | list[Tensor]], device: torch.device) -> State:
    return {
        name: value.detach().to(device, copy=True)
        if isinstance(value, Tensor)
        else [part.detach().to(device, copy=True) for part in value]
        for name, value in state.items()
    }


def _set_state(metric: Metric, state: State, device: torch.device) -> None:
    """Set a metric's state to one from a checkpoint.

    Raises:
        ValueError: If the state is that of another metric.
    """
    own = metric.metric_state
    for name, value in _moved(state, device).items():
        if name not in own or isinstance(own[name], Tensor) != isinstance(value, Tensor):
            raise ValueError(f"the checkpoint's metrics are not {type(metric).__name__}")
        setattr(metric, name, value)
