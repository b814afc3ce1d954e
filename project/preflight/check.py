"""What a check is: it refuses a run that cannot work, by what it measures before the first step."""

import json
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from ..engine.datamodule import Split
from ..engine.values import Batch
from ..runs.files import write_whole
from .examples import first_examples


@dataclass
class Verdict:
    """What a check found.

    Args:
        name: Class of the check.
        passed: Whether the run may start.
        diagnosis: What is wrong or could not be found out, if anything.
        measured: Numbers by their names.
    """

    name: str
    passed: bool
    diagnosis: str
    measured: dict[str, Any] = field(default_factory=dict)


def describe(verdicts: Sequence[Verdict]) -> str:
    """Return a table: whether each check passed, its numbers, and its diagnosis."""
    lines = []
    for verdict in verdicts:
        facts = [f"{name} {np.round(value, 4)}" for name, value in verdict.measured.items()]
        word = "passed" if verdict.passed else "FAILED"
        lines.append(f"{word}  {verdict.name:<18}  {', '.join(facts)}")
        lines += [f"        {line}" for line in textwrap.wrap(verdict.diagnosis, 90)]
    return "\n".join(lines)


def write_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write `check.json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    passed = all(verdict.passed for verdict in verdicts)
    table = {"passed": passed, "checks": [vars(verdict) for verdict in verdicts]}
    write_whole(path, json.dumps(table, indent=2) + "\n")


class Check(Callback, ABC):
    """Refuses a new run if its verdict is bad. Model, data and random state stay as they are.

    A concrete class says which examples, without augmentation, it looks at, and how.
    """

    split: Split = "train"
    examples = 1
    budget_s = math.inf  # for its optimiser steps, of which it takes at least one
    trains = False  # a copy of the model, which needs automatic optimisation

    @abstractmethod
    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        """Return the verdict on a run that is set up and has not begun."""

    def measure(self, trainer: L.Trainer, model: L.LightningModule) -> Verdict:
        """Return the verdict on a run that is set up; it is skipped without examples."""
        if self.trains and not model.automatic_optimization:
            return self.skipped("the network does its optimisation itself")
        batch = first_examples(trainer, self.split, self.examples)
        if batch is None:
            return self.skipped(f"no pairs of inputs and targets for {self.split}")
        return self.look(trainer, model, batch)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.ckpt_path is not None:
            return  # a resumed run was checked when it began
        verdict = self.announced(trainer, pl_module)
        if not verdict.passed:
            raise ValueError(
                f"this run was not started: {verdict.diagnosis} ({verdict.name}; to start it all "
                "the same: --preflight false)"
            )
        if verdict.diagnosis:
            rank_zero_info(f"{verdict.name} passed: {verdict.diagnosis}")

    def announced(self, trainer: L.Trainer, model: L.LightningModule) -> Verdict:
        """Say that the check begins and how long it may take, and return its verdict."""
        longest = f", {self.budget_s:g} s at most" if self.budget_s < math.inf else ""
        rank_zero_info(f"Pre-flight: {type(self).__name__}{longest}")
        return self.measure(trainer, model)

    def verdict(self, fault: str, note: str = "", /, **measured: Any) -> Verdict:
        """Return a verdict that is bad if there is a fault; a note says what is not known."""
        return Verdict(type(self).__name__, not fault, fault or note, measured)

    def skipped(self, reason: str) -> Verdict:
        return Verdict(type(self).__name__, True, f"skipped: {reason}")
