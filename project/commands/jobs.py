"""Trainings as child processes: each seed once, whoever trains it, and stopped like their parent.

A child has a session of its own, so that a signal reaches it once, from here. Children of a parent
that was killed go on; the next call waits for them, as for those of other machines in one folder.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from filelock import FileLock, Timeout

from ..runs.files import check_regular
from ..runs.folder import LAST
from ..runs.lock import is_free
from ..runs.names import PACKAGE
from ..runs.record import Record
from ..runs.sets import read_runs, runs_in
from .variants import Variant

POLL_S = 0.2
STOPS = {signal.SIGINT, signal.SIGTERM}
State = Literal["waiting", "elsewhere", "training", "finished", "interrupted", "failed"]


@dataclass
class Job:
    """One seed of one config."""

    variant: Variant
    seed: int
    state: State = "waiting"
    reason: str = ""  # for having failed
    result: Record | None = None  # the record of the finished run
    process: subprocess.Popen[bytes] | None = None
    begin: float = 0.0

    def __post_init__(self) -> None:
        self.folder = self.variant.folder
        self.log = self.folder / f"seed_{self.seed}.log"
        self.lock = FileLock(self.folder / f".seed_{self.seed}.lock")

    def record(self) -> Record | None:
        """Of the finished run of this seed, or else of the newest one."""
        records = read_runs(runs_in(self.folder))[0]
        key = (self.variant.sha256, self.seed)
        own = [r for r in records if (r.config_sha256, r.seed) == key]
        ended = [record for record in own if record.has_ended]
        return next(iter([*ended, *reversed(own)]), None)

    def start(self, environment: dict[str, str]) -> None:
        """Train, unless the run is finished or another process is at it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            self.state = "elsewhere"
            return
        record = self.record()
        if record and record.has_ended:
            self._end("finished", record)
        elif record and not is_free(record.run):
            self._end("elsewhere")
        else:
            resumable = record and (record.run / LAST).is_file()
            self._train(["--run", str(record.run)] if record and resumable else [], environment)

    def _train(self, resume: list[str], environment: dict[str, str]) -> None:
        new = [*self.variant.args, "--name", self.folder.name, "--seed_everything", str(self.seed)]
        check_regular(self.log)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", PACKAGE, "fit", *(resume or new)],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.state, self.begin = "training", time.monotonic()

    def send(self, signum: int) -> None:
        """Signal all processes of the training."""
        assert self.process is not None
        if self.process.poll() is None and hasattr(os, "killpg"):
            os.killpg(self.process.pid, signum)  # on Windows the console has signalled all

    def poll(self) -> None:
        """See whether the training has ended, and how."""
        assert self.process is not None
        if (code := self.process.poll()) is None:
            return
        record = self.record()
        if record and record.has_ended:
            self._end("finished", record)
        elif {-code, code - 128} & STOPS:
            self._end("interrupted")
        else:
            said = [
                s.strip() for s in self.log.read_text(errors="replace").split("\n") if s.strip()
            ]
            errors = [line for line in said if line.startswith("error: ")]
            why = (errors or said or ["no word"])[-1]
            if code < 0:
                why = f"killed by {signal.Signals(-code).name}"
            elif code == 0:
                why = "no finished run of this config"
            self.reason = f"{why} ({self.log})"
            self._end("failed")

    def _end(self, state: State, result: Record | None = None) -> None:
        self.state, self.result = state, result
        with suppress(OSError):
            Path(self.lock.lock_file).unlink()
        self.lock.release()


def work(jobs: Sequence[Job], number: int, show: Callable[[], None]) -> int:
    """Do all jobs, some at a time.

    Args:
        jobs: In their order.
        number: Of them at a time.
        show: Called again and again, to show how they stand.

    Returns:
        The signal that has stopped the work before its end, or 0.
    """
    slots: list[Job | None] = [None] * number
    gpus = visible_gpus() if number > 1 else []
    stopped, states = 0, {"waiting", "elsewhere"}
    with _signals() as pending:
        try:
            while "training" in states or (states & {"waiting", "elsewhere"} and not stopped):
                running = [job for job in jobs if job.state == "training"]
                while pending:
                    stopped = pending.pop(0)
                    for job in running:
                        job.send(stopped)
                for job in running:
                    job.poll()
                if not stopped:
                    _start(jobs, slots, gpus)
                show()
                states = {job.state for job in jobs}
                time.sleep(POLL_S)
        finally:
            for job in jobs:
                if job.state == "training" and job.process:  # there was an error
                    job.send(signal.SIGTERM)
                    job.process.wait()
    return stopped


def _start(jobs: Sequence[Job], slots: list[Job | None], gpus: list[str]) -> None:
    """Fill the free slots."""
    for job in jobs:
        free = [i for i, other in enumerate(slots) if not other or other.state != "training"]
        if free and job.state in ("waiting", "elsewhere"):
            job.start(environment(free[0], len(slots), gpus, job.variant.devices))
            slots[free[0]] = job


def environment(slot: int, number: int, gpus: list[str], devices: int | None) -> dict[str, str]:
    """The share of threads and GPUs of one of several jobs at a time."""
    variables = {}
    if number > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // number))
    if devices and (shares := len(gpus) // devices) > 1:
        first = slot % shares * devices
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + devices])
    return variables


def visible_gpus() -> list[str]:
    """Names of the GPUs as CUDA_VISIBLE_DEVICES takes them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i in range(found.stdout.count("GPU "))]


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that came, in place of what they do."""
    pending: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        pending.append(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)

    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    before = {n: signal.getsignal(n) for n in numbers if n}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(number, handle)
    try:
        yield pending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
