"""Child processes that are stopped together, by the signals that reach their parent.

A child has a session of its own, so that a signal reaches it once, from here.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..runs.files import check_regular


class Children:
    """Starts processes from several threads, until they are stopped."""

    def __init__(self) -> None:
        self.stopped_by = 0  # the last signal that was sent to them
        self.stopping = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a signal may arrive while the main thread holds it

    def run(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> int | None:
        """Run a command to its end and return its exit code.

        Args:
            command: Program and arguments.
            log: File that what it prints is appended to.
            environment: Variables that it has besides those of this process.

        Returns:
            None if the children have been stopped, so that it was not started.
        """
        check_regular(log)
        with log.open("a") as file:
            with self._lock:
                if self.stopping.is_set():
                    return None
                process = subprocess.Popen(
                    command,
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._running.add(process)
            code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def stop(self, signum: int) -> None:
        """Send a signal to all processes of all children, and start no others."""
        with self._lock:
            self.stopped_by = signum
            self.stopping.set()
            for process in self._running:
                # On Windows the console has sent the signal to all of them.
                if process.poll() is None and hasattr(os, "killpg"):
                    os.killpg(process.pid, signum)

    @contextmanager
    def stopped_by_errors(self) -> Iterator[None]:
        """Stop the children if an error is raised."""
        try:
            yield
        except BaseException:
            self.stop(signal.SIGTERM)
            raise

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Send the children the signals that would end this process."""

        def handle(signum: int, frame: FrameType | None) -> None:
            self.stop(signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)

        numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
        previous = {n: signal.getsignal(n) for n in numbers if n}
        for number, handler in previous.items():
            if handler != signal.SIG_IGN:  # as SIGHUP is under nohup
                signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
