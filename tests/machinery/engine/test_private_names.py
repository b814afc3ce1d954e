"""Only the files of internals touch what other libraries keep to themselves."""

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import project
from project.commands import internals as command_internals
from project.engine import internals, output_internals

ROOT = Path(__file__).parents[3]
INSIDES = (internals, output_internals, command_internals)
CHECKS = ("engine/test_internals.py", "commands/test_parser_internals.py")
FILES = sorted([*(ROOT / "project").rglob("*.py"), *(ROOT / "scripts").glob("*.py")])
ALLOWED = {  # with a leading underscore, but documented by Python
    "os._exit": "ends a process within a signal handler",
    "sys._getframe": "tells who asked a training to stop",
}
LIBRARIES = ("lightning", "torch", "torchmetrics", "jsonargparse", "tensorboard", "argparse")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


def own_names(tree: ast.AST) -> set[str]:
    """The names that a file defines or sets on `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr if ast.unparse(node.value) == "self" else "")
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            names.add(ast.unparse(node.target))
    return names


def touched(source: str) -> Iterator[str]:
    """Yield the private names of others that a file reads, sets, imports or asks for."""
    tree = ast.parse(source)
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield f"{ast.unparse(node.value)}.{node.attr}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "super()":
            yield from [f"super().{node.attr}"] if is_private(node.attr) else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            yield from [ast.unparse(node)] if is_private(str(name)) else []
        elif isinstance(node, ast.ImportFrom) and not node.level:
            parts = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            yield from [ast.unparse(node)] if any(map(is_private, parts)) else []
        elif isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
            yield from [ast.unparse(node)] if any(map(is_private, parts)) else []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_touches_a_private_name(path: Path) -> None:
    if path not in [Path(str(module.__file__)) for module in INSIDES]:
        assert set(touched(path.read_text())) <= ALLOWED.keys()


def test_a_private_name_is_found_however_it_is_written() -> None:
    lines = {
        "trainer._loop": "trainer._loop",
        "super()._run()": "super()._run",
        "getattr(loop, '_stage', None)": "getattr(loop, '_stage', None)",
        "import torch._dynamo": "import torch._dynamo",
        "from torch.nn import _reduction": "from torch.nn import _reduction",
        "from torch._dynamo import explain": "from torch._dynamo import explain",
        "self._own = _ = 3; self._own; __name__": None,
    }
    assert [next(touched(line), None) for line in lines] == list(lines.values())


def inherited(kind: type) -> set[str]:
    """The private names that a class has from classes of other packages, its attributes too."""
    names = set[str]()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in LIBRARIES:
            names |= {name for name in vars(base) if is_private(name)}
            names |= set(re.findall(r"self\.(_[a-z]\w+)(?:: [^=\n]+)? = ", source_of(base)))
    return names


def source_of(kind: type) -> str:
    """Return the source of a class; one that is made by `type(…)` has none."""
    with suppress(OSError, TypeError):
        return inspect.getsource(kind)
    return ""


def own_classes() -> Iterator[type]:
    for info in walk_packages(project.__path__, f"{project.__name__}."):
        if not info.name.endswith("__main__"):
            module = import_module(info.name)
            classes = (kind for _, kind in inspect.getmembers(module, inspect.isclass))
            yield from (kind for kind in classes if kind.__module__ == info.name)


def test_no_other_class_overrides_or_sets_a_private_name() -> None:
    inside = {module.__name__ for module in INSIDES}
    for kind in own_classes():
        if kind.__module__ not in inside:
            used = set(re.findall(r"self\.(_[a-z]\w+)", source_of(kind)))
            used |= {name for name in vars(kind) if is_private(name)}
            generated = {
                "_abc_impl",
                "_is_protocol",
                "_is_runtime_protocol",
                "_non_callable_proto_members_",
            }
            assert not (used - generated) & inherited(kind), kind


def test_each_inside_has_a_test_of_its_name() -> None:
    tests = "".join((ROOT / "tests/machinery" / name).read_text() for name in CHECKS)
    for module in INSIDES:
        tree = ast.parse(inspect.getsource(module))
        named = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        assert named
        assert not [
            name for name in named if not re.search(rf"(def test|and)_{name}(_and|\()", tests)
        ]
