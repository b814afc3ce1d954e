"""What the argument parser adds to Lightning's: short messages, and rules for classes by name."""

import argparse
import inspect
import re
from enum import Enum
from typing import Any, NoReturn

import jsonargparse._typehints
import yaml
from jsonargparse import DefaultHelpFormatter, Namespace
from jsonargparse._util import import_object
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torchmetrics import Metric

from ..engine.failures import user_error
from ..engine.metrics import NUMBERS
from ..runs.errors import UsageError
from .errors import explain
from .naming import forbid_calls

# Required by the class, but known from the run and its data: see `Task`.
DERIVED = {LRScheduler: ("T_max", "max_lr"), Metric: NUMBERS}
OWN = (LightningModule, LightningDataModule)
# Lightning has a class of the same name, so that the short one would be ambiguous.
PLATEAU = "ReduceLROnPlateau"
# Of groups of options, in place of what Lightning's docstrings begin with.
TITLES = {
    "<class 'lightning.pytorch.core.module": "The network, its loss and its optimiser",
    "A DataModule": "The data",
    "Runs the full optimization": "The checkpoint",
    "Perform one evaluation": "The checkpoint",
    "Run inference": "The checkpoint",
    "Lightning's trainer": "Lightning's trainer",
}


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's, which keeps the lines of a description and lists what can be chosen."""

    def _expand_help(self, action: Any) -> str:
        # Without Lightning's own two, which are abstract.
        return re.sub(r"lightning\.Lightning\w+, ", "", super()._expand_help(action))


class Parser(LightningArgumentParser):
    """Reports errors in one sentence, and lets schedules leave out what follows from the run."""

    def add_class_arguments(self, theclass: Any, *args: Any, **kwargs: Any) -> list[str]:
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        for kind, names in DERIVED.items():
            if inspect.isclass(theclass) and issubclass(theclass, kind):
                for action in self._actions:
                    if action.dest in names:
                        action.required = False
        if theclass is ReduceLROnPlateau:
            for action in self._actions:
                if action.dest == "mode":
                    action.default = None  # the monitor's, and not always "min"
        return added

    def format_help(self, *args: Any) -> str:
        # The trainer's options, which are most, come last.
        for group in self._action_groups:
            for beginning, title in TITLES.items():
                if str(group.title).startswith(beginning):
                    group.title = title
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


# Arguments of Lightning's classes may default to one, which YAML would refuse to write.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, kind: dumper.represent_data(kind.value))
_keep_valid = jsonargparse._typehints.discard_init_args_on_class_path_change


def _forget(parser: Any, previous: Any, value: Any) -> None:
    """Drop the arguments of the previous class when a config or an option names another class.

    jsonargparse keeps those that the new class has too, so that `--model.optimizer AdamW` over
    a config with SGD at lr 0.1 would silently train AdamW at 0.1. A model or data of a subclass
    keep them: a network of one's own that extends the config's is trained as the config says.
    """
    if not previous or not previous.get("init_args"):
        return
    old, new = previous["class_path"], value["class_path"]
    if old == new:
        return
    kinds = tuple(import_object(path) for path in (new, old))
    own = all(inspect.isclass(kind) and issubclass(kind, OWN) for kind in kinds)
    if own and issubclass(*kinds):
        _keep_valid(parser, previous, value)
    else:
        previous["init_args"] = Namespace()


jsonargparse._typehints.discard_init_args_on_class_path_change = _forget
forbid_calls()
_raise_for_union = jsonargparse._typehints.raise_union_unexpected_value


def _mistakes_first(subtypes: Any, val: Any, exceptions: list[Exception]) -> NoReturn:
    """Make an error in a user's code the cause, which jsonargparse takes from the first subtype."""
    _raise_for_union(subtypes, val, sorted(exceptions, key=lambda e: user_error(e) is None))


jsonargparse._typehints.raise_union_unexpected_value = _mistakes_first
_resolve = jsonargparse._typehints.resolve_class_path_by_name


def _resolve_class(cls: Any, name: str) -> str:
    return f"torch.optim.lr_scheduler.{name}" if name == PLATEAU else _resolve(cls, name)


jsonargparse._typehints.resolve_class_path_by_name = _resolve_class
