"""Options of the commands that start without torch, and the error of a command line."""

import argparse
from typing import NoReturn

DEFAULT_CONFIG = "synthetic"  # which can be tried without any data
WITHOUT_TORCH = {"seed_noise": "project.seeds", "compare": "project.reports.compare"}
OWN_MAIN = WITHOUT_TORCH | {"export": "project.export"}  # commands that are no LightningCLI's


class UsageError(ValueError):
    """A command line or config that can't be carried out; the message is for the user."""


class OptionParser(argparse.ArgumentParser):
    """Reports errors in one sentence, and takes no abbreviations.

    Args:
        command: Its name.
        text: What it does.
    """

    def __init__(self, command: str, text: str) -> None:
        super().__init__(
            prog=f"python -m project {command}",
            description=text,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: see {self.prog} --help")
