"""Training runs as child processes: each seed is trained once, by whichever process gets to it.

If a parent is killed, its children continue. The next call waits for them, as it does for the runs
of other machines that share the folder.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from filelock import FileLock, Timeout

from ..runs.lock import is_free
from ..runs.record import Record
from .children import Children
from .device_shares import environment, visible_gpus
from .job import ELSEWHERE, INTERRUPTED, Job, Status, fit_command, status_at_end

POLL_S = 1.0  # seconds between two looks at a run that another process is training

Show = Callable[[Job, Status], None]


def run_jobs(jobs: Sequence[Job], number: int, show: Show) -> tuple[list[Status], int]:
    """Run all jobs, and wait at the end for those that other processes are training.

    Args:
        jobs: Jobs, in their order.
        number: Number of jobs that train at the same time.
        show: Function that is called, from several threads, when the status of a job changes.

    Returns:
        The last status of each job, and the number of the signal that stopped them early, or 0.
    """
    children = Children()
    worker = _Worker(children, number, show)

    def run_all(chosen: Sequence[Job], waits: bool) -> list[Status]:
        futures = [pool.submit(worker.run, job, waits) for job in chosen]
        wait(futures, return_when=FIRST_EXCEPTION)
        return [future.result() for future in futures]

    with (
        children.stopped_by_signals(),
        ThreadPoolExecutor(number) as pool,
        children.stopped_by_errors(),  # otherwise the pool would wait until they finish
    ):
        found = run_all(jobs, waits=False)
        others = [i for i, status in enumerate(found) if status == ELSEWHERE]
        waited_for = run_all([jobs[i] for i in others], waits=True)
        for i, status in zip(others, waited_for, strict=True):
            found[i] = status
    return found, children.stopped_by


class _Worker:
    """A callable that runs one job; several threads call it at the same time."""

    def __init__(self, children: Children, number: int, show: Show) -> None:
        self.children, self.number, self.show = children, number, show
        self.gpus = visible_gpus() if number > 1 else []
        self.slots = SimpleQueue[int]()
        for slot in range(number):
            self.slots.put(slot)

    def run(self, job: Job, waits: bool) -> Status:
        with self.children.stopped_by_errors():  # stops them at once, so that no other job starts
            if self.children.stopping.is_set():
                return INTERRUPTED
            status = _unless_elsewhere(job, self.train)
            if waits and status == ELSEWHERE:
                self.show(job, status)
            while waits and status == ELSEWHERE:
                stops = self.children.stopping.wait(POLL_S)
                status = INTERRUPTED if stops else _unless_elsewhere(job, self.train)
            if status != ELSEWHERE:
                self.show(job, status)
            return status

    def train(self, job: Job, resumed: Record | None) -> Status:
        slot = self.slots.get()  # one is always free, since there are as many slots as threads
        try:
            self.show(job, Status("training"))
            share = environment(slot, self.number, self.gpus, job.variant.devices)
            code = self.children.run(fit_command(job, resumed), job.log, share)
        finally:
            self.slots.put(slot)
        return status_at_end(job, code)


def _unless_elsewhere(job: Job, train: Callable[[Job, Record | None], Status]) -> Status:
    """Train a seed or reuse its finished run, unless another process is training it."""
    folder = job.variant.folder
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".seed_{job.seed}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return ELSEWHERE
    try:
        record = job.record()
        if record and record.has_ended:
            return Status("reused", record)
        return ELSEWHERE if record and not is_free(record.run) else train(job, record)
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()
