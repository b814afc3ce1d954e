"""The commands, and the options of those with their own parser."""

import argparse
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple, NoReturn

from ..runs.errors import UsageError
from ..runs.names import PROGRAM

DEFAULT_CONFIG = "synthetic"  # which needs no data
COMMANDS = ("fit", "validate", "test", "predict", "check", "lr_find")
TEXTS = {
    "fit": "Train a model. Everything about the run is kept in runs/NAME/version_N.",
    "validate": "Measure the best epoch of a run on its validation images.",
    "test": "Measure the best epoch of a run on its test images: once, at the end.",
    "predict": "Write a run's predictions for the test images, or for a folder of images.",
    "check": "Find out in seconds whether a run can work, and why not; nothing is trained.",
    "lr_find": "Draw the loss over the learning rate, and suggest a range to start with.",
    "seed_noise": "Train once per seed, and report how much results differ by chance.",
    "compare": "Compare sets of runs: difference, interval and verdict.",
    "runs": "List runs with their status and results.",
    "export": "Write the network of a run as one file that runs without this package.",
}
# Commands with a parser of their own, and their modules; all but export start without torch.
OWN_MAIN = {name: f"{__package__}.{name}" for name in TEXTS if name not in COMMANDS}


class OptionParser(argparse.ArgumentParser):
    """A parser that reports errors in one sentence and takes no abbreviations.

    Args:
        command: Name of the command.
        text: Description of the command, in which `%(prog)s` is how it is called.
    """

    def __init__(self, command: str, text: str) -> None:
        super().__init__(
            prog=f"{PROGRAM} {command}",
            description=text,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: see {self.prog} --help")


def check_name(name: str) -> None:
    """Refuse a name of a run whose folder would not lie below the folder of all runs."""
    path = PurePath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or not name.isprintable():
        raise UsageError(f"--name {name!r} is not the name of a folder below the folder of runs")


class Given(NamedTuple):
    """The arguments of a command of COMMANDS, taken apart.

    Args:
        configs: Values of `--config`, in their order.
        run: Value of `--run`, if it is given.
        options: All other arguments, in their order.
    """

    configs: list[str]
    run: str | None
    options: list[str]

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Names of the options, without dashes, and their values, which may be empty."""
        pairs = []
        for arg, value in pairwise([*self.options, ""]):
            if _is_option(arg):
                name, equals, own = arg[2:].partition("=")
                value = own if equals else "" if _is_option(value) else value
                pairs.append((name.replace(".init_args", ""), value))
        return pairs

    @property
    def asks_for_help(self) -> bool:
        """Whether the arguments ask for the help of the command or of a class."""
        names = [name.rpartition(".")[2] for name, _ in self.settings]
        return "help" in names or "-h" in self.options

    @property
    def has_config(self) -> bool:
        """Whether the arguments say which model is trained on which data."""
        names = {name for name, _ in self.settings}
        return bool(self.configs or self.run) or {"model", "data"} <= names

    @property
    def name(self) -> str:
        """Name of the run, unless `--name` gives another one."""
        if not self.has_config:
            return DEFAULT_CONFIG
        return Path(self.configs[0]).stem if self.configs else "run"


def _is_option(arg: str) -> bool:
    """Return whether argparse reads an argument as an option, and not as the value of one."""
    return arg.startswith("--") and " " not in arg.partition("=")[0]


class _Sources(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        name = message.removeprefix("argument ").split(":")[0].split("/")[-1]
        raise UsageError(f"{name} needs a value")


def take_apart(args: list[str]) -> Given:
    """Separate configs and a run from the other options, wherever they stand."""
    parser = _Sources(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("-c", "--config", action="append", default=[])
    parser.add_argument("--run", default=None)
    found, options = parser.parse_known_args(args)
    if found.run == "":
        raise UsageError("--run needs a value")
    return Given(found.config, found.run, options)
