"""Metrics in float32 or better, whatever the precision of the network.

Lightning casts a whole module to the precision of the run, including its metrics, and a sum in
bfloat16 stops growing after a few hundred examples.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from .internals import Convert, ConvertedMetric, convert_states

T = TypeVar("T")


def to_float32(values: T) -> T:
    """Return a tensor, or a collection of tensors, with half precision widened to float32."""
    if isinstance(values, Tensor):  # the usual case, which avoids the cost of the general one
        return _widened(values)  # type: ignore[return-value]
    converted: T = apply_to_collection(values, Tensor, _widened)
    return converted


def _widened(tensor: Tensor) -> Tensor:
    narrow = tensor.is_floating_point() and tensor.element_size() < 4
    return tensor.float() if narrow else tensor


def full_precision(metric: Metric) -> Metric:
    """Keep a metric's state and results from ever being narrower than float32.

    Args:
        metric: Metric that is changed in place, with all metrics inside it.
    """
    for part in metric.modules():
        if isinstance(part, Metric) and not isinstance(part, FullPrecision):
            state = part.__getstate__()
            vars(part).clear()  # drops methods that were bound to the previous class
            part.__class__ = _full_precision_class(type(part))
            part.__setstate__(state)
            convert_states(part, _widened)
    return metric


class FullPrecision(ConvertedMetric):
    """The base of the converted classes, with what all metrics have in common."""

    def conversion(self, fn: Convert) -> Convert:
        return _never_narrower(fn)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, so a spawned process has to make it again.
        return _restore, (type(self).__bases__[1], self.__getstate__())


@functools.cache
def _full_precision_class(kind: type[Metric]) -> type[Metric]:
    @functools.wraps(kind.update)
    def update(self: Metric, *args: Any, **kwargs: Any) -> None:
        named = {name: to_float32(value) for name, value in kwargs.items()}
        with _without_half_precision(self.device.type):
            kind.update(self, *map(to_float32, args), **named)

    # Local by its name, so that it is not found beside `kind` if that is given by its short name.
    name = f"{full_precision.__name__}.<locals>.{kind.__name__}"
    members = {"update": update, "__module__": __name__, "__qualname__": name}
    return type(kind.__name__, (FullPrecision, kind), members)


def _restore(kind: type[Metric], state: dict[str, Any]) -> Metric:
    metric = kind.__new__(_full_precision_class(kind))
    metric.__setstate__(state)
    return metric


def _never_narrower(fn: Convert) -> Convert:
    def convert(tensor: Tensor) -> Tensor:
        converted = fn(tensor)
        narrower = converted.element_size() < tensor.element_size()
        return tensor.to(converted.device) if narrower else converted

    return convert


@contextmanager
def _without_half_precision(device: str) -> Iterator[None]:
    """Undo the default dtype and the autocast of a half-precision step."""
    default = torch.get_default_dtype()
    if default.itemsize >= 4 and not torch.is_autocast_enabled(device):
        yield
        return
    torch.set_default_dtype(default if default.itemsize >= 4 else torch.float32)
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_default_dtype(default)
