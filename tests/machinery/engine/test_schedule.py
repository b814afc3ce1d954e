"""The schedules alone: their lengths, and a warm-up that is a factor on their learning rates."""

import copy
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as schedules

from project.engine.schedule import WarmUp, advance, build

PEAK, STEPS, WARMUP = 0.1, 60, 17


def half(epoch: int) -> float:
    return 0.5


def lambda_lr(optimizer: Optimizer) -> Any:
    return schedules.LambdaLR(optimizer, lambda step: 0.9**step)


def sequential(optimizer: Optimizer) -> Any:
    parts = [schedules.ConstantLR(optimizer, 0.5, 9), schedules.ExponentialLR(optimizer, 0.9)]
    return schedules.SequentialLR(optimizer, parts, milestones=[9])


def chained(optimizer: Optimizer) -> Any:
    parts = [schedules.ExponentialLR(optimizer, 0.97), schedules.StepLR(optimizer, 8)]
    return schedules.ChainedScheduler(parts)


KINDS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda_lr,
    "MultiplicativeLR": partial(schedules.MultiplicativeLR, lr_lambda=half),
    "StepLR": partial(schedules.StepLR, step_size=5),
    "MultiStepLR": partial(schedules.MultiStepLR, milestones=[3, 20, 40]),
    "ConstantLR": partial(schedules.ConstantLR, factor=0.3, total_iters=25),
    "LinearLR": partial(schedules.LinearLR, start_factor=0.1, total_iters=30),
    "ExponentialLR": partial(schedules.ExponentialLR, gamma=0.95),
    "PolynomialLR": partial(schedules.PolynomialLR, total_iters=50, power=2.0),
    "CosineAnnealingLR": partial(schedules.CosineAnnealingLR, T_max=25),
    "CosineAnnealingWarmRestarts": partial(schedules.CosineAnnealingWarmRestarts, T_0=7, T_mult=2),
    "ReduceLROnPlateau": partial(schedules.ReduceLROnPlateau, patience=1, factor=0.5),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "none": lambda optimizer: schedules.ConstantLR(optimizer, factor=1.0),
}


def optimizer() -> Optimizer:
    """With two groups, one of whose learning rates is a tensor."""
    groups = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": 2 * PEAK}]
    made = SGD(groups, lr=PEAK)
    made.param_groups[1]["lr"] = torch.tensor(2 * PEAK, dtype=torch.float64)
    return made


def walk(made: list[Any], every: int) -> Iterator[list[float]]:
    """Yield the learning rates of each step; the schedule steps after every `every` of them."""
    scheduled = [config["scheduler"] for config in made]
    for step in range(STEPS):
        scheduled[0].optimizer.step()
        yield [float(group["lr"]) for group in scheduled[0].optimizer.param_groups]
        for one in scheduled[1:]:
            advance(one, scheduled)
        if (step + 1) % every == 0:
            plateau = isinstance(scheduled[0], schedules.ReduceLROnPlateau)
            advance(scheduled[0], scheduled, 1.0 if plateau else None)


@pytest.mark.parametrize("every", [1, 4], ids=["each step", "each epoch of 4"])
@pytest.mark.parametrize("name", KINDS)
def test_a_warmup_is_a_factor_on_whatever_the_schedule_says(name: str, every: int) -> None:
    def rates(warmup: int) -> list[list[float]]:
        return list(walk(build(optimizer(), KINDS[name], never, warmup_steps=warmup), every))

    alone, warm = rates(0), rates(WARMUP)
    for step, (own, with_warmup) in enumerate(zip(alone, warm, strict=True)):
        factor = min(1.0, 0.01 + 0.99 * step / WARMUP)
        assert with_warmup == pytest.approx([factor * rate for rate in own], rel=1e-12)
        assert all(rate <= limit for rate, limit in zip(with_warmup, own, strict=True))
        assert step < WARMUP or with_warmup == own, "exactly the schedule's own afterwards"


@pytest.mark.parametrize("stop", [1, 8, 16, 17, 30])
@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_stops_and_resumes_has_the_same_rates(name: str, stop: int) -> None:
    def make() -> list[Any]:
        return build(optimizer(), KINDS[name], never, warmup_steps=WARMUP)

    whole = list(walk(make(), 4))
    first = make()
    steps = walk(first, 4)
    rates = [next(steps) for _ in range(stop)]
    file = io.BytesIO()  # within a step's end: the rates of the next one are not set yet
    state = [config["scheduler"].state_dict() for config in first]
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)[1] == state[1], "plain types"

    again = make()
    held = again[0]["scheduler"].optimizer
    held.load_state_dict(copy.deepcopy(first[0]["scheduler"].optimizer.state_dict()))
    for old, new in zip(first, again, strict=True):
        new["scheduler"].load_state_dict(copy.deepcopy(old["scheduler"].state_dict()))
    rest = walk_on(again, 4, stop)
    assert rates + list(rest) == whole


def walk_on(made: list[Any], every: int, done: int) -> Iterator[list[float]]:
    """Continue like `walk`, from the end of step `done`."""
    scheduled = [config["scheduler"] for config in made]
    for step in range(done - 1, STEPS):
        if step >= done:
            scheduled[0].optimizer.step()
            yield [float(group["lr"]) for group in scheduled[0].optimizer.param_groups]
        advance(scheduled[1], scheduled)
        if (step + 1) % every == 0:
            plateau = isinstance(scheduled[0], schedules.ReduceLROnPlateau)
            advance(scheduled[0], scheduled, 1.0 if plateau else None)


def never(interval: str) -> float:
    raise AssertionError("the length of the run was not needed")


def test_a_length_left_out_is_that_of_the_run_in_what_the_schedule_counts() -> None:
    lengths = {"step": 80.0, "epoch": 4.0}
    cosine = partial(build, optimizer(), schedules.CosineAnnealingLR, lengths.__getitem__)
    assert cosine()[0]["scheduler"].T_max == 4
    assert cosine(interval="step")[0]["scheduler"].T_max == 80
    cycle = build(optimizer(), schedules.OneCycleLR, lengths.__getitem__)[0]
    assert (cycle["interval"], cycle["scheduler"].total_steps) == ("step", 80)
    given = partial(schedules.OneCycleLR, epochs=3, steps_per_epoch=5)
    assert build(optimizer(), given, never)[0]["scheduler"].total_steps == 15
    given = partial(schedules.CosineAnnealingLR, T_max=7)
    assert build(optimizer(), given, never)[0]["scheduler"].T_max == 7


def test_an_unknown_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"length is not known: set --trainer\.max_epochs"):
        build(optimizer(), schedules.CosineAnnealingLR, lambda interval: float("inf"))


def test_a_warmup_of_groups_that_a_callback_adds_leaves_these_alone() -> None:
    held = SGD([torch.zeros(1)], lr=PEAK)
    warm = WarmUp(held, 10)
    held.add_param_group({"params": [torch.zeros(1)], "lr": 0.3})
    with warm.lifted():
        assert [group["lr"] for group in held.param_groups] == [PEAK, 0.3]
