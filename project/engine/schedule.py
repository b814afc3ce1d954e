"""Schedules of the learning rate: what they leave out follows from the run, and the warm-up is a
factor on whatever they say."""

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
START = 0.01  # of the schedule's learning rate, in the first step of a warm-up


class WarmUp:
    """A factor on the learning rate, which rises linearly from a hundredth to 1.

    The optimiser has the product at every step. The schedule never sees it: it takes its steps
    `lifted` to its own learning rates, which a schedule that starts from the previous ones needs
    as much as one that computes them from the number of steps.

    Args:
        optimizer: Optimiser with the learning rates of the schedule's first step.
        steps: Optimiser steps until the factor is 1.
    """

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        self.optimizer, self.steps, self.taken = optimizer, steps, 0
        self._own = _rates(optimizer)  # those of the schedule alone
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
        """Give the optimiser the schedule's own learning rates, while that takes a step."""
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
    # Not strict: a callback may have added groups since, as BackboneFinetuning does.
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        if isinstance(group["lr"], Tensor):  # in place, as a captured or compiled step needs
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
        optimizer: Optimiser with the learning rate's peak.
        factory: Class of a schedule, or what makes one; constant if there is none.
        length: Function that returns the length of the run in optimiser steps or in epochs,
            infinite if that is not known. It is called if the schedule needs it.
        interval: What the schedule counts; by default it follows from its class.
        warmup_steps: Optimiser steps of the warm-up.
        mode: Function that returns whether lower or higher values of the monitored metric are
            better, called for ReduceLROnPlateau.

    Raises:
        ValueError: If the schedule's length is not known, or it warms up by itself.
    """
    kind = (class_of(factory) if factory else None) or LRScheduler
    interval = interval or ("step" if issubclass(kind, PER_STEP) else "epoch")
    if factory is None:
        schedule: LRScheduler = ConstantLR(optimizer, factor=1.0)
    else:
        given = given_to(factory)
        lasting = partial(_duration, length, interval)
        derived = _derived(kind, optimizer, lasting, mode)
        if "epochs" in given:  # OneCycleLR's, instead of total_steps
            derived.pop("total_steps", None)
        missing = {name: find() for name, find in derived.items() if name not in given}
        if issubclass(kind, ReduceLROnPlateau) and "mode" in given and given["mode"] != mode():
            raise ValueError(
                f"ReduceLROnPlateau's mode {given['mode']} contradicts the monitored metric's, "
                f"{mode()}: leave it out, since it follows --monitor and --monitor_mode"
            )
        schedule = factory(optimizer, **missing, **given)
    # Not Lightning's own handling of ReduceLROnPlateau, which takes its step after the save.
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


def _derived(
    kind: type[LRScheduler],
    optimizer: Optimizer,
    lasting: Callable[[], int],
    mode: Callable[[], Mode],
) -> dict[str, Callable[[], Any]]:
    """Arguments of a schedule that follow from the run, and how they are found."""
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
    """Take a step of one of an optimiser's schedules.

    Args:
        schedule: Schedule or warm-up that takes the step.
        schedules: All of them.
        value: Newest value of the monitored metric, for ReduceLROnPlateau.
    """
    rising = next((s for s in schedules if isinstance(s, WarmUp)), None)
    values = () if value is None else (value,)
    if rising is None or schedule is rising:
        schedule.step(*values)
        return
    with rising.lifted():
        schedule.step(*values)
