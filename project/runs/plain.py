"""Reading of YAML and JSON files as plain values, in bounded time and memory.

Runs from other people contain both kinds of files, and a few lines of YAML can expand to a list of
any size. Nothing here imports torch.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from .files import read_text

DEPTH = 100  # most nested levels; a config has about 10
REPEATED = 10_000  # most values that aliases may add to those written out


class Bounded:
    """A PyYAML loader that refuses aliases that are recursive or expand to too many values."""

    def get_single_data(self) -> Any:
        node = self.get_single_node()  # type: ignore[attr-defined]
        if node is None:
            return None
        sizes: dict[int, int] = {}
        if _size(node, sizes, 0) > len(sizes) + REPEATED:
            raise yaml.YAMLError(f"its aliases stand for more than {REPEATED:,} values")
        _refuse_repeated_keys(node)
        return self.construct_document(node)  # type: ignore[attr-defined]


class Loader(Bounded, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads plain values, as `yaml.safe_load` does."""


def _size(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """Return the number of values that a node expands to, and store that of each in `sizes`."""
    if depth > DEPTH:
        raise yaml.YAMLError(f"it is nested more than {DEPTH} levels deep")
    if id(node) not in sizes:
        sizes[id(node)] = -1
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        total = 1
        for child in children:
            total += _size(child, sizes, depth + 1)
        sizes[id(node)] = total
    elif sizes[id(node)] < 0:
        raise yaml.YAMLError("it has an alias within the value that the alias stands for")
    return sizes[id(node)]


def _refuse_repeated_keys(node: yaml.Node) -> None:
    """Refuse a key that occurs twice, of which PyYAML would silently use the last value."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                problem = f"{key.value!r} is there twice, first in line {seen[key.value]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen[key.value] = line
            _refuse_repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_repeated_keys(value)


def setting_lines(text: str) -> dict[str, int]:
    """Return the line number, from 1, of each setting of a config, by its command-line name."""
    lines: dict[str, int] = {}

    def note(node: yaml.Node | None, name: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
            inside = key.value in ("class_path", "init_args")
            inner = name if inside else f"{name}.{key.value}".lstrip(".")
            lines.setdefault(inner, key.start_mark.line + 1)
            note(value, inner)

    note(yaml.compose(text, Loader), "")
    return lines


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text, as `yaml.safe_load` does.

    Raises:
        yaml.YAMLError: If the text is not YAML, or expands to too many values.
    """
    try:
        return yaml.load(text, Loader)
    except RecursionError as error:
        raise yaml.YAMLError(f"it is nested more than {DEPTH} levels deep") from error


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file.

    Raises:
        ValueError: If the file is not YAML, or expands to too many values.
        OSError: If the file can't be read.
    """
    try:
        return load_yaml(read_text(path))
    except yaml.YAMLError as error:
        where, why = "", str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            where, why = f", line {error.problem_mark.line + 1},", str(error.problem)
        elif isinstance(error, yaml.reader.ReaderError):
            why = str(error.reason)
        raise ValueError(f"{path}{where} can't be read as YAML: {why}") from error


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        ValueError: If the file is not JSON, or is nested too deeply.
        OSError: If the file can't be read.
    """
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError(f"{path} can't be read as JSON: it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} can't be read as JSON: {error}") from error
