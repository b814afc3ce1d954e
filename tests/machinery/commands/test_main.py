"""`python -m project`: which command goes where, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from project import __main__
from tests.machinery.support.runs import write_runs


def console(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["project", *args])
    with pytest.raises(SystemExit) as stop:
        __main__.console()
    return int(stop.value.code or 0)


@pytest.mark.parametrize(
    "command", ["compare a b", "runs a", "seed_noise --help", "compare --help"]
)
def test_commands_that_read_files_load_no_torch(command: str) -> None:
    write_runs(Path("a"), [0.1, 0.2, 0.3])
    write_runs(Path("b"), [0.2, 0.3, 0.5])
    code = f"""
import sys
sys.argv = ["project", *{command.split()!r}]
from project.__main__ import console
try:
    console()
except SystemExit as stop:
    assert not stop.code, stop.code
print({{"torch", "lightning"}} & sys.modules.keys())"""
    root = str(Path(__main__.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}){code}"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_errors_are_one_sentence_with_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert console(monkeypatch, "compare", "a") == 2
    assert capsys.readouterr().err.startswith("error: two groups are needed")
    assert console(monkeypatch, "compare", "a", "b") == 1
    assert capsys.readouterr().err == "error: a is neither a run folder nor a folder of runs\n"
    with pytest.raises(ValueError, match="a is neither"):
        console(monkeypatch, "compare", "a", "b", "--debug")
    assert console(monkeypatch, "seed_noise", "--seeds", "x") == 2


def test_all_other_commands_are_those_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert console(monkeypatch, "fti") == 2
    assert "no command 'fti'" in capsys.readouterr().err
