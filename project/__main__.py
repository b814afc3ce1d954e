"""The program. Commands that only read files or start processes do not import torch."""

import gc
import io
import sys
from importlib import import_module

from .commands.table import OWN_MAIN
from .engine.failures import report
from .engine.signals import Interrupted, Stopped, handle_by, leave, say, stop


def console() -> None:
    """Run the command of the shell; an error in its input is one sentence."""
    handle_by(leave)
    args = [arg for arg in sys.argv[1:] if arg != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may hold bytes that are not text
            stream.reconfigure(errors="backslashreplace")
    try:
        if args and args[0] in OWN_MAIN:
            own = import_module(OWN_MAIN[args[0]])
            handle_by(stop)
            sys.exit(own.main(args[1:]))
        gc.disable()  # imports leave no garbage, and looking for it takes an eighth of their time
        cli = import_module(".commands.cli", __package__)
        gc.freeze()  # training does not look at what was imported
        gc.enable()
        handle_by(stop)
        sys.exit(cli.run(args))
    except Stopped as stopped:
        if not isinstance(
            stopped, Interrupted
        ):  # the run has already said so, and how to continue it
            say(f"Stopped by {stopped.name}.")
        raise
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sys.exit(report(error))


if __name__ == "__main__":
    console()
