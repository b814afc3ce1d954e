"""Checks that refuse a run which could not work, by what they measure before its first step."""

import json
import math
import textwrap
import time
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
from .diagnosis import Diagnosis, smoothing_floor
from .rehearsal import first_examples, rehearse, smoothing_of

SLOW = 0.75  # of the first loss: a model that is below it and still falls does learn
NEAR_ZERO = 0.05  # of ln C: the right class has a probability of 0.89, of 10 classes


@dataclass
class Verdict:
    """What a check found: `diagnosis` says what is wrong, if anything, and `measured` how much."""

    name: str
    passed: bool
    diagnosis: str
    measured: dict[str, Any] = field(default_factory=dict)


def describe(verdicts: Sequence[Verdict]) -> str:
    """A table: whether each check passed, and the diagnosis or the numbers."""
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
    budget_s = math.inf  # of its optimiser steps, of which it does one at least

    @abstractmethod
    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        """Measure a run that is set up and has not begun."""

    def measure(self, trainer: L.Trainer, model: L.LightningModule) -> Verdict:
        """The verdict on a run that is set up; one without class labels passes."""
        batch = first_examples(trainer, self.split, self.examples)
        if batch is None or not model.automatic_optimization:
            return self.skipped("no examples with class labels, or manual optimisation")
        return self.look(trainer, model, batch)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.ckpt_path is not None:
            return  # a run that goes on was looked at when it began
        verdict = self.announced(trainer, pl_module)
        if not verdict.passed:
            raise ValueError(
                f"this run was not started: {verdict.diagnosis} ({verdict.name}; to start it all "
                "the same: --preflight false)"
            )
        if verdict.diagnosis:
            rank_zero_info(f"{verdict.name} passed: {verdict.diagnosis}")

    def announced(self, trainer: L.Trainer, model: L.LightningModule) -> Verdict:
        """The verdict, after saying that one is being made, and how long it may take."""
        longest = f", {self.budget_s:g} s at most" if self.budget_s < math.inf else ""
        rank_zero_info(f"Pre-flight: {type(self).__name__}{longest}")
        return self.measure(trainer, model)

    def verdict(self, fault: str, **measured: Any) -> Verdict:
        return Verdict(type(self).__name__, not fault, fault, measured)

    def skipped(self, reason: str) -> Verdict:
        return Verdict(type(self).__name__, True, f"skipped: {reason}")


class OverfitOneBatch(Check):
    """Refuses a model that can't learn one batch by heart, and says why.

    A copy is trained on a fixed batch by the run's own training step, precision, clipping and
    optimiser, at its learning rate without the schedule and without augmentation, until the loss is
    near zero and each prediction right. Whoever learns slowly but surely passes as well, and so
    does what could not be found out: in the time, or because most of the network is frozen.
    """

    examples = 32
    num_steps = 200  # after which it must be done
    budget_s = 30.0

    def look(self, trainer: L.Trainer, model: L.LightningModule, batch: Batch) -> Verdict:
        start = time.monotonic()
        classes = getattr(model, "num_classes", int(batch[1].max()) + 1)
        floor = smoothing_floor(smoothing_of(model), classes)
        enough = floor + NEAR_ZERO * math.log(classes)
        seen, trained = rehearse(trainer, model, batch, self.num_steps, enough, self.budget_s)
        diagnosis = Diagnosis(batch, model, trained, seen)
        fault, note = next(diagnosis.faults(), ""), ""
        first, last = (seen.losses[0], seen.losses[-1]) if seen.losses else (math.nan, math.nan)
        slow = last - floor < SLOW * (first - floor) and diagnosis.still_falling
        if not (fault or seen.succeeded or slow):
            fault, note = self._why(diagnosis)
        verdict = self.verdict(
            fault,
            steps=len(seen.losses),
            loss_first=first,
            loss_last=last,
            floor=floor,
            accuracy=seen.accuracy,
            seconds=time.monotonic() - start,
        )
        verdict.diagnosis = fault or note
        return verdict

    def _why(self, diagnosis: Diagnosis) -> tuple[str, str]:
        """What is wrong, or what could not be found out."""
        seen = diagnosis.seen
        went = f"the loss went from {seen.losses[0]:.3g} to {seen.losses[-1]:.3g}"
        unknown = f"whether the model can learn one batch by heart was not found out: {went}"
        if seen.out_of_time:
            time_s = f"{len(seen.losses)} steps, all that fit into {self.budget_s:g} s"
            return "", f"{unknown} in {time_s}"
        fault = next(diagnosis.reasons(), "")
        return fault, "" if fault else f"{unknown}, and {diagnosis.frozen()}"
