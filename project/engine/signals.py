"""What SIGTERM, Ctrl-C and SIGUSR1 do to a command, from its first import to its last picture.

At any moment one of three handlers is in place. Before there is anything to clean up, `leave` ends
the process. `stop` raises `Stopped`, so that what is unfinished can be removed. While a run trains,
its LastCheckpoint has a handler of its own, which saves first. Nothing here imports torch: it is
the first module that is imported.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType

# SIGUSR1 is SLURM's warning before the time limit, by scripts/slurm.sbatch; Windows has none.
SIGNALS = (signal.SIGTERM, signal.SIGINT, *filter(None, [getattr(signal, "SIGUSR1", None)]))
Handler = Callable[[int, FrameType | None], None]


class Stopped(SystemExit):
    """A signal has ended the command; the exit code is 128 + its number, as of a shell."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.name = signal.Signals(signum).name


class Interrupted(Stopped):
    """A signal has stopped a run after its state was saved."""


def handle_by(handler: Handler) -> None:
    """Have all signals handled by one function from now on; this is for the main thread."""
    for number in SIGNALS:
        signal.signal(number, handler)


def say(sentence: str) -> None:
    """Write to stderr, also from within a signal handler; of several processes the first does."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.write(2, f"\n{sentence}\n".encode())


def leave(signum: int, frame: FrameType | None) -> None:
    """End the process at once.

    An exception would not do: Python drops those that are raised in the callbacks of an import.
    """
    say(f"Stopped by {signal.Signals(signum).name}.")
    os._exit(128 + signum)


def stop(signum: int, frame: FrameType | None) -> None:
    """Raise `Stopped`. Until it has cleaned up, only another Ctrl-C is heard: it ends at once."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
    raise Stopped(signum)
