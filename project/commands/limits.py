"""Checks that refuse values of the right type that cannot be meant."""

import inspect
import math
from collections.abc import Iterable
from typing import Any

from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder

from ..runs.errors import UsageError
from ..runs.names import PROGRAM
from ..runs.settings import flatten
from .internals import import_object
from .table import check_name

LARGEST = 2**63  # the first whole number that overflows in torch
ENDLESS = ("max_wait_s",)  # options that may be infinite
LOWEST = {
    "early_stopping.patience": 0,
    "early_stopping.min_delta": 0,
    "data.num_workers": 0,
    "model.optimizer.lr": 0,
    "trainer.accumulate_grad_batches": 1,
    "trainer.gradient_clip_val": 0,
    "trainer.log_every_n_steps": 0,
    "trainer.check_val_every_n_epoch": 1,
    "trainer.num_sanity_val_steps": -1,
    "seed_everything": 0,
}
POSITIVE = ("trainer.val_check_interval",)
HIGHEST = {"seed_everything": 2**32 - 1}


def check_limits(config: dict[str, Any]) -> None:
    """Refuse numbers that make no sense for any option, and a name outside the folder of runs.

    Args:
        config: Configuration of a command, in plain types.
    """
    for name, value in flatten(config):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float):
                _check_number(name, number)
        if value == "" and "." not in name:
            raise UsageError(f"--{name} needs a value")
    check_name(config["name"])
    for name in ("model", "data"):
        _check_null(name, config[name])
    if config["trainer"].get("barebones"):
        raise UsageError(
            "--trainer.barebones trains without loggers and checkpoints, and leaves no run: leave "
            "it out, or use --trainer.fast_dev_run true to try whether a run works"
        )


def _check_null(name: str, spec: dict[str, Any]) -> None:
    """Refuse null for an argument whose type excludes None, which jsonargparse lets through."""
    kind = import_object(spec["class_path"])
    inits = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    parameters: dict[str, inspect.Parameter] = {}
    for init in reversed(inits):
        parameters |= inspect.signature(init).parameters
    for key, value in spec.get("init_args", {}).items():
        parameter = parameters.get(key)
        if value is None and parameter and isinstance(parameter.default, int | float | str):
            raise UsageError(
                f"--{name}.{key}: expected a value such as {parameter.default}, got null"
            )


def _check_number(name: str, number: float) -> None:
    if isinstance(number, float) and math.isnan(number):
        raise UsageError(f"--{name}: nan is not a number")
    if math.isinf(number) and name not in ENDLESS:
        raise UsageError(f"--{name}: {number} is not a finite number")
    if abs(number) >= LARGEST and isinstance(number, int):
        raise UsageError(f"--{name}: {number} is too large, at most {LARGEST - 1} can be counted")
    if number < LOWEST.get(name, -math.inf):
        raise UsageError(f"--{name}: {number} must be {LOWEST[name]} or more")
    if number <= 0 and name in POSITIVE:
        raise UsageError(f"--{name}: {number} must be positive")
    if number > HIGHEST.get(name, math.inf):
        raise UsageError(f"--{name}: {number} must be {HIGHEST[name]} or less")


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks that train with settings other than those that the config records."""
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, BatchSizeFinder):
            raise UsageError(
                f"{name} would train with another batch size than the one that the config records: "
                "try sizes with --data.batch_size and --trainer.max_steps 10, and set the one found"
            )
        if isinstance(callback, LearningRateFinder):
            raise UsageError(
                f"{name} would train with another learning rate than the one that the config "
                f"records: run `{PROGRAM} lr_find`, and set --model.optimizer.lr"
            )
