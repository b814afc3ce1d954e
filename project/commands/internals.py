"""What the project uses of the insides of jsonargparse and LightningCLI, and why.

Nothing public does the same. The versions are jsonargparse 4.53.0 and Lightning 2.6.6; the test of
the same name in `test_parser_internals.py` fails if an inside has changed. Messages of jsonargparse
are matched in `error_table.py`.
"""

import argparse
from collections.abc import Callable
from typing import Any

from jsonargparse import DefaultHelpFormatter, _loaders_dumpers, _typehints, _util
from jsonargparse._util import import_object as import_object  # resolves names as options do
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

# The functions that are replaced, with the module that calls them and their parameters.
REPLACED: dict[str, tuple[Any, str]] = {
    # It has a function that returns a class stand for that class.
    "function_returns_subclass": (_typehints, "function subclass_types logger"),
    # It makes an object of any class that is named where an argument has no type.
    "adapt_classes_any": (
        _typehints,
        "val typehint serialize instantiate_classes sub_add_kwargs logger",
    ),
    # It calls a function whose name is given where a class is wanted.
    "adapt_class_type": (
        _typehints,
        "value serialize instantiate_classes sub_add_kwargs prev_val partial_skip_args typehint",
    ),
    # It does not say what to do about a name that is denied.
    "check_import_path": (_util, "path"),
    # It keeps the arguments of a class when another one is named.
    "discard_init_args_on_class_path_change": (_typehints, "parser_or_action prev_val value"),
    # It blames an error in a user's class on the first type of a union.
    "raise_union_unexpected_value": (_typehints, "subtypes val exceptions"),
    # It finds two classes where Lightning has one of the same name as torch.
    "resolve_class_path_by_name": (_typehints, "cls name"),
}


def replace_function(name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of jsonargparse for all of this process.

    Args:
        name: Name in REPLACED.
        make: Function that is given the one that was there, and returns the new one.
    """
    module, _ = REPLACED[name]
    setattr(module, name, make(getattr(module, name)))


def replace_yaml_loader(make: Callable[[type[Any]], type[Any]]) -> None:
    """Replace the class that reads configs; the public `set_loader` keeps the class's own rules."""
    loaders: Any = _loaders_dumpers
    loaders.yaml_default_loader = make(loaders.get_yaml_default_loader())


def names_class(value: Any) -> bool:
    """Return whether a value of a config is a class with arguments."""
    return bool(_typehints.is_subclass_spec(value))


def actions(parser: Any) -> list[Any]:
    """Return the options of a parser; argparse has no public list of them."""
    return list(parser._actions)


def is_inner(parser: Any) -> bool:
    """Return whether a parser is one of a class, whose errors the parser around it reports."""
    return getattr(parser, "_inner_parser", False)  # jsonargparse asks in the same way


def arrange_groups(parser: Any, title: Callable[[str], str], order: Callable[[str], int]) -> None:
    """Give the groups of options other titles, and another order."""
    for group in parser._action_groups:
        group.title = title(str(group.title))
    parser._action_groups = sorted(parser._action_groups, key=lambda group: order(group.title))


class ShownHelp(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, which keeps the lines of a description."""

    def shown(self, text: str) -> str:
        """Return what is shown of the help of an option."""
        return text

    def _expand_help(self, action: Any) -> str:
        return self.shown(super()._expand_help(action))


class OpenCLI(LightningCLI):
    """LightningCLI whose commands a subclass can describe, and which reads no checkpoint.

    LightningCLI would replace `--model.*` by the hyperparameters of the file that `--ckpt_path`
    names (Lightning issue 21455).
    """

    def describe(self, commands: Any, listed: list[Any]) -> None:
        """Change the commands.

        Args:
            commands: jsonargparse's action, whose `choices` are the parsers by their names.
            listed: Lines of the list of commands, each with `dest` and `help`; it grows with them.
        """

    def parser_of(self, command: str) -> LightningArgumentParser:
        """Return the parser of a command."""
        return self._parser(command)

    def parsers(self) -> dict[str, LightningArgumentParser]:
        """Return the parsers of all commands by their names."""
        return self._subcommand_parsers

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        super()._add_subcommands(parser, **kwargs)
        commands: Any = parser._subcommands_action
        self.describe(commands, commands._choices_actions)

    def _parse_ckpt_path(self) -> None:
        """Do nothing."""
