"""What SIGTERM, Ctrl-C and SIGUSR1 do to a command, from its first import to its last picture.

One of three handlers is in place at any time. Before there is anything to clean up, `leave` ends
the process. `stop` raises `Stopped`, so that what is unfinished can be removed. While a run trains,
its LastCheckpoint has a handler of its own, which saves first. Nothing here imports torch, because
this module is imported first.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType

# scripts/slurm.sbatch lets SLURM send SIGUSR1 before the time limit; Windows does not have it.
SIGNALS = (signal.SIGTERM, signal.SIGINT, *filter(None, [getattr(signal, "SIGUSR1", None)]))
Handler = Callable[[int, FrameType | None], None]


class Stopped(SystemExit):
    """A signal has ended the command; the exit code is 128 + its number, as in a shell."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.name = signal.Signals(signum).name


class Interrupted(Stopped):
    """A signal has stopped a run after its state was saved."""


def handle_by(handler: Handler) -> None:
    """Let one function handle all signals from now on. Only the main thread may call this."""
    for number in SIGNALS:
        signal.signal(number, handler)


def say(sentence: str) -> None:
    """Write to stderr, even from within a signal handler. Of several processes, the first does."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.write(2, f"\n{sentence}\n".encode())


def leave(signum: int, frame: FrameType | None) -> None:
    """End the process at once.

    An exception would not do, since Python drops one that is raised in a callback of an import.
    """
    say(f"Stopped by {signal.Signals(signum).name}.")
    os._exit(128 + signum)


def stop(signum: int, frame: FrameType | None) -> None:
    """Raise `Stopped`. During the clean-up, only another Ctrl-C counts, and ends at once."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
    raise Stopped(signum)
