"""Reports of errors: one sentence for a user's command line or files, a traceback for code.

Nothing here imports torch.
"""

import atexit
import hashlib
import linecache
import os
import re
import sys
import sysconfig
import tempfile
import time
import traceback
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from pathlib import Path
from typing import NamedTuple

from ..runs.errors import UsageError

PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = [PACKAGE / name for name in ("models", "data", "callbacks")]  # users add files to these
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
# A process that reads data sends its traceback as text.
SENT = "Traceback (most recent call last)"
SENT_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (\S+)', re.M)
FIRST_S = 1.0  # head start of the first process, in seconds, if all of them fail alike


class Frame(NamedTuple):
    """A line of code that was running when an error was raised."""

    file: str
    line: int
    function: str
    code: str = ""  # source text of the line

    @property
    def path(self) -> Path:
        """Absolute path of the file."""
        return Path(self.file).resolve()

    @property
    def is_library(self) -> bool:
        """Whether the line belongs to Python or to an installed package other than this one."""
        if self.path.is_relative_to(PACKAGE):
            return False
        installed = {"site-packages", "dist-packages"} & set(self.path.parts)
        compiled = self.file[:1] == "<" or self.path.suffix == ".pyx"
        return bool(installed) or compiled or STANDARD_LIBRARY in self.path.parents

    @property
    def is_machinery(self) -> bool:
        """Whether the line belongs to a part of this package that users do not add files to."""
        inside = self.path.is_relative_to(PACKAGE)
        return inside and not any(self.path.is_relative_to(room) for room in ROOMS)

    @property
    def is_step(self) -> bool:
        """Whether the line belongs to the step of a model, which no longer checks options."""
        return self.function == "forward" or self.function.endswith("_step")


def frames(error: BaseException) -> list[Frame]:
    """Return the frames of the place where an error was raised, the innermost frame last."""
    found = [
        Frame(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    for path, n, name in SENT_FRAME.findall(_sent(error)):
        found.append(Frame(path, int(n), name, linecache.getline(path, int(n)).strip()))
    if isinstance(error, SyntaxError) and error.filename:
        found.append(Frame(error.filename, error.lineno or 0, "<module>"))
    return found


def _sent(error: BaseException) -> str:
    """Return another process's traceback from the message or the cause of an error."""
    parts = (
        str(error),
        str(error.__cause__) if isinstance(error.__cause__, RemoteTraceback) else "",
    )
    return next((part for part in parts if SENT in part), "")


def user_error(error: BaseException | None) -> tuple[BaseException, Frame] | None:
    """Return the error, or the one that caused it, if it was raised by a user's own code.

    A ValueError or an OSError that a class of this package raises on purpose does not count: it
    refuses an option or a file, and its message says which.
    """
    if error is None:
        return None
    found = frames(error)
    own = [frame for frame in found if not frame.is_library]
    refused = isinstance(error, ValueError | OSError)
    if own and not own[-1].path.is_relative_to(PACKAGE):
        return None if isinstance(error, UsageError) else (error, own[-1])
    if own and not own[-1].is_machinery:
        deliberate = refused and (own[-1].code.startswith("raise") or isinstance(error, OSError))
        return None if deliberate and not own[-1].is_step else (error, own[-1])
    raised_here = bool(own) and found[-1] == own[-1]
    return None if raised_here else user_error(error.__cause__)


def report(error: Exception) -> int:
    """Print an error that ends the command, once for all processes of a run.

    Returns:
        The exit code: 2 for a command line or config that can't be carried out, otherwise 1.
    """
    summary, blamed = _summary(error), user_error(error)
    sentence = blamed is None and isinstance(error, ValueError | OSError)
    if claim(error):
        # An error that is reported as a sentence has notes only if it is about lost processes, and
        # then they are on its cause.
        kept = getattr(error.__cause__ if sentence else error, "__notes__", [])
        if not sentence:
            error.__notes__ = []  # printed after the traceback
            traceback.print_exception(blamed[0] if blamed else error)
        print(f"error: {summary}", *kept, sep="\n", file=sys.stderr)
    return 2 if isinstance(error, UsageError) and sentence else 1


def _summary(error: Exception) -> str:
    blamed = user_error(error)
    if blamed is None and isinstance(error, ValueError | OSError):
        return " ".join(str(error).split())
    cause, frame = blamed or (error, (frames(error) or [Frame("?", 0, "?")])[-1])
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [""]
    message = lines[-1 if SENT in str(cause) else 0]
    return f"{type(cause).__name__} in {frame.file}, line {frame.line}: {message}"


def claim(error: Exception) -> bool:
    """Return whether this process should print an error that all processes of a run may share.

    The first process always prints its own error, and calls this function as soon as it has failed.
    The others wait a moment for that. The processes that a run starts are children of its first
    process; those that torchrun starts have the same parent.
    """
    rank = os.environ.get("LOCAL_RANK")
    if rank is None:
        return True
    started = rank != "0" or "TORCHELASTIC_RUN_ID" in os.environ
    group = os.getppid() if started else os.getpid()
    digest = hashlib.sha256(_summary(error).encode(errors="replace")).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"error-shown-{group}-{digest}")
    try:
        if rank == "0":
            path.touch()
            atexit.register(path.unlink, missing_ok=True)
        else:
            time.sleep(FIRST_S)
            path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # if no claim can be written, an error printed twice is better than none
        return True
    return True
