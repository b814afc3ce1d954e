"""What the argument parser adds to Lightning's: short messages, and rules for classes by name."""

import inspect
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeAlias

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torchmetrics import Metric

from ..engine.failures import user_error
from ..engine.metrics import NUMBERS
from ..runs.errors import UsageError
from .errors import explain
from .internals import (
    ShownHelp,
    actions,
    arrange_groups,
    import_object,
    is_inner,
    replace_function,
)
from .naming import forbid_calls

Function: TypeAlias = Callable[..., Any]  # a function of jsonargparse that is replaced

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


class HelpFormatter(ShownHelp):
    """jsonargparse's, which keeps the lines of a description and lists what can be chosen."""

    def shown(self, text: str) -> str:
        # Without Lightning's own two, which are abstract.
        return re.sub(r"lightning\.Lightning\w+, ", "", text)


class Parser(LightningArgumentParser):
    """Reports errors in one sentence, and lets schedules leave out what follows from the run."""

    def add_class_arguments(self, theclass: Any, *args: Any, **kwargs: Any) -> list[str]:
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        for kind, names in DERIVED.items():
            if inspect.isclass(theclass) and issubclass(theclass, kind):
                for action in actions(self):
                    if action.dest in names:
                        action.required = False
        if theclass is ReduceLROnPlateau:
            for action in actions(self):
                if action.dest == "mode":
                    action.default = None  # the monitor's, and not always "min"
        return added

    def format_help(self, *args: Any) -> str:
        # The trainer's options, which are most, come last.
        arrange_groups(self, _title, order=lambda title: "trainer" in title)
        return str(super().format_help(*args))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if is_inner(self):  # of a class: the parser around it reports
            super().error(message, ex)
        if ex and user_error(ex):
            raise ex
        command = getattr(ex, "subcommand_parser", None) or self
        known = {name for action in actions(command) for name in action.option_strings}
        raise UsageError(explain(message, known)) from ex


# Arguments of Lightning's classes may default to one, which YAML would refuse to write.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, kind: dumper.represent_data(kind.value))


def _title(text: str) -> str:
    return next((new for start, new in TITLES.items() if text.startswith(start)), text)


def _forget(keep_valid: Function, parser: Any, previous: Any, value: Any) -> None:
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
        keep_valid(parser, previous, value)
    else:
        previous["init_args"] = Namespace()


def _mistakes_first(
    raise_error: Function, subtypes: Any, val: Any, exceptions: list[Exception]
) -> Any:
    """Make an error in a user's code the cause, which jsonargparse takes from the first subtype."""
    return raise_error(subtypes, val, sorted(exceptions, key=lambda e: user_error(e) is None))


def _resolve_class(resolve: Function, cls: Any, name: str) -> Any:
    return f"torch.optim.lr_scheduler.{name}" if name == PLATEAU else resolve(cls, name)


forbid_calls()
replace_function("discard_init_args_on_class_path_change", lambda old: partial(_forget, old))
replace_function("raise_union_unexpected_value", lambda old: partial(_mistakes_first, old))
replace_function("resolve_class_path_by_name", lambda old: partial(_resolve_class, old))
