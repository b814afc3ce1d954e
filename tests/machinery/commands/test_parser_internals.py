"""The insides of jsonargparse and LightningCLI are as the project uses them.

Each test has the name of what it checks: the one that fails says which inside has changed.
"""

import ast
import re
import sys
from argparse import ArgumentError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser, _loaders_dumpers
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.optim import SGD

from project.commands import internals


@pytest.mark.parametrize("name", internals.REPLACED)
def test_replace_function(name: str) -> None:
    """A function that is replaced is there, has its parameters, and is called by its name."""
    module, parameters = internals.REPLACED[name]
    source = Path(str(module.__file__)).read_text()
    found = next(
        node
        for file in Path(str(module.__file__)).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == name and node.col_offset == 0
    )
    assert " ".join(arg.arg for arg in found.args.args) == parameters
    assert len(re.findall(rf"(?<!def )\b{name}\(", source)) >= 1
    assert callable(getattr(module, name))


def test_replace_function_and_replace_yaml_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing uses what is put in their place."""
    module, _ = internals.REPLACED["resolve_class_path_by_name"]
    monkeypatch.setattr(module, "resolve_class_path_by_name", module.resolve_class_path_by_name)
    monkeypatch.setattr(_loaders_dumpers, "yaml_default_loader", None)
    seen, read = list[str](), list[str]()

    def made(old: Callable[..., str]) -> Callable[..., str]:
        return lambda kind, name: [seen.append(name), old(kind, name)][1]  # type: ignore[func-returns-value]

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any) -> None:
            read.append(str(stream))
            super().__init__(stream)

    internals.replace_function("resolve_class_path_by_name", made)
    internals.replace_yaml_loader(lambda _: Loader)
    parser = ArgumentParser()
    parser.add_argument("--sized", type=Sized)
    parser.parse_args(["--sized", "Longer"])
    assert "Longer" in seen
    assert any("Longer" in text for text in read)


def test_import_object() -> None:
    assert internals.import_object("torch.optim.SGD") is SGD


def test_names_class() -> None:
    assert internals.names_class({"class_path": "torch.optim.SGD", "init_args": {}})
    assert not internals.names_class({"lr": 0.1})


def test_actions() -> None:
    parser = ArgumentParser()
    parser.add_argument("--number", type=int)
    action = internals.actions(parser)[-1]
    assert (action.option_strings, action.dest, action.required) == (["--number"], "number", False)


def test_is_inner() -> None:
    """A parser of a class is one when it reports an error."""

    class Parser(ArgumentParser):
        seen = list[bool]()

        def error(self, message: str, ex: Exception | None = None) -> Any:
            self.seen.append(internals.is_inner(self))
            super().error(message, ex)

    parser = Parser(exit_on_error=False)
    parser.add_argument("--sized", type=Sized)
    with pytest.raises(ArgumentError):
        parser.parse_args(["--sized", "Longer", "--sized.size", "x"])
    assert Parser.seen[-1] is False
    assert True in Parser.seen


class Sized:
    def __init__(self, size: int = 1) -> None: ...


class Longer(Sized): ...


def test_arrange_groups() -> None:
    parser = ArgumentParser()
    for name in ("one", "two"):
        parser.add_argument_group(name).add_argument(f"--{name}")
    internals.arrange_groups(parser, str.upper, order=lambda title: title != "TWO")
    text = parser.format_help()
    assert text.index("\nTWO:") < text.index("\nOPTIONS:") < text.index("\nONE:")


def test_ShownHelp() -> None:  # noqa: N802
    class Loud(internals.ShownHelp):
        def shown(self, text: str) -> str:
            return text.upper()

    parser = ArgumentParser(formatter_class=Loud, description="one\n  two")
    parser.add_argument("--number", type=int, default=3, help="A number")
    text = parser.format_help()
    assert "one\n  two" in text
    assert "A NUMBER (TYPE: INT, DEFAULT: 3)" in text


def test_OpenCLI(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    """Its commands are described, and a checkpoint's hyperparameters change no option."""

    class CLI(internals.OpenCLI):
        def describe(self, commands: Any, listed: list[Any]) -> None:
            self.described = set(commands.choices), {action.dest for action in listed}

        def before_instantiate_classes(self) -> None:
            raise StopIteration(self)

    monkeypatch.setattr(sys, "argv", ["cli"])
    saved = tmp_path / "saved.ckpt"
    torch.save({"hyper_parameters": {"size": 9}}, saved)
    with pytest.raises(StopIteration) as stopped:
        CLI(
            SizedModel,
            seed_everything_default=False,
            args=["fit", f"--ckpt_path={saved}", "--model.size=2"],
        )
    cli = stopped.value.value
    assert cli.config.fit.model.size == 2
    assert cli.described[0] == cli.described[1] == {"fit", "validate", "test", "predict"}
    assert cli.parser_of("fit").get_defaults().model.size == 1


class SizedModel(BoringModel):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
