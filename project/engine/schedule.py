"""Learning-rate schedules: arguments left out are derived from the run, and the warm-up is a factor
on the learning rate of any schedule."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias

from lightning.pytorch.utilities.types import LRSchedulerConfigType
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)

from ..runs.direction import Mode
from .factories import class_of, given_to

LRSchedulerCallable: TypeAlias = Callable[[Optimizer], LRScheduler]
Interval = Literal["step", "epoch"]

PER_STEP = (OneCycleLR, CyclicLR)  # schedules that count optimiser steps; the others count epochs
START = 0.01  # factor on the schedule's learning rate in the first step of a warm-up


class WarmUp:
    """A factor on the learning rate, which rises linearly from a hundredth to 1.

    At every step, the optimiser has the product of the schedule's learning rate and the factor. The
    schedule never sees the product: it takes its steps within `lifted`, with its own learning
    rates. Schedules that start from the previous rates need this as much as those that compute the
    rates from the number of steps.

    Args:
        optimizer: Optimiser with the learning rates of the schedule's first step.
        steps: Number of optimiser steps until the factor is 1.
    """

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        self.optimizer, self.steps, self.taken = optimizer, steps, 0
        self._own = _rates(optimizer)  # the schedule's learning rates, without the factor
        self._apply()

    @property
    def factor(self) -> float:
        return START + (1 - START) * self.taken / self.steps if self.taken < self.steps else 1.0

    def step(self) -> None:
        if self.taken < self.steps:
            self.taken += 1
            self._apply()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Give the optimiser the schedule's own learning rates while the schedule takes a step."""
        if self.taken >= self.steps:
            yield
            return
        _set_rates(self.optimizer, self._own)
        yield
        self._own = _rates(self.optimizer)
        self._apply()

    def _apply(self) -> None:
        _set_rates(self.optimizer, [self.factor * rate for rate in self._own])

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "own": self._own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken, self._own = state["taken"], state["own"]


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _set_rates(optimizer: Optimizer, rates: list[float]) -> None:
    # Not strict, since a callback such as BackboneFinetuning may have added groups in the meantime.
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        if isinstance(group["lr"], Tensor):  # captured and compiled steps need it set in place
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def build(
    optimizer: Optimizer,
    factory: LRSchedulerCallable | None,
    length: Callable[[Interval], float],
    *,
    interval: Interval | None = None,
    warmup_steps: int = 0,
    mode: Callable[[], Mode] = lambda: "min",
) -> list[LRSchedulerConfigType]:
    """Make the schedule of an optimiser, and its warm-up.

    Args:
        optimizer: Optimiser, whose learning rate is the peak of the schedule.
        factory: Class of a schedule, or a function that makes one. If it is None, the learning rate
            is constant.
        length: Function that returns the length of the run in optimiser steps or in epochs, or
            infinity if it is not known. It is called only if the schedule needs it.
        interval: Unit that the schedule counts; by default it follows from the schedule's class.
        warmup_steps: Number of optimiser steps of the warm-up.
        mode: Function that returns whether lower or higher values of the monitored metric are
            better. It is called only for ReduceLROnPlateau.

    Raises:
        ValueError: If the schedule needs a length that is not known, or if it has a warm-up of its
            own.
    """
    kind = (class_of(factory) if factory else None) or LRScheduler
    interval = interval or ("step" if issubclass(kind, PER_STEP) else "epoch")
    if factory is None:
        schedule: LRScheduler = ConstantLR(optimizer, factor=1.0)
    else:
        derived = _derived(kind, optimizer, partial(_duration, length, interval), mode)
        schedule = _make(optimizer, factory, kind, derived)
    # Lightning's own handling of ReduceLROnPlateau is not used: its step comes after the save.
    main: LRSchedulerConfigType = {"scheduler": schedule, "interval": interval, "name": "lr"}
    main["reduce_on_plateau"] = False
    if not warmup_steps:
        return [main]
    if isinstance(schedule, PER_STEP):
        raise ValueError(
            f"{type(schedule).__name__} sets the learning rate of every step and warms up by "
            "itself (pct_start): set --model.warmup_steps 0"
        )
    rising: Any = WarmUp(optimizer, warmup_steps)
    return [main, {"scheduler": rising, "interval": "step", "name": "warmup"}]


def _make(
    optimizer: Optimizer,
    factory: LRSchedulerCallable,
    kind: type[LRScheduler],
    derived: dict[str, Callable[[], Any]],
) -> LRScheduler:
    """Make a schedule from the arguments that it was given, and those that follow from the run."""
    given = given_to(factory)
    if "epochs" in given:  # OneCycleLR takes it instead of total_steps
        derived.pop("total_steps", None)
    if issubclass(kind, ReduceLROnPlateau) and "mode" in given:
        wanted = derived["mode"]()
        if given["mode"] != wanted:
            raise ValueError(
                f"ReduceLROnPlateau's mode {given['mode']} contradicts the monitored metric's, "
                f"{wanted}: leave it out, since it follows --monitor and --monitor_mode"
            )
    missing = {name: find() for name, find in derived.items() if name not in given}
    return factory(optimizer, **missing, **given)


def _derived(
    kind: type[LRScheduler],
    optimizer: Optimizer,
    lasting: Callable[[], int],
    mode: Callable[[], Mode],
) -> dict[str, Callable[[], Any]]:
    """Return the arguments of a schedule that follow from the run, each with its function."""
    if issubclass(kind, OneCycleLR):
        return {"max_lr": partial(_rates, optimizer), "total_steps": lasting}
    if issubclass(kind, CosineAnnealingLR):
        return {"T_max": lasting}
    return {"mode": mode} if issubclass(kind, ReduceLROnPlateau) else {}


def _duration(length: Callable[[Interval], float], interval: Interval) -> int:
    found = length(interval)
    if not math.isfinite(found):
        raise ValueError(
            "the schedule lasts as long as the run, whose length is not known: set "
            "--trainer.max_epochs, or the schedule's own length (total_steps, T_max)"
        )
    return int(found)


def advance(schedule: Any, schedules: Iterable[Any], value: float | None = None) -> None:
    """Advance one of an optimiser's schedules by a step.

    Args:
        schedule: Schedule or warm-up that takes the step.
        schedules: All schedules and warm-ups of the optimiser.
        value: Newest value of the monitored metric, for ReduceLROnPlateau.
    """
    rising = next((s for s in schedules if isinstance(s, WarmUp)), None)
    values = () if value is None else (value,)
    if rising is None or schedule is rising:
        schedule.step(*values)
        return
    with rising.lifted():
        schedule.step(*values)
