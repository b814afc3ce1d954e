"""One sentence for an error of the argument parser, with the nearest valid name."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jsonargparse._util import import_object
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..runs.names import PROGRAM, nearest
from .table import COMMANDS, OWN_MAIN

LONGEST = 300  # characters of a sentence
KINDS = {"int": "a number", "float": "a number", "dict": "a mapping", "bool": "true or false"}
# Lines by which jsonargparse says what it has tried, and not what is wrong.
FRAME = (
    "Expected an? |Does not validate|Subtypes:|Errors:|Given value|Problem with given|Not a valid"
)
FRAME += "|Subclass types expect|a class path|a dict |Type .* expects a function"
BASES: dict[str, str] = {
    "lightning.LightningModule": "MLP",
    "lightning.LightningDataModule": "CIFAR10DataModule",
}


def explain(message: str, known: Iterable[str]) -> str:
    """What was wrong, and the way out.

    Args:
        message: Of jsonargparse: nested, one line for each type that the value could have had.
        known: The options of the command.
    """
    key = ".".join(re.findall(r'Parser key "(.+?)"', message))
    sentence = (
        _missing(message, key)
        or _wrong_form(message, key)
        or _refused_name(message, key)
        or _unknown_option(message, key, known)
        or _nothing_given(message, key)
        or _no_value(message)
        or _no_command(message)
        or _refused_value(message, key)
    )
    sentence = " ".join((sentence or _most_specific(message, key)).split())
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 2]} …"


def _missing(message: str, key: str) -> str:
    """A package, a module or a class in a module that is not there."""
    option = f"--{key}: " if key else ""
    named = re.findall(r"class_path '(.+?)'", message)
    if found := re.search(
        r"Requirement '([\w-]+).*?' not met|pip install (?:-\S+ )*`?'?([\w-]+)", message
    ):
        package, kind = found[1] or found[2], named[-1].rpartition(".")[2] if named else "it"
        return f"{option}{kind} needs a package that is not installed: pip install {package}"
    if found := re.search(r"No module named '(.+?)'", message):
        return f"{option}there is no module {found[1]!r} to import from"
    if found := re.search(r"module '(.+?)' has no attribute '(.+?)'", message):
        there = vars(sys.modules[found[1]]) if found[1] in sys.modules else {}
        return f"{option}module {found[1]} has no {found[2]}{nearest(found[2], there)}"
    if found := re.search(
        r"Multiple subclasses with name (\w+)\. .*ambiguity: (.+?)\.?$", message, re.M
    ):
        return f"{option}there are several classes {found[1]}, name one in full: {found[2]}"
    return ""


def _given_value(message: str) -> str:
    pattern = r"val='(.*?)'\)|(?:Got|Given) value: (.*?)(?:\. Got .*)?$"
    given = re.search(pattern, message, re.M)
    return (given[1] or given[2] or "") if given else "?"


def _wrong_form(message: str, key: str) -> str:
    """A value that YAML reads as something else than its writer meant."""
    value = _given_value(message)
    if found := re.search(r"expected str, bytes or os.PathLike object, not (\w+)", message):
        kind = KINDS.get(found[1], found[1])
        return (
            f"--{key}: expected a path, got what YAML reads as {kind}: put it in quotes (on the "
            "command line, within those of the shell)"
        )
    if re.search(r"Expected a <?(?:class ')?(?:tuple|list)", message) and value.startswith("("):
        return f"--{key}: got {value}: write a list in brackets, as [{value.strip('()')}]"
    return ""


def _most_specific(message: str, key: str) -> str:
    """What is left without the frame that jsonargparse puts around each type that was tried."""
    lines = [
        re.sub(r"^[\s-]+|Parser key \".+?\":|Not of type [A-Z]\w+:", "", line)
        for line in message.splitlines()
    ]
    lines = [line.strip() for line in lines if line.strip() and not re.match(FRAME, line.strip())]
    text = lines[0] if lines else "this value can't be used here"
    return f"--{key}: {text}" if key else text


def _refused_name(message: str, key: str) -> str:
    """A class that an option does not take, whatever else it could have been."""
    if found := re.search(r"('[\w.]+' can't be named here: [^\n.]+)", message):
        return f"--{key}: {found[1]}"
    if found := re.search(r"Expected '(.+?)' to be a subclass of <class '(\w+)'>", message):
        return f"--{key}: {found[1]} is not a subclass of {found[2]}"
    if found := re.search(r"Subclasses are disabled for (\w+), thus '(.+?)'", message):
        return f"--{key}: {found[2]} is not {found[1]}, and no other class can be named here"
    return ""


def _unknown_option(message: str, key: str, known: Iterable[str]) -> str:
    pattern = r"(?:ption|arguments:) '?(?:--)?([^\s'=]+)'?(?: is not accepted|.*)"
    if not (found := re.search(pattern, message)):
        return ""
    name, option = found[1], f"--{key}"
    # The class is named before the option, or right after it where a function could be given.
    owner = re.match(r"\. Got value: Namespace\(class_path='(.+?)'", message[found.end() :])
    before = re.findall(r"class_path '(.+?)'", message[: found.start()])
    kind = owner[1] if owner else before[-1] if before else None
    if group := re.match(r"Group '(.+?)'", message):
        option = f"--{group[1]}"
    if kind is None:
        if re.search(rf"arguments: '?{re.escape(name)}", message):
            return f"{name!r} is no option: options begin with --"
        option = f"--{name}" if option == "--" else f"{option}.{name}"
        first, names = option.partition(".")[0], {name.partition(".")[0] for name in known}
        hint = nearest(option, known) if first in names else nearest(first, names)
        return f"unknown option {option}{hint}"
    if concrete := BASES.get(kind):
        return (
            f"name the class before its options: {option} {concrete} {option}.{name} …; "
            "a preset comes after the config that it changes"
        )
    arguments = {f"{option}.{argument}" for argument in _arguments(kind)}
    option = f"{option}.{name}"
    return f"{kind} has no option {option}{nearest(option, arguments)}"


def _nothing_given(message: str, key: str) -> str:
    if not (found := re.search(r"arguments are required: (\S+)", message)):
        return ""
    if key:
        return f"--{key}.{found[1]} is required"
    return "no model or no data named: a preset comes after a config, as in --config cifar"


def _no_value(message: str) -> str:
    found = re.search(r"argument (\S+): expected (?:one|at least one) argument", message)
    return f"{found[1]} needs a value" if found else ""


def _no_command(message: str) -> str:
    if 'expected "subcommand"' not in message and "invalid choice" not in message:
        return ""
    given, every = re.search(r"invalid choice: '?(\w+)", message), (*COMMANDS, *OWN_MAIN)
    if given and (module := OWN_MAIN.get(given[1])):
        return f"{given[1]} is of the shell; in Python, call main([…]) of {module}"
    wrong = f"no command {given[1]!r}{nearest(given[1], every)}; " if given else ""
    return f"{wrong}name a command ({', '.join(every)}): {PROGRAM} fit --config cifar"


def _refused_value(message: str, key: str) -> str:
    if found := re.search("Unexpected config: (.*)", message):
        return f"--config: {found[1]!r} is no YAML of options, as --print_config shows one"
    if own := re.search(r"^ *- (?!Expected|Problem|Does not|Type )(.+)$", message, re.M):
        return f"--{key}: {own[1]}".removeprefix("--: ")  # an error of the class itself
    pattern = r"Expected an? (?:<class ')?(?:typing\.)?(.+?)(?:'>)?(?:\.|$)"
    expected = re.findall(pattern, message, re.M)
    expected = [re.sub(r"^Literal\[(.+)\]$", r"\1", kind) for kind in expected]
    kinds = [kind for kind in expected if not kind.startswith(("NoneType", "path", "dot"))]
    nested = re.search(r"NestedArg\(key='(.+?)'", message)
    if nested and not key.endswith(nested[1]):  # an option of what is no class, as --run.root
        return f"unknown option --{key}.{nested[1]}: --{key} has none of its own"
    if kinds and key:
        return (
            f"--{key}: expected {' or '.join(dict.fromkeys(kinds))}, got {_given_value(message)!r}"
        )
    if found := re.search(r"Expected a dot import path string: (\S+)", message):
        return f"no class {found[1]!r} for --{key}{nearest(found[1], _class_names(key))}"
    return ""


def _arguments(class_path: str) -> set[str]:
    kind: Any = import_object(class_path)
    inits = (vars(base).get("__init__") for base in kind.__mro__ if base is not object)
    names = {name for init in inits if init for name in inspect.signature(init).parameters}
    return names - {"self", "args", "kwargs"}


def _class_names(key: str) -> set[str]:
    def names(kind: type[Any]) -> Iterator[str]:
        for child in kind.__subclasses__():
            yield child.__name__
            yield from names(child)

    kinds: dict[str, type[Any]] = {
        "model": LightningModule,
        "data": LightningDataModule,
        "trainer.callbacks": Callback,
    }
    kinds |= {"model.optimizer": Optimizer, "model.lr_scheduler": LRScheduler}
    bases = [kinds[key]] if key in kinds else list(kinds.values())
    return {name for base in bases for name in names(base)}
