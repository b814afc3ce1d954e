"""Values of the right type that can't be meant, refused before anything is built."""

import math
from typing import Any

from project.run import flatten
from project.usage import UsageError, check_name

LARGEST = 2**63  # from which torch's whole numbers overflow
ENDLESS = ("max_wait_s",)  # options that may be infinite
LOWEST = {
    "early_stopping.patience": 0,
    "early_stopping.min_delta": 0,
    "data.num_workers": 0,
    "model.optimizer.lr": 0,
    "trainer.gradient_clip_val": 0,
    "trainer.log_every_n_steps": 0,
    "seed_everything": 0,
}
HIGHEST = {"seed_everything": 2**32 - 1}


def check_limits(config: dict[str, Any]) -> None:
    """Refuse numbers that no option can mean, and a name of another place.

    Args:
        config: Configuration of a command, in plain types.
    """
    for name, value in flatten(config):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float):
                _check_number(name, number)
    check_name(config["name"])
    if config["trainer"].get("barebones"):
        raise UsageError(
            "--trainer.barebones trains without loggers and checkpoints, and leaves no run: leave "
            "it out, or use --trainer.fast_dev_run true to try whether a run works"
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
    if number > HIGHEST.get(name, math.inf):
        raise UsageError(f"--{name}: {number} must be {HIGHEST[name]} or less")
