"""Everything that the pages name exists: links, commands and their options, tests and files."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from project.__main__ import console
from project.commands.cli import main
from project.commands.table import COMMANDS, DEFAULT_CONFIG

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PACKAGE = console.__module__.partition(".")[0]
SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / PACKAGE).rglob("*.py"))
TESTS = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
FIT_TOO = "seed_noise"  # which takes the options of fit as well

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def code(page: Path) -> Iterator[str]:
    """Return the lines of the code blocks, and the text in backticks."""
    text = page.read_text("utf-8").replace("\\\n", " ")
    for block, words in re.findall(r"(?ms)^```.*?\n(.*?)^```|`([^`\n]+)`", text):
        yield from block.splitlines() or [words]


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Return the module and the arguments of each command, however it is started."""
    found = []
    for line in code(page):
        for part in re.split(r"; |&& ", line):
            start = re.search(rf"-m (?:-- )?((?:{PACKAGE}|benchmarks)\b[\w.]*)(?: |$)", part)
            if start:
                args = shlex.split(part[start.end() :], comments=True)
                found.append((start[1], [arg for arg in args if arg != "…"]))
    return found


def ends(run: Callable[[], Any]) -> bool:
    """Return whether a call exits with 0, as one that only prints does."""
    with pytest.raises(SystemExit) as stop:
        run()
    return not stop.value.code


def without_runs(args: list[str]) -> list[str]:
    """Return the arguments with a config in place of a run, or of a name in capitals."""
    args = [*args]
    for i, arg in enumerate(args[:-1]):
        if arg == "--run" or (arg == "--config" and args[i + 1].isupper()):
            args[i : i + 2] = ["--config", DEFAULT_CONFIG]
    return args


def unknown(args: list[str], text: str) -> list[str]:
    """Return the options that a help text does not have, and their values."""
    known = set(re.findall(r"^  (?:-\w, )?(--[\w.-]+)", text, re.MULTILINE))
    rest: list[str] = []
    is_known = True
    for arg in args:
        if arg.startswith("--"):
            is_known = arg.partition("=")[0] in known
        rest += [] if is_known else [arg]
    return rest


def swept(args: list[str]) -> list[str]:
    """Return the first value of each sweep, as an option."""
    values = [value for name, value in pairwise(args) if name == "--sweep"]
    return [f"--{value.partition(',')[0]}" for value in values]


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target


@every_page
@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_commands_are_understood(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has only existing options, with values of their types; none of them is run."""
    for module, args in commands(page):
        command = args[0] if module == PACKAGE and args else ""
        if command in COMMANDS:
            asks = any("help" in arg or arg.startswith("--print_config") for arg in args)
            args = [*without_runs(args), *([] if asks else ["--print_config"])]
            assert ends(partial(main, args)), args
            continue
        monkeypatch.setattr(sys, "argv", [module, *args[: command != ""], "--help"])
        capsys.readouterr()
        assert ends(partial(runpy.run_module, module, run_name="__main__")), [module, *args]
        rest = unknown(args, capsys.readouterr().out)
        if command == FIT_TOO:
            fit = ["fit", *rest, *swept(args), "--print_config"]
            assert ends(partial(main, fit)), fit
        else:
            assert not rest, f"{module} {' '.join(args)}: no option {rest}"


@every_page
def test_tests_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for path, name in re.findall(r"(?<![\w/-])(tests/[\w/]+\.py)(?:::(\w+))?", text):
        assert (ROOT / path).is_file(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
    for name in re.findall(r"(?<![\w/:.])test_\w+(?!\w|\.py)", text):
        known = f"def {name}(" in TESTS or re.search(rf"\b{name}\b", SOURCE)  # as `test_size`
        assert known, f"{name} is no test"


@every_page
def test_files_exist(page: Path) -> None:
    folders = f"{PACKAGE}|tests|benchmarks|scripts|docs|notebooks"
    for path in re.findall(rf"(?<![\w/.-])((?:{folders})/[\w/.-]*\w)", page.read_text("utf-8")):
        made = re.fullmatch(r"benchmarks/results/(\w+)\.json", path)  # by that benchmark
        assert (ROOT / (f"benchmarks/{made[1]}.py" if made else path)).exists(), path
