"""Errors in a user's code show where they are; what a user typed or has is one sentence."""

import linecache
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from project.engine.failures import PACKAGE, Frame, claim, user_error
from tests.machinery.commands.test_cli import FIT

CODE = """
import torch
import lightning as L
from project.data import SyntheticDataModule
from project.models import MLP


class TorchError(MLP):
    def forward(self, images):
        return torch.nn.functional.cross_entropy(images, images.flatten())


class OwnError(MLP):
    def forward(self, images):
        raise ValueError("a mistake")


class LateError(MLP):
    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1:
            raise ValueError("a mistake")
        return super().training_step(batch, batch_idx)


class InitError(MLP):
    def __init__(self, **kwargs):
        raise ValueError("a mistake")


class MissingError(MLP):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.missing


class LoadError(SyntheticDataModule):
    def load(self, split):
        return int("a mistake")


class FileError(SyntheticDataModule):
    def load(self, split):
        return open("/no/labels.csv")


class HookError(L.Callback):
    def on_train_start(self, trainer, model):
        {}["a mistake"]


class CallbackError(L.Callback):
    def __init__(self):
        raise ValueError("a mistake")
"""
MODULES = {"import_error": "raise ValueError('a mistake')\n", "syntax_error": "x = (\n"}
MODULES |= {"package_error": "\nimport a_missing_package\n"}
QUICK = [arg for arg in FIT if arg != "--model.width"]
QUICK.remove("4")
QUICK += ["--preflight", "false", "--trainer.max_epochs", "2"]


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, code in (MODULES | {"mine": CODE}).items():
        Path(f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)


CASES = {
    "torch's, in a step": ("--model mine.TorchError", "mine.py", "cross_entropy"),
    "raised in a step": ("--model mine.OwnError", "mine.py", 'ValueError("a mistake")'),
    "of a constructor": ("--model mine.InitError", "mine.py", 'ValueError("a mistake")'),
    "an attribute": ("--model mine.MissingError", "mine.py", "self.missing"),
    "of data": ("--data mine.LoadError", "mine.py", "int("),
    "of a file": ("--data mine.FileError", "mine.py", "open("),
    "of a hook": ("--trainer.callbacks+ mine.HookError", "mine.py", '{}["a mistake"]'),
    "of a callback": ("--trainer.callbacks mine.CallbackError", "mine.py", "a mistake"),
    "at import": ("--model import_error.Net", "import_error.py", "raise"),
    "at a callback's import": ("--trainer.callbacks import_error.X", "import_error.py", "raise"),
    "syntax": ("--trainer.callbacks syntax_error.X", "syntax_error.py", "x = ("),
    "a missing package": ("--data package_error.Data", "package_error.py", "import a_missing"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_in_a_user_s_code_names_its_line(
    case: str, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    options, file, code = CASES[case]
    assert exit_code([*QUICK, *options.split()]) == 1
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
    found = re.search(rf"^error: \w+ in (\S+{file}), line (\d+): ", line)
    assert found, line
    assert code in Path(found[1]).read_text().splitlines()[int(found[2]) - 1]


def test_an_error_in_a_later_epoch_says_how_to_resume(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*QUICK, "--model", "mine.LateError"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("Kept: runs/synthetic/version_0, up to its newest checkpoint")
    assert last.endswith("python -m project fit --run runs/synthetic/version_0")
    assert Path("runs/synthetic/version_0/checkpoints/last.ckpt").is_file()


def test_an_error_of_a_worker_names_the_line_in_the_worker() -> None:
    text = f"""Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{os.__file__}", line 3, in fetch
  File "/home/me/mine.py", line 7, in __getitem__
    raise ValueError("a mistake")
ValueError: a mistake
"""
    found = user_error(ValueError(text))
    assert found is not None
    assert found[1] == Frame("/home/me/mine.py", 7, "__getitem__")


def test_only_steps_of_a_model_of_this_package_are_never_refusals() -> None:
    def raised(file: str, function: str, error: str) -> BaseException:
        source, path = f"def {function}():\n    {error}", str(PACKAGE / file)
        code = compile(source, path, "exec")
        linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
        space: dict[str, Callable[[], None]] = {}
        exec(code, space)
        try:
            space[function]()
        except Exception as caught:
            return caught
        raise AssertionError

    refused = [("data/own.py", "load", "raise ValueError"), ("own.py", "read", "int('x')")]
    refused += [("models/own.py", "__init__", "raise ValueError")]
    refused += [("data/own.py", "load", "open('/no/file')")]
    mistakes = [("models/own.py", "forward", "raise ValueError"), ("data/own.py", "load", "{}[0]")]
    mistakes += [("data/own.py", "load", "int('x')")]
    assert [user_error(raised(*case)) for case in refused] == [None] * len(refused)
    assert all(user_error(raised(*case)) for case in mistakes)


def test_processes_that_fail_alike_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from project.engine import failures;"
        "sys.exit(not failures.claim(ValueError('x')))"
    )
    monkeypatch.setattr("tempfile.tempdir", str(Path.cwd()))
    environment = os.environ | {"TMPDIR": str(Path.cwd()), "LOCAL_RANK": "1"}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    monkeypatch.setenv("LOCAL_RANK", "0")
    claim(ValueError("another"))
    command = [sys.executable, "-c", script]
    assert [subprocess.run(command, env=environment).returncode for _ in range(2)] == [0, 1]
    claim(ValueError("x"))
    assert claim(ValueError("x")), "the first process says its own"


def test_tasks_of_slurm_without_srun_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert exit_code(QUICK) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "error: SLURM_NTASKS is 2" in error
    assert "unset SLURM_NTASKS" in error
    assert not Path("runs").exists()
