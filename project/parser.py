"""What the argument parser adds to Lightning's: config names, run folders, short messages."""

import argparse
import inspect
import re
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse._typehints
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_info
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from project.explain import explain, nearest
from project.failures import user_error
from project.files import check_folder, check_regular
from project.naming import forbid_calls
from project.plain import read_yaml
from project.run import BEST, CONFIG, LAST, read_config, read_record
from project.usage import COMMANDS, DEFAULT_CONFIG, UsageError

DERIVED = ("T_max", "max_lr")  # required by torch, but known from the run: see `Task`
# Lightning has a class of the same name, so that the short one would be ambiguous.
PLATEAU = "ReduceLROnPlateau"
# Arguments of a model that are those of the data.
LINKED = ("num_classes", "class_names", "in_channels", "image_size", "num_features")
# Options whose values follow from others, so that their own would be ignored.
FOLLOWS = {"--data.seed": "--seed_everything"}
FOLLOWS |= {f"--{key}": "--monitor" for key in ("model.monitor", "early_stopping.monitor")}
FOLLOWS |= {"--early_stopping.mode": "--monitor and --monitor_mode"}
FOLLOWS |= {"--model.monitor_mode": "--monitor_mode"}
FOLLOWS |= {f"--model.{key}": "--data" for key in LINKED}


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's, which keeps the lines of a description."""


class Parser(LightningArgumentParser):
    """Reports errors in one sentence, and lets schedules leave out what follows from the run."""

    def add_class_arguments(self, theclass: Any, *args: Any, **kwargs: Any) -> list[str]:
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        if inspect.isclass(theclass) and issubclass(theclass, LRScheduler):
            for action in self._actions:
                if action.dest in DERIVED:
                    action.required = False
                if theclass is ReduceLROnPlateau and action.dest == "mode":
                    action.default = None  # the monitor's, and not always "min"
        return added

    def format_help(self, *args: Any) -> str:
        # The trainer's options, which are most, come last.
        self._action_groups = sorted(self._action_groups, key=lambda g: "trainer" in str(g.title))
        return str(super().format_help(*args))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if getattr(self, "_inner_parser", False):  # of a class: the parser around it reports
            super().error(message, ex)
        if ex and user_error(ex):
            raise ex
        command = getattr(ex, "subcommand_parser", None) or self
        known = {name for action in command._actions for name in action.option_strings}
        raise UsageError(explain(message, known)) from ex


def _forget(parser: Any, previous: Any, value: Any) -> None:
    """Drop the arguments of the class before when a config or an option names another class.

    jsonargparse keeps those that the new class has too, so that `--model.optimizer AdamW` over
    a config with SGD at lr 0.1 would silently train AdamW at 0.1.
    """
    if previous and "init_args" in previous and previous["class_path"] != value["class_path"]:
        previous["init_args"] = Namespace()


jsonargparse._typehints.discard_init_args_on_class_path_change = _forget
forbid_calls()
_raise_for_union = jsonargparse._typehints.raise_union_unexpected_value


def _mistakes_first(subtypes: Any, val: Any, exceptions: list[Exception]) -> NoReturn:
    """Make an error in a user's code the cause, which jsonargparse takes from the first subtype."""
    _raise_for_union(subtypes, val, sorted(exceptions, key=lambda e: user_error(e) is None))


jsonargparse._typehints.raise_union_unexpected_value = _mistakes_first


def expand(args: list[str]) -> list[str]:
    """Replace names of shipped configs by their files, and a run folder by what is in it."""
    if (
        args
        and args[0] in COMMANDS
        and not {"--config", "-c", "--run", "-h", "--help"} & {arg.split("=")[0] for arg in args}
    ):
        rank_zero_info(f"No --config: this is {DEFAULT_CONFIG}, on images made on the spot.")
        args = [args[0], "--config", DEFAULT_CONFIG, *args[1:]]
    names = [arg.split("=")[0] for arg in args]
    for name in names:
        if name in FOLLOWS:
            raise UsageError(f"{name} follows from {FOLLOWS[name]}, and can't be set by itself")
    if "--run" in names and "--ckpt_path" in names and args[0] == "fit":
        raise UsageError("--run goes on from the run's last.ckpt: leave out --ckpt_path")
    if "--init_from" in names and "--run" in names:
        raise UsageError("--init_from starts a new run: leave out --run")
    expanded: list[str] = []
    rest = iter([part for arg in args for part in _split(arg)])
    for arg in rest:
        if arg in ("-c", "--config", "--run") and (value := next(rest, "--")).startswith("--"):
            raise UsageError(f"{arg} needs a value")
        if arg in ("-c", "--config"):
            expanded += ["--config", str(find_config(value))]
        elif arg == "--run":  # first, so that all other options win over its config
            expanded[1:1] = _run_arguments(Path(value), args[0])
        else:
            expanded.append(
                re.sub(rf"(^|=){PLATEAU}$", rf"\1torch.optim.lr_scheduler.{PLATEAU}", arg)
            )
    return expanded


def _split(arg: str) -> list[str]:
    return arg.split("=", 1) if arg.startswith(("--config=", "-c=", "--run=")) else [arg]


def config_folder() -> Path:
    """The folder of the shipped configs: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """The file of a config: a path, or a name such as `cifar` or `presets/bf16` from anywhere.

    Raises:
        UsageError: If there is none.
    """
    folder = config_folder()
    short = name.removeprefix("configs/").removesuffix(".yaml")
    for path in (Path(name), folder / f"{short}.yaml"):
        if path.exists() and not path.is_dir():
            try:
                read_yaml(path)
            except ValueError as error:
                raise UsageError(f"--config: {error}") from error
            return path
    shipped = [str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.rglob("*.yaml"))]
    raise UsageError(
        f"no config {name!r}{nearest(short, shipped)}; shipped are {', '.join(shipped)}"
    )


def _run_arguments(run: Path, command: str) -> list[str]:
    read_record(run)
    check_folder(run)  # before another library opens one of its files
    read_config(run)
    arguments = ["--config", str(run / CONFIG), "--run", str(run)]
    if command in ("check", "lr_find"):  # which look at the untrained network
        return arguments
    checkpoint = run / (LAST if command == "fit" else BEST)
    check_regular(checkpoint)
    if not checkpoint.is_file():
        raise UsageError(f"run {run} has no {checkpoint.relative_to(run)}")
    return [*arguments, "--ckpt_path", str(checkpoint)]
