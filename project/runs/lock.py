"""The lock of a run folder, held by the one process that trains the run."""

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from .files import check_regular, open_regular
from .folder import LOCK


def lock_run(run: Path) -> BaseFileLock | None:
    """Lock a run for this process; return None if another process is training it."""
    check_regular(run / LOCK)
    lock = FileLock(run / LOCK)
    try:
        lock.acquire(timeout=0.2)  # another process may be checking whether it is free
    except Timeout:
        return None
    return lock


def is_free(run: Path) -> bool:
    """Return whether no process is training a run.

    Checking creates no file and does not block other checks.
    """
    try:
        import fcntl

        with open_regular(run / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows and some file systems have no such locks
        if lock := lock_run(run):
            lock.release()
        return lock is not None
    return True
