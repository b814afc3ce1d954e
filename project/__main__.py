"""The program: commands that read files or start processes begin without torch."""

import gc
import io
import sys
from importlib import import_module

from .commands.table import OWN_MAIN
from .engine.failures import report
from .engine.signals import Interrupted, Stopped, handle_by, leave, say, stop


def console() -> None:
    """The command of the shell, with one sentence for what is wrong with its input."""
    handle_by(leave)
    args = [arg for arg in sys.argv[1:] if arg != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name may hold bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    try:
        if args and args[0] in OWN_MAIN:
            own = import_module(OWN_MAIN[args[0]])
            handle_by(stop)
            sys.exit(own.main(args[1:]))
        gc.disable()  # what is imported is no garbage; to look for it nearly doubles the time
        cli = import_module(".commands.cli", __package__)
        gc.freeze()  # nor is it looked at while it trains
        gc.enable()
        handle_by(stop)
        sys.exit(cli.run(args))
    except Stopped as stopped:
        if not isinstance(stopped, Interrupted):  # which the run has told, with how to continue it
            say(f"Stopped by {stopped.name}.")
        raise
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sys.exit(report(error))


if __name__ == "__main__":
    console()
