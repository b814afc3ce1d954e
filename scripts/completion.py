"""Print what makes bash, zsh or fish complete commands: python scripts/completion.py bash

The script that it prints holds all words, so that a TAB starts no Python, let alone torch.
"""

import inspect
import sys
import typing
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from project import models
from project.callbacks import Callbacks
from project.commands.cli import CLI
from project.commands.links import FOLLOWS
from project.commands.sources import config_folder
from project.commands.table import COMMANDS, OWN_MAIN

NAME = CLI.__module__.partition(".")[0]  # of the package and of its command
BASH = """\
_{name}() {{
  local words current="${{COMP_WORDS[COMP_CWORD]}}"
  case "${{COMP_WORDS[COMP_CWORD - 1]}}" in
    {name}) words="{commands}" ;;
{values}
    *) [[ $current == -* ]] && words="{options}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _{name} {name}"""
OWN = (  # options of commands that are not LightningCLI's
    *(
        "--seeds",
        "--jobs",
        "--sweep",
        "--metric",
        "--test",
        "--sort",
        "--json",
        "--format",
        "--output",
    ),
)


class _Parsers(CLI):
    """The parsers, of which nothing is run."""

    def parse_arguments(self, parser: Any, args: Any) -> None:
        raise StopIteration(self._subcommand_parsers)


def values(kind: Any) -> list[str]:
    """What an option of a type can be, if that is a choice."""
    if kind is bool:
        return ["true", "false"]
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return [str(part) for part in parts]
    return [value for part in parts for value in values(part)]


def subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for child in base.__subclasses__():
        yield child
        yield from subclasses(child)


def is_hidden(kind: type[Any]) -> bool:
    return inspect.isabstract(kind) or kind.__name__.startswith("_")


def class_options(option: str, classes: list[type[Any]]) -> dict[str, list[str]]:
    """An option that takes a class, and those of its arguments."""
    found = {option: sorted({kind.__name__ for kind in classes})}
    for kind in classes:
        for base in kind.__mro__[:-1]:
            parameters = inspect.signature(base.__init__).parameters.values()
            for p in parameters if "__init__" in vars(base) else ():
                if (
                    p.name not in ("self", "optimizer", "params", "defaults")
                    and p.kind != p.VAR_KEYWORD
                ):
                    found.setdefault(f"{option}.{p.name}", values(p.annotation))
    return found


def options() -> dict[str, list[str]]:
    """Every option with what it can be."""
    try:
        _Parsers([])
    except StopIteration as stop:
        parsers = stop.value
    found = {name: list[str]() for name in OWN}
    for parser in parsers.values():
        for action in parser._actions:
            for name in action.option_strings:
                found.setdefault(name, values(getattr(action, "_typehint", None)))
    folder = config_folder()
    names = [str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")]
    found["--config"] = found["-c"] = sorted(names)
    kinds = {
        "--model": list(subclasses(models.Task)),
        "--data": list(subclasses(LightningDataModule)),
        "--model.optimizer": list(subclasses(Optimizer)),
        "--model.lr_scheduler": list(subclasses(LRScheduler)),
    }
    for field, kind in typing.get_type_hints(Callbacks).items():
        kinds[f"--{field}"] = [part for part in typing.get_args(kind) if part is not type(None)]
    for option, classes in kinds.items():
        found |= class_options(option, [kind for kind in classes if not is_hidden(kind)])
    return {name: found[name] for name in sorted(found) if name[2:] not in FOLLOWS}


def bash(found: dict[str, list[str]]) -> str:
    lines = [f'    {name}) words="{" ".join(words)}" ;;' for name, words in found.items() if words]
    commands = " ".join([*COMMANDS, *OWN_MAIN])
    return BASH.format(
        name=NAME, commands=commands, values="\n".join(lines), options=" ".join(found)
    )


def fish(found: dict[str, list[str]]) -> str:
    commands = " ".join([*COMMANDS, *OWN_MAIN])
    lines = [f"complete -c {NAME} -n __fish_use_subcommand -xa '{commands}'"]
    for name, words in found.items():
        if name.startswith("--"):
            values = f" -xa '{' '.join(words)}'" if words else " -r"
            lines.append(f"complete -c {NAME} -l {name[2:]}{values}")
    return "\n".join(lines)


if __name__ == "__main__":
    shells = {"bash": bash, "zsh": bash, "fish": fish}
    if len(sys.argv) != 2 or sys.argv[1] not in shells:
        sys.exit(f"error: name a shell ({', '.join(shells)}): python scripts/completion.py bash")
    start = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
    print((start if sys.argv[1] == "zsh" else "") + shells[sys.argv[1]](options()))
