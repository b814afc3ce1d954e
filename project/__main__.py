"""`python -m project`: the commands that read files or start processes begin without torch."""

import gc
import signal
import sys
from importlib import import_module

from project.failures import report
from project.usage import OWN_MAIN


def console() -> None:
    """The command of the shell, with one sentence for what is wrong with its input."""
    args = [arg for arg in sys.argv[1:] if arg != "--debug"]
    try:
        if args and args[0] in OWN_MAIN:
            sys.exit(import_module(OWN_MAIN[args[0]]).main(args[1:]))
        gc.disable()  # what is imported is no garbage; to look for it nearly doubles the time
        cli = import_module("project.cli")
        gc.freeze()  # nor is it looked at while it trains
        gc.enable()
        sys.exit(cli.run(args))
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    console()
