"""A project started from the template works, is wholly renamed, and takes later versions."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import new_project as new

NAME = "plankton"
OWN_TESTS = (
    "tests/models/test_networks.py",
    "tests/data/test_augment.py",
    "tests/data/test_synthetic.py",
    "tests/callbacks/test_predictions.py",
)
# `project` as an English word, as a table of pyproject.toml, and as what benchmarks call `main`.
ENGLISH = r"\b(?:a|another|each|every|new|own|small|the|this|your) project\b"
TABLE = r"^\[project\b|\[[\"']project[\"']\]|\bas project$|\bproject\("

pytestmark = pytest.mark.skipif(
    not shutil.which("git") or not (new.ROOT / ".git").exists(), reason="no clone, or no git"
)


@pytest.fixture(autouse=True)
def _unknown_to_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run git without a user name, and without the repository variables that it sets for hooks."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the template that a test may change."""
    root = tmp_path / "template"
    for name in files(new.ROOT):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(new.ROOT / name, root / name)
    monkeypatch.setattr(new, "ROOT", root)
    new.git(root, "init", "-qb", "main")
    commit(root, "Version 1")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that was started from the shell, without the package being installed."""
    folder = tmp_path_factory.mktemp("new") / "3. my plankton"
    command = [sys.executable, new.ROOT / "scripts/new_project.py", folder, "--name", NAME]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout.endswith("Next, there: make test\n")
    return folder


def files(folder: Path) -> list[str]:
    """Return the tracked files that exist."""
    names = new.git(folder, "ls-files", "-z").split("\0")
    return [name for name in names if (folder / name).is_file()]


def commit(folder: Path, message: str) -> None:
    new.git(folder, "add", "--all")
    new.git(folder, "commit", "-qm", message)


def replace(path: Path, old: str, by: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, by), "utf-8")


def start(folder: str | Path, *args: str) -> Path:
    new.main([str(folder), *(args or ("--name", NAME))])
    return Path(folder)


def update(folder: Path) -> None:
    start(folder, "--update")
    new.git(folder, "merge", "--no-edit", "template")


def machinery(root: Path, package: str = "project") -> dict[str, bytes]:
    """Return the files of the machinery's rooms, by their path in the package."""
    rooms = [room.split("/")[1] for room in new.MACHINERY]
    paths = [path for room in rooms for path in (root / package / room).rglob("*.py")]
    return {str(path.relative_to(root / package)): path.read_bytes() for path in paths}


def run(folder: Path, *args: str) -> str:
    """Return what a module prints in a project, where nothing else can be imported."""
    env = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200", "PYTHONUTF8": "1"}
    command = [sys.executable, "-P", "-m", *args]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("from project import cli; import project, project.data as d", 3),
        ('"import sys, torch, project.engine.processes"', 1),
        ("python -m project fit and `python -m project`", 2),
        ("torchrun --max-restarts 2 -m -- project fit", 1),
        ('[sys.executable, "-m", "project", *args]', 1),
        ('"argv = [\\"project\\"]\\n"', 1),
        ("sys.argv = ['project', 'fit']", 1),
        (r'match=r"project\.data\.MLP"', 1),
        ('class_path: project.engine.profiler.StepProfiler\nx: "project.commands.cli:main"', 2),
        ('[project]\nname = "project"\n[project.scripts]\nproject = "project.__main__:console"', 3),
        ('packages = ["project"]\nconfigs = "project/configs"', 2),
        ("    # via project (pyproject.toml)\n    #   project (pyproject.toml)", 2),
        ("#SBATCH --job-name=project", 1),
        ("WORKDIR /app\nCOPY project/ ./project/\nRUN x -q project/", 3),
        ("*\n!project/\n!configs", 1),
        ("docker build --tag project .\ndocker run project fit --config cifar", 2),
        ('{ "name": "project", "image": "x" }', 1),
        ("`project/engine/loader.py` and `project.data` of `project`", 3),
        ("this project, the project's data, a project. It is", 0),
        ("pyproject.toml and `[project.scripts]` of https://pypi.org/project/torch/", 0),
        ('tomllib.loads(text)["project"]["name"], table["project"], PROJECT_TEST_DATA', 0),
        ("try the project without data: --config synthetic", 0),
        ("from project.commands.cli import main as project", 1),
        ("my-project/x, new_project.md, project_1", 0),
    ],
)
def test_references_to_the_package_are_told_from_the_word(text: str, renamed: int) -> None:
    assert new.REFERENCE.sub(NAME, text).count(NAME) == renamed


def test_nothing_refers_to_the_package_of_the_template(made: Path) -> None:
    found = []
    for name in files(made):
        assert not re.search(r"\bproject\b", name)
        for line in (made / name).read_bytes().decode(errors="replace").splitlines():
            rest = re.sub(f"{ENGLISH}|{TABLE}", "", line, flags=re.IGNORECASE)
            found += [f"{name}: {line}"] if re.search(r"\bproject\b", rest) else []
    assert not found, "neither renamed nor English, see new.REFERENCE: " + "\n".join(found)


def test_machinery_is_the_template_s_byte_for_byte(made: Path) -> None:
    assert machinery(made, NAME) == machinery(new.ROOT)
    assert len(machinery(made, NAME)) > 40


def test_prose_tables_licence_and_modes_survive(made: Path) -> None:
    settings = tomllib.loads((made / "pyproject.toml").read_text("utf-8"))
    assert settings["project"]["name"] == NAME
    assert settings["project"]["scripts"] == {NAME: f"{NAME}.__main__:console"}
    assert settings["tool"]["mypy"]["files"] == [NAME]
    packaging = (made / "tests/template/test_packaging.py").read_text("utf-8")
    assert '(ROOT / "pyproject.toml").read_text())["project"]' in packaging
    for name in ("LICENSE", "docs/patience.png"):
        assert (made / name).read_bytes() == (new.ROOT / name).read_bytes()
    assert (made / ".ci/run").stat().st_mode == (new.ROOT / ".ci/run").stat().st_mode
    for name in new.STAYS:
        assert not (made / name).exists()
    readme = (made / "README.md").read_text("utf-8")
    title = (new.ROOT / "README.md").read_text("utf-8").splitlines()[0].removeprefix("# ")
    assert readme.startswith(f"# {NAME}\n\nFrom the template *{title}*, version ")
    assert f"\npython -m {NAME} fit" in readme
    assert "new_project" not in readme
    assert "template for" not in readme


def test_it_is_a_repository_of_its_own_with_one_commit(made: Path) -> None:
    assert new.git(made, "status", "--porcelain") == ""
    assert new.git(made, "branch", "--format=%(refname:short)").split() == ["main", "template"]
    assert new.git(made, "rev-parse", "main") == new.git(made, "rev-parse", "template")
    assert new.git(made, "log", "--format=%an: %s").startswith("template: Template, ")
    assert len(new.git(made, "log", "--format=%h").split()) == 1


@pytest.mark.slow
def test_it_passes_its_own_tests_and_trains(made: Path) -> None:
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow"]
    files = [*OWN_TESTS, "tests/machinery/commands/test_main.py"]
    assert "passed" in run(made, "pytest", *options, *files)
    fit = ["fit", "--config", "synthetic", "--config", "presets/debug", "--trainer.accelerator=cpu"]
    assert "max_steps=1" in run(made, NAME, *fit)


def test_its_own_tests_come_before_those_of_the_machinery() -> None:
    settings = tomllib.loads((new.ROOT / "pyproject.toml").read_text("utf-8"))
    paths = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    assert paths[:3] == ["tests/models", "tests/data", "tests/callbacks"]
    assert {f"tests/{path.name}" for path in (new.ROOT / "tests").iterdir()} - set(paths) <= {
        "tests/conftest.py",
        "tests/__pycache__",
    }
    shown = subprocess.run(
        ["make", "-n", "-C", new.ROOT, "test", "ARGS=-x"], capture_output=True, text=True
    )
    first, second = re.findall("pytest (.*) -x", shown.stdout)
    assert [*first.split(), *second.split()] == paths


@pytest.mark.parametrize("name", ["aa", "zz", "a_name_that_is_longer_than_most"])
def test_it_is_in_the_order_and_style_of_its_name(tmp_path: Path, name: str) -> None:
    folder = start(tmp_path / name, "--name", name)
    for args in (["check"], ["format", "--check"]):
        run(folder, "ruff", *args, "--no-cache", ".")


def changed_on_both_sides(template: Path, folder: Path, package: str) -> None:
    """Commit changes to a project, leave one uncommitted, and commit others to the template."""
    (folder / package / "models/own_net.py").write_text("# A network of mine\n")
    (folder / package / "data/cifar10.py").unlink()
    (folder / "tests/data/test_cifar10.py").unlink()
    replace(folder / package / "callbacks/__init__.py", '"""', '"""Mine. ')
    replace(folder / "pyproject.toml", '"torchvision', '"timm>=1.0",\n    "torchvision')
    (folder / "README.md").write_text("# My own words\n")
    commit(folder, "Mine")
    (folder / "notes.txt").write_text("of mine, not for git")
    for room in ("models/mlp.py", "data/cifar10.py", "callbacks/__init__.py"):
        replace(template / "project" / room, '"""', '"""Theirs. ')
    (template / "project/models/their_net.py").write_text("# A network of theirs\n")
    replace(template / "project/commands/table.py", '"synthetic"', '"cifar"')
    (template / "project/engine/extra.py").write_text("from ..runs import names\n\nprint(names)\n")
    (template / "project/engine/live.py").unlink()
    path = "tests/machinery/commands/test_extra.py"
    (template / path).write_text("from project.engine import extra\n\nprint(extra)\n")
    replace(template / "pyproject.toml", '"filelock>=3.18"', '"filelock>=3.19"')
    replace(template / "README.md", "# ", "# More than ")
    (template / "configs/linear_regression.yaml").unlink()
    commit(template, "Version 2")


def owned(folder: Path) -> dict[str, bytes]:
    """Return the files of the rooms that belong to the owner."""
    rooms = [path.split("/")[-2] for path in new.OWNERS if "/" in path]
    names = [name for name in files(folder) if {*rooms, "README.md"} & set(name.split("/"))]
    return {name: (folder / name).read_bytes() for name in names if "machinery" not in name}


@pytest.mark.parametrize("package", [NAME, "project"])
def test_an_update_replaces_the_machinery_and_leaves_what_is_the_owner_s(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    """A repository made by "Use this template" has one commit, named here, and the old name."""
    folder = tmp_path / "mine"
    if package == "project":
        shutil.copytree(template, folder, ignore=shutil.ignore_patterns(".git"))
        new.git(folder, "init", "-qb", "main")
        commit(folder, "Initial commit")
        (root,) = new.git(folder, "rev-list", "--max-parents=0", "HEAD").split()
        new.git(folder, "branch", "template", root)
    else:
        start(folder)
    changed_on_both_sides(template, folder, package)
    main, own = new.git(folder, "rev-parse", "main"), owned(folder)
    start(folder, "--update")
    assert "git merge template" in capsys.readouterr().out
    assert new.git(folder, "rev-parse", "main") == main  # until its owner merges
    assert "Version" not in new.git(folder, "log", "template", "--format=%s")
    new.git(folder, "merge", "--no-edit", "template")
    assert machinery(folder, package) == machinery(template)
    assert owned(folder) == own
    assert f"{package}/models/own_net.py" in own
    assert f"{package}/models/mlp.py" in own
    assert (folder / "notes.txt").is_file()
    extra = (folder / "tests/machinery/commands/test_extra.py").read_text("utf-8")
    assert extra.startswith(f"from {package}.engine import")
    settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"timm>=1.0", "filelock>=3.19"} <= set(settings["dependencies"])
    assert not (folder / "scripts/new_project.py").exists()


def test_what_both_sides_changed_is_a_conflict(template: Path, tmp_path: Path) -> None:
    folder = start(tmp_path / "mine")
    replace(folder / "Makefile", "# Thin", "# Mine, thin")
    replace(folder / NAME / "commands/table.py", '"synthetic"', '"fashion_mnist"')
    commit(folder, "Mine")
    replace(template / "Makefile", "# Thin", "# Theirs, thin")
    replace(template / "project/commands/table.py", '"synthetic"', '"cifar"')
    commit(template, "Version 2")
    with pytest.raises(ValueError, match="git merge"):
        update(folder)
    text = (folder / "Makefile").read_text("utf-8")
    assert re.search(r"<<<<<<< HEAD\n# Mine, .*=======\n# Theirs, ", text, re.DOTALL)
    conflicts = new.git(folder, "diff", "--name-only", "--diff-filter=U").split()
    assert conflicts == ["Makefile", f"{NAME}/commands/table.py"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["full", "--name", "a"], "full is not empty"),
        (["full/file", "--name", "a"], "is not empty"),
        (["template/inside", "--name", "a"], "or lies in the template"),
        (["new", "--name", "my-name"], "'my-name' is a keyword, or not of small letters, digits"),
        (["new", "--name", "Name"], "'Name' is"),
        (["new", "--name", ""], "'' is"),
        (["new", "--name", "class"], "'class' is a keyword"),
        (["new", "--name", "json"], "json is already a module"),
        (["new", "--name", "torch"], "torch is already a module"),
        (["new", "--name", "tests"], "tests is already a .* folder of the template"),
        (["new", "--name", "data"], "data is already"),
        (["full", "--update"], "git show in .*full: .*docs/new_project.md"),
        (["nowhere", "--update"], "nowhere"),
        (["full", "--update", "--name", "a"], "not allowed with argument"),
        (["new"], "--name --update is required"),
        (["new", "--nam", "a"], "--name --update is required"),
    ],
)
def test_refuses_in_one_sentence(
    template: Path,
    tmp_path: Path,
    args: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as error:
        new.main(args)
    said = f"{error.value.code}\n" if error.value.code != 2 else capsys.readouterr().err
    assert re.search(f"error: .*{message}.*\n$", said)
    assert sorted(tmp_path.rglob("*")) == before


def test_needs_git_and_a_clone(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (template / ".git").rename(tmp_path / "git")
    with pytest.raises(SystemExit, match="this is not a clone"):
        start(tmp_path / "mine")
    (tmp_path / "git").rename(template / ".git")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="git is missing"):
        start(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_failure_leaves_nothing_behind(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = start(tmp_path / "mine")
    before = new.git(folder, "rev-parse", "template")
    monkeypatch.setattr(subprocess, "run", stop_at("ruff", subprocess.run))
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "another")
    with pytest.raises(KeyboardInterrupt):
        start(folder, "--update")
    assert not (tmp_path / "another").exists()
    assert new.git(folder, "rev-parse", "template") == before
    assert new.git(folder, "status", "--porcelain") == ""


def stop_at(word: str, carry_out: Any) -> Any:
    """Return a function that interrupts commands that contain a word, and runs all others."""

    def run(command: list[Any], **kwargs: Any) -> Any:
        if word in command:
            raise KeyboardInterrupt
        return carry_out(command, **kwargs)

    return run
