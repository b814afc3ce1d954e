"""The messages of jsonargparse that are put in other words, each with a sample of it."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..runs.names import PACKAGE
from .error_sentences import (
    Message,
    missing_name,
    missing_package,
    no_class,
    no_command,
    no_such_option,
    not_a_path,
    unknown_option,
    wrong_type,
)


class Row(NamedTuple):
    """A kind of message, and how it is put.

    Args:
        name: Name of the kind.
        pattern: Regular expression that finds it; a line begins at `^`.
        sentence: Template, in which {0} is the pattern's first group, or a function of the groups
            and the message.
        sample: Lines of such a message.
    """

    name: str
    pattern: str
    sentence: str | Callable[[Sequence[str], Message], str]
    sample: str

    def say(self, message: Message) -> str | None:
        """Return the sentence for a message, or None if it is of another kind."""
        found = re.search(self.pattern, message.text, re.M)
        if not found:
            return None
        groups = [group or "" for group in found.groups()]
        if callable(self.sentence):
            return self.sentence(groups, message)
        names = {"key": message.key, "option": message.option, "value": message.value}
        return self.sentence.format(*groups, **names)


ROWS = (
    Row(
        "missing package",
        r"Requirement '([\w-]+).*?' not met|pip install (?:-\S+ )*`?'?([\w-]+)",
        missing_package,
        "Problem with given class_path 'lightning.pytorch.loggers.MLFlowLogger':\n"
        "Requirement 'mlflow>=1.0.0' not met. HINT: Try running `pip install -U 'mlflow>=1.0.0'`",
    ),
    Row(
        "missing module",
        r"No module named '(.+?)'",
        "{option}there is no module '{0}' to import from",
        "Parser key \"model\":\nNo module named 'no_such_module'",
    ),
    Row(
        "missing name",
        r"module '(.+?)' has no attribute '(.+?)'",
        missing_name,
        "Parser key \"model\":\nmodule 'torch.optim' has no attribute 'SDG'",
    ),
    Row(
        "ambiguous class",
        r"^Multiple subclasses with name (\w+)\. .*ambiguity: (.+?)\.?$",
        "{option}there are several classes {0}: name one in full, of {1}",
        'Parser key "model":\nMultiple subclasses with name Twice. Give the full class path to '
        "avoid ambiguity: one.Twice, two.Twice.",
    ),
    Row(
        "not a path",
        r"expected str, bytes or os.PathLike object, not (\w+)",
        not_a_path,
        'Parser key "data":\nParser key "root":\n'
        "Not of type Path: expected str, bytes or os.PathLike object, not dict",
    ),
    Row(
        "not a list",
        r"Expected a <class '(?:tuple|list)'>(?:.|\n)*? value: \((.+?)\)",
        "--{key}: got ({0}): write a list in brackets, as [{0}]",
        "Expected a <class 'tuple'>. Got value: (0.9,0.95). Got value: Namespace(",
    ),
    Row(
        "refused class",  # in the words of naming.py
        r"('[\w.]+' can't be named here: [^\n.]+)",
        "--{key}: {0}",
        "Parser key \"model\":\n'os.system' can't be named here: it could run code or change files",
    ),
    Row(
        "class of a function",
        r"Expected '(.+?)' to be a subclass of <class '(\w+)'>",
        "--{key}: {0} is not a subclass of {1}",
        "Expected 'torch.nn.Linear' to be a subclass of <class 'Optimizer'>",
    ),
    Row(
        "class of another kind",
        r"^Import path does not correspond to a subclass of (\w+)",
        "--{key}: {value} is not a subclass of {0}",
        'Parser key "model":\nImport path does not correspond to a subclass of LightningModule\n'
        "Given value: torch.optim.SGD",
    ),
    Row(
        "class instead of the only one",
        r"^Subclasses are disabled for (\w+), thus '(.+?)'",
        "--{key}: {1} is not {0}, and no other class can be named here",
        "Subclasses are disabled for Augment, thus 'torch.nn.Linear' is not accepted",
    ),
    Row(
        "abstract class",
        r"^Expected an instantiatable class, but (\S+) is abstract",
        "--{key}: name a class before its options, since {0} is abstract",
        f"Expected an instantiatable class, but {PACKAGE}.engine.objective.Objective is abstract",
    ),
    Row(
        "option of a class",
        r"class_path '(\S+)':\n(?:Option '|unrecognized arguments: --)([\w.]+)",
        lambda groups, message: no_such_option(groups[0], groups[1], message),
        f"Parser key \"model\":\nProblem with given class_path '{PACKAGE}.models.ResNet18':\n"
        "Option 'widht' is not accepted",
    ),
    Row(
        "option of a class for a function",
        r"Option '(.+?)' is not accepted\. Got value: Namespace\(class_path='(.+?)'",
        lambda groups, message: no_such_option(groups[1], groups[0], message),
        "Option 'lrr' is not accepted. Got value: Namespace(class_path='torch.optim.SGD'",
    ),
    Row(
        "option in a config",
        r"^Subcommand '\w+' does not accept option '(.+?)'",
        unknown_option,
        "Subcommand 'fit' does not accept option 'trainer.max_epoc'",
    ),
    Row(
        "option",
        r"^unrecognized arguments: (--[^\s=]*)",
        unknown_option,
        "unrecognized arguments: --trainer.max_epochss 3",
    ),
    Row(
        "stray argument",
        r"^unrecognized arguments: (\S+)",
        "{0!r} is not an option: options begin with --",
        "unrecognized arguments: foo",
    ),
    Row(
        "required argument",
        r"Parser key(?:.|\n)*arguments are required: ([^\s,]+)",
        "--{key}.{0} is required",
        'Parser key "lr_scheduler":\nthe following arguments are required: step_size',
    ),
    Row(
        "no model or no data",
        r"arguments are required:",
        "no model or no data is named: a preset comes after a config, as in --config cifar",
        "the following arguments are required: fit.data, fit.model",
    ),
    Row(
        "no value",
        r"^argument (\S+): expected (?:one|at least one) argument",
        "{0} needs a value",
        "argument --name: expected one argument",
    ),
    Row(
        "no command",
        r'^expected "subcommand"',
        no_command,
        'expected "subcommand" to be one of {fit,validate,test,predict,check, ...}, but it was not '
        "provided.",
    ),
    Row(
        "wrong command",
        r"invalid choice: '?(\w*)",
        no_command,
        "argument subcommand: invalid choice: 'fitt' (choose from ",
    ),
    Row(
        "not a config",
        r"^Unexpected config:(?: (.*))?",
        "--config: {0!r} is not a YAML file of options; --print_config prints an example",
        "Unexpected config: just text",
    ),
    Row(
        "group as an option",
        r"\AParser key \"(.+?)\":\nUnable to load config '(.*)'",
        "--{0} can't be set to {1!r}: set its options, as --{0}.NAME",
        "Parser key \"trainer\":\nUnable to load config 'x'",
    ),
    Row(
        "error of a class",  # in its own words
        r"^Errors:\n(?:Expected .*\n)*(?!Expected|Problem|Does not|Type |Unexpected|Given)(.+)$",
        "{option}{0}",
        "Errors:\nwidth 0 must be positive",
    ),
    Row(
        "restricted number",
        r"^Not of type \w+: (.+)$",
        "--{key}: {0}",
        'Parser key "max_wait_s":\n'
        "Not of type PositiveFloat: -1 does not conform to restriction v>0",
    ),
    Row(
        "option of a value",
        r"\A(?:(?!class_path)(?:.|\n))*?NestedArg\(key='([\w.]+)'",
        "unknown option --{key}.{0}: --{key} has no options of its own",
        "Parser key \"trainer.max_epochs\":\nGiven value: NestedArg(key='x', val='2')",
    ),
    Row(
        "not a number",
        r"^Expected a <class '(?:int|float)'>",
        wrong_type,
        "Parser key \"trainer.max_epochs\":\nExpected a <class 'int'>\nGiven value: x",
    ),
    Row(
        "no class",
        r"(?:Subtypes: \[(.*)\]\nErrors:\n)?Expected a dot import path string: *(\S*)",
        no_class,
        'Parser key "model":\n'
        "Subtypes: [<class 'lightning.pytorch.core.module.LightningModule'>, <class 'NoneType'>]\n"
        "Errors:\nExpected a dot import path string: ResNt18",
    ),
    Row(
        "wrong type",
        r"^Expected an? (?!<class 'NoneType'|path )",
        wrong_type,
        "Parser key \"trainer.deterministic\":\nExpected a <class 'bool'>\n"
        "Expected a typing.Literal['warn']\nGiven value: x",
    ),
)
