"""The image and the dev container, as far as they can be tested without Docker."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TEXT = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
STEPS = [
    tuple(line.split(maxsplit=1)) for line in re.sub(r"\\\n", "", TEXT).splitlines() if line.strip()
]
ARGS = dict(value.split("=", 1) for word, value in STEPS if word == "ARG")
COPIED = [value.split()[0] for word, value in STEPS if word == "COPY"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHON = PROJECT["requires-python"].removeprefix(">=")
DEV = re.sub(r"^ *//.*\n", "", (ROOT / ".devcontainer/devcontainer.json").read_text(), flags=re.M)
STUBS = {  # what needs a network or a root user; pip's files of versions have to be there
    "python": 'case "$2" in pip) echo "$@" >> "$PIP"; for f; do case "$f" in *.txt) '
    f'test -s "$f" || exit 9;; esac; done;; *) exec {sys.executable} "$@";; esac',
    "useradd": "",
    "chown": "",
}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the steps make, each with only what was copied before it."""
    image, stubs = tmp_path / "image", tmp_path / "stubs"
    image.mkdir()
    stubs.mkdir()
    for name, script in STUBS.items():
        (stubs / name).write_text(f"#!/bin/sh\n{script}\n")
        (stubs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(stubs), prepend=os.pathsep)
    monkeypatch.setenv("PIP", str(tmp_path / "pip"))
    monkeypatch.setenv("TORCH_INDEX", ARGS["TORCH_INDEX"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for word, value in STEPS:
        if word == "COPY":
            source, target = value.split()
            if (ROOT / source).is_dir():
                without = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, image / target, ignore=without)
            else:
                shutil.copy(ROOT / source, image / target)
        elif word == "RUN":
            subprocess.run(["/bin/sh", "-e", "-c", value], cwd=image, check=True)
    return image


def test_python_is_the_oldest_that_the_project_takes() -> None:
    image = json.loads(DEV)["image"]
    for name, tag in (ARGS["BASE"].split(":"), image.split(":")):
        assert name.endswith("python")
        assert tag.startswith(f"{PYTHON}-")
    assert ("FROM", "${BASE}") in STEPS


def test_what_is_copied_is_there_and_not_ignored() -> None:
    assert {"pyproject.toml", "requirements.lock", "project/", "configs"} == set(COPIED)
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    ignored = [line for line in lines if line and line[0] not in "#!"]
    wanted = [line[1:] for line in lines if line.startswith("!")]
    assert ignored[0] == "*"
    assert set(wanted) == set(COPIED)
    assert not any(fnmatch(path, pattern) for path in COPIED for pattern in ignored[1:])
    assert all((ROOT / path).exists() for path in COPIED)


def test_process_is_not_root_and_gets_signals() -> None:
    last = dict(STEPS)
    assert int(last["USER"]) >= 1000
    assert json.loads(last["ENTRYPOINT"]) == ["python", "-m", "project"]  # no shell between
    assert json.loads(last["CMD"]) == ["--help"]
    assert [word for word, _ in STEPS][-3:] == ["USER", "ENTRYPOINT", "CMD"]


@pytest.mark.skipif(os.name == "nt", reason="the image is one of Linux")
def test_steps_install_what_the_project_needs_in_locked_versions(
    built: Path, tmp_path: Path
) -> None:
    assert (built / "requirements.txt").read_text().splitlines() == PROJECT["dependencies"]
    lines = (built / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines)
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert pins[requirement.name] in requirement.specifier
    build_for_cpu = Version(f"{pins['torch']}+cpu")
    assert build_for_cpu in Requirement(f"torch=={pins['torch']}").specifier  # is not replaced
    first, second, third = (tmp_path / "pip").read_text().splitlines()
    assert f"--no-deps --index-url {ARGS['TORCH_INDEX']} " in first
    assert first.endswith(" torch torchvision")
    assert second.endswith(" torch torchvision")
    assert third.endswith(" --requirement requirements.txt")
    assert all("--constraint constraints.txt" in line for line in (first, second, third))


@pytest.mark.skipif(os.name == "nt", reason="the image is one of Linux")
def test_what_is_copied_starts_and_has_the_configs(built: Path) -> None:
    assert {"data", "runs"} <= {path.name for path in built.iterdir()}
    assert (built / "configs" / "synthetic.yaml").is_file()
    assert list(built.glob("project/commands/__pycache__/cli.*.pyc"))
    command = [*json.loads(dict(STEPS)["ENTRYPOINT"]), "seed_noise", "--help"]
    done = subprocess.run(command, cwd=built, capture_output=True, text=True)
    assert "--sweep" in done.stdout, done.stderr


def test_dev_container_makes_the_environment_of_make() -> None:
    made = json.loads(DEV)
    target = re.match(r"make (\S+) && ", made["postCreateCommand"])
    assert target
    dry = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target[1]]
    shown = subprocess.run(dry, capture_output=True, text=True, check=True).stdout
    assert 'pip install --quiet --editable ".[dev,notebooks]"' in shown
    interpreter = made["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter.removeprefix("${workspaceFolder}/") in shown
