"""Print a script that makes bash, zsh or fish complete commands: python scripts/completion.py bash

The words come from --help. The script contains all of them, so that TAB does not start Python.
"""

import inspect
import io
import os
import re
import sys
import typing
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pydoc import locate
from typing import Any
from unittest.mock import patch

from project.commands.cli import main
from project.commands.links import FOLLOWS
from project.commands.sources import config_folder
from project.commands.table import COMMANDS, OWN_MAIN
from project.runs.names import PACKAGE as NAME  # also the name of the command

MANY = ("--trainer", "--model.metrics")  # options that take too many classes to list
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


def help_of(command: str, *args: str) -> dict[str, str]:
    """Return the options in the help of a command, each with its text."""
    run = import_module(OWN_MAIN[command]).main if command in OWN_MAIN else main
    wide = patch.dict(os.environ, COLUMNS="100000")  # one line per text
    with wide, redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
        run([*args] if command in OWN_MAIN else [command, *args])
    found = {}
    for text in re.split(r"^  (?=-)", said.getvalue(), flags=re.MULTILINE)[1:]:
        for name in re.findall(r"(?:^|, )(-\w|--\w[\w.]+\+?)", text.partition("  ")[0]):
            found[name] = " ".join(text.split())
    return found


def choices(text: str) -> list[str]:
    """Return the possible values of an option, if its help lists choices or classes."""
    braces = re.match(r"-\S+ {(.*?)}", text)
    if braces:
        return [word for word in braces[1].split(",") if word != "null"]
    kind = text.rpartition("(type: ")[2].partition(", default:")[0]
    words = ["true", "false"] if re.search(r"\bbool\b", kind) else []
    for literal in re.findall(r"Literal\[(.*?)\]", kind):
        words += [word.strip("'") for word in literal.split(", ")]
    return words + sorted({name.rpartition(".")[2] for name in classes(text)})


def classes(text: str) -> list[str]:
    """Return the full names of the classes that an option accepts."""
    found = re.search(r"known subclasses: (.*?)\)", text)
    return [n for n in found[1].split(", ") if not inspect.isabstract(locate(n))] if found else []


def values(kind: Any) -> list[str]:
    """Return the possible values of an argument of this type, if it is a choice."""
    if kind is bool:
        return ["true", "false"]
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return [str(part) for part in parts]
    return [value for part in parts for value in values(part)]


def arguments(option: str, kind: Any) -> dict[str, list[str]]:
    """Return the options for the arguments of a class and its bases."""
    found = {}
    for base in (base for base in kind.__mro__[:-1] if "__init__" in vars(base)):
        for p in inspect.signature(base.__init__).parameters.values():
            known = p.name in ("self", "optimizer", "params", "defaults")
            if not known and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                found[f"{option}.{p.name}"] = values(p.annotation)
    return found


def options() -> dict[str, list[str]]:
    """Return every option with its possible values."""
    texts = help_of("fit", "--model.help", "MLP")
    for command in (*COMMANDS, *OWN_MAIN):
        texts |= help_of(command, "--help")
    found: dict[str, list[str]] = {}
    for option, text in texts.items():
        found[option] = choices(text)
        listed = classes(text) if not option.startswith(MANY) else []
        for kind in filter(None, map(locate, listed)):  # a class made at run time can't be named
            for argument, words in arguments(option, kind).items():
                found[argument] = found.get(argument) or words
    folder = config_folder()
    names = [str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")]
    found["--config"] = found["-c"] = sorted(names)
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
