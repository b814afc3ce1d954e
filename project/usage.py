"""The commands, the options of those with their own parser, and the error of a command line."""

import argparse
from typing import NoReturn

DEFAULT_CONFIG = "synthetic"  # which can be tried without any data
COMMANDS = ("fit", "validate", "test", "predict", "check", "lr_find")
OWN_MAIN = {  # commands that are no LightningCLI's; all but export begin without torch
    "seed_noise": "project.seeds",
    "compare": "project.reports.compare",
    "runs": "project.reports.overview",
    "export": "project.export",
}
TEXTS = {
    "fit": "Train a model. All about the run is kept in runs/NAME/version_N.",
    "validate": "Measure the best epoch of a run on its validation images.",
    "test": "Measure the best epoch of a run on its test images: once, at the end.",
    "predict": "Write what a run says of each test image, or of each image in a folder.",
    "check": "Find out in seconds whether a run can work, and if not, why; nothing is trained.",
    "lr_find": "Draw the range of learning rates that train well, and apply none.",
    "seed_noise": "Train once per seed, and report how far results differ by chance.",
    "compare": "Compare sets of runs: difference, interval and verdict.",
    "runs": "List runs: how they stand, and what came out.",
    "export": "Write the network of a run as one file that runs without this package.",
}


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
