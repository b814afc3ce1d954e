"""Messages of jsonargparse, and sentences for those of them that need more than a template."""

import inspect
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pydoc import locate
from typing import Any, NamedTuple

from ..runs.names import PROGRAM, nearest
from .table import COMMANDS, OWN_MAIN

KINDS = {"int": "a number", "float": "a number", "dict": "a mapping", "bool": "true or false"}
EXAMPLES = {
    "lightning.LightningModule": "MLP",
    "lightning.LightningDataModule": "CIFAR10DataModule",
}
# Classes of options that take a function, which the message does not name.
MADE_BY_FUNCTIONS = {
    "model.optimizer": "torch.optim.Optimizer",
    "model.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
}


class Message(NamedTuple):
    """A message of jsonargparse, which has a line for each type that a value could have had.

    Args:
        text: Lines of the message, without indentation.
        known: Options of the command.
    """

    text: str
    known: Collection[str] = ()

    @property
    def key(self) -> str:
        """Name of the option, which is nested like the message."""
        return ".".join(re.findall(r'Parser key "(.+?)"', self.text))

    @property
    def option(self) -> str:
        """Beginning of a sentence about the option, if the message names one."""
        return f"--{self.key}: " if self.key else ""

    @property
    def value(self) -> str:
        """Value that was given."""
        pattern = r"val='(.*?)'\)|(?:Got|Given) value: ?(.*?)(?:\. Got .*)?$"
        given = re.search(pattern, self.text, re.M)
        return (given[1] or given[2] or "") if given else "?"


def missing_package(groups: Sequence[str], message: Message) -> str:
    named = re.findall(r"class_path '(.+?)'", message.text)
    kind = named[-1].rpartition(".")[2] if named else "it"
    package = groups[0] or groups[1]
    return f"{message.option}{kind} needs a package that is not installed: pip install {package}"


def missing_name(groups: Sequence[str], message: Message) -> str:
    module, name = groups
    there = vars(sys.modules[module]) if module in sys.modules else {}
    return f"{message.option}module {module} has no {name}{nearest(name, there)}"


def not_a_path(groups: Sequence[str], message: Message) -> str:
    kind = KINDS.get(groups[0], groups[0])
    return (
        f"--{message.key}: expected a path, got what YAML reads as {kind}: put it in quotes "
        "(on the command line, within those of the shell)"
    )


def no_such_option(kind: str, name: str, message: Message) -> str:
    """Return the sentence for an option that a class does not have."""
    option = f"--{message.key}.{name}"
    if example := EXAMPLES.get(kind):
        return (
            f"name the class before its options: --{message.key} {example} {option} …; "
            "a preset comes after the config that it changes"
        )
    made: Any = locate(kind)
    inits = (vars(base).get("__init__") for base in made.__mro__ if base is not object)
    names = {name for init in inits if init for name in inspect.signature(init).parameters}
    options = {f"--{message.key}.{name}" for name in names - {"self", "args", "kwargs"}}
    return f"{kind} has no option {option}{nearest(option, options)}"


def unknown_option(groups: Sequence[str], message: Message) -> str:
    option = f"--{groups[0].removeprefix('--')}"
    first, sections = option.partition(".")[0], {name.partition(".")[0] for name in message.known}
    hint = nearest(option, message.known) if first in sections else nearest(first, sections)
    return f"unknown option {option}{hint}"


def no_command(groups: Sequence[str], message: Message) -> str:
    name, every = groups[0] if groups else "", (*COMMANDS, *OWN_MAIN)
    if module := OWN_MAIN.get(name):
        return f"`{name}` is a shell command; from Python, call {module}.main([…])"
    wrong = f"no command {name!r}{nearest(name, every)}; " if groups else ""
    return f"{wrong}name a command ({', '.join(every)}): {PROGRAM} fit --config cifar"


def wrong_type(_: Sequence[str], message: Message) -> str:
    pattern = r"^Expected an? (?:<class ')?(?:typing\.)?(.+?)(?:'>)?(?:\.|$)"
    expected = re.findall(pattern, message.text, re.M)
    kinds = [re.sub(r"^Literal\[(.+)\]$", r"\1", kind) for kind in expected]
    kinds = [kind for kind in kinds if not kind.startswith(("NoneType", "path", "dot"))]
    found = " or ".join(dict.fromkeys(kinds))
    return f"{message.option}expected {found}, got {message.value!r}"


def no_class(groups: Sequence[str], message: Message) -> str:
    subtypes, name = groups
    bases = re.findall(r"[\w.]+\.[A-Z]\w+", MADE_BY_FUNCTIONS.get(message.key, subtypes))
    names = {kind.__name__ for base in bases for kind in subclasses(locate(base))}
    return f"no class {name!r} for --{message.key}{nearest(name, names - {name})}"


def subclasses(kind: Any) -> Iterator[type[Any]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)
