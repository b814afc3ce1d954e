"""One seed of one config: its command, its run, and how its training ended."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..runs.folder import LAST
from ..runs.names import PACKAGE
from ..runs.record import Record
from ..runs.sets import read_runs, runs_in
from .variants import Variant

STOPS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Job:
    """One seed of one config."""

    variant: Variant
    seed: int

    def __str__(self) -> str:
        return f"{self.variant.folder.name}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """File that the training prints into."""
        return self.variant.folder / f"seed_{self.seed}.log"

    def record(self) -> Record | None:
        """Return the record of the finished run of this seed, or else of the newest one."""
        key = (self.variant.sha256, self.seed)
        records = read_runs(runs_in(self.variant.folder))[0]
        own = [r for r in records if (r.config_sha256, r.seed) == key]
        ended = [record for record in own if record.has_ended]
        return next(iter([*ended, *reversed(own)]), None)


State = Literal["training", "elsewhere", "finished", "reused", "interrupted", "failed"]


@dataclass(frozen=True)
class Status:
    """How a job stands: the record of its finished run, or the reason for its failure."""

    state: State
    record: Record | None = None
    reason: str = ""


ELSEWHERE, INTERRUPTED = Status("elsewhere"), Status("interrupted")


def fit_command(job: Job, resumed: Record | None) -> list[str]:
    """Return the command that trains a seed, or that continues its interrupted run."""
    fit = [sys.executable, "-m", PACKAGE, "fit"]
    if resumed and (resumed.run / LAST).is_file():
        return [*fit, "--run", str(resumed.run)]
    name = job.variant.folder.name
    return [*fit, *job.variant.args, "--name", name, "--seed_everything", str(job.seed)]


def status_at_end(job: Job, code: int | None) -> Status:
    """Return how a training ended.

    Args:
        job: Job that was trained.
        code: Exit code of its process; None if it was not started.
    """
    record = job.record()
    if record and record.has_ended:
        return Status("finished", record)
    if code is None or {-code, code - 128} & STOPS:
        return INTERRUPTED
    said = [line.strip() for line in job.log.read_text(errors="replace").split("\n")]
    errors = [line for line in said if line.startswith("error: ")]
    why = (errors or [line for line in said if line] or ["it printed nothing"])[-1]
    if code < 0:
        why = f"killed by {signal.Signals(-code).name}"
    elif code == 0:
        why = "no finished run of this config"
    return Status("failed", reason=f"{why} ({job.log})")
