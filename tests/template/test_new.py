"""A project started from the template works, is wholly renamed, and takes later versions."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from project import new
from project.runs.errors import UsageError

NAME = "plankton"
# `project` as an English word, as a table of pyproject.toml, and as what benchmarks call `main`.
ENGLISH = r"\b(?:a|another|each|every|new|own|small|the|this|your) project\b"
TABLE = r"^\[project\b|\[[\"']project[\"']\]|\bas project$|\bproject\("
GIT = pytest.mark.skipif(not shutil.which("git"), reason="no git")


@pytest.fixture(autouse=True)
def _unknown_to_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git knows no name of the user, and names no repository as it does for a hook."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the template to change, under git where there is one."""
    names, _ = new.template()
    for name in (*names, *new.OWN):
        path = tmp_path / "template" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(new.ROOT / name, path)
    monkeypatch.setattr(new, "ROOT", tmp_path / "template")
    if shutil.which("git"):
        new.git(new.ROOT, "init", "-qb", "main")
        commit(new.ROOT, "Version 1")
    return new.ROOT


def commit(folder: Path, message: str) -> None:
    new.git(folder, "add", "--all")
    new.git(folder, "commit", "-qm", message)


def replace(path: Path, old: str, by: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, by), "utf-8")


def start(folder: str | Path, *args: str) -> Path:
    new.main([str(folder), *args])
    return Path(folder)


def run(folder: Path, *args: str) -> str:
    """What a module prints in a project, where nothing else can be imported."""
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
        ("WORKDIR /app\nCOPY project project\nCOPY project/ ./project/\nRUN x -q project", 5),
        ("*\n!project\n!configs", 1),
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


def test_nothing_refers_to_the_package_of_the_template(tmp_path: Path) -> None:
    folder = start(tmp_path / "my-own", "--name", NAME)
    assert len(list((folder / NAME).rglob("*.py"))) > 40
    found = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix != ".png" and not name.startswith(".git/"):
            assert not re.search(r"\bproject\b", name)
            for line in path.read_text("utf-8").splitlines():
                rest = re.sub(f"{ENGLISH}|{TABLE}", "", line, flags=re.IGNORECASE)
                found += [f"{name}: {line}"] if re.search(r"\bproject\b", rest) else []
    assert not found, "neither renamed nor English, see project.new.REFERENCE: " + "\n".join(found)
    for name in (*new.OWN, "project"):
        assert not (folder / name).exists()


def test_prose_tables_licence_and_modes_survive(tmp_path: Path) -> None:
    folder = start(tmp_path / "my-own", "--name", NAME)
    settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    assert settings["project"]["name"] == NAME
    assert settings["project"]["scripts"] == {NAME: f"{NAME}.__main__:console"}
    assert settings["tool"]["mypy"]["files"] == [NAME]
    assert '(ROOT / "pyproject.toml").read_text())["project"]' in (
        folder / "tests/template/test_packaging.py"
    ).read_text("utf-8")
    assert "with the project's defaults" in (folder / NAME / "commands/cli.py").read_text("utf-8")
    for name in ("LICENSE", "docs/patience.png"):
        assert (folder / name).read_bytes() == (new.ROOT / name).read_bytes()
    assert (folder / ".ci/run").stat().st_mode == (new.ROOT / ".ci/run").stat().st_mode
    readme = (folder / "README.md").read_text("utf-8")
    title = (new.ROOT / "README.md").read_text("utf-8").splitlines()[0].removeprefix("# ")
    assert readme.startswith(f"# {NAME}\n\nFrom the template *{title}*, version ")
    assert f"\npython -m {NAME} fit" in readme
    assert "project.new" not in readme
    assert "template for" not in readme


@pytest.mark.slow
def test_it_works(tmp_path: Path) -> None:
    folder = tmp_path / "3. my plankton"
    with pytest.MonkeyPatch.context() as patch:  # as for those who have not installed anything
        patch.setenv("PYTHONPATH", str(new.ROOT))
        subprocess.run([sys.executable, "-m", "project.new", folder], check=True)
    files = [
        "tests/machinery/commands/test_main.py",
        "tests/data/test_augment.py",
        "tests/models/test_networks.py",
    ]
    assert "passed" in run(folder, "pytest", "-q", "-p", "no:cacheprovider", *files)
    fit = ["fit", "--config", "synthetic", "--config", "presets/debug", "--trainer.accelerator=cpu"]
    assert "max_steps=1" in run(folder, "my_plankton", *fit)


@pytest.mark.parametrize("name", ["aa", "zz", "a_name_that_is_longer_than_most"])
def test_it_is_in_the_order_and_style_of_its_name(tmp_path: Path, name: str) -> None:
    folder = start(tmp_path / name)
    for args in (["check"], ["format", "--check"]):
        run(folder, "ruff", *args, "--no-cache", ".")


@GIT
def test_it_is_a_repository_of_its_own_with_one_commit(tmp_path: Path) -> None:
    folder = start(tmp_path / NAME)
    assert new.git(folder, "status", "--porcelain") == ""
    assert new.git(folder, "branch", "--format=%(refname:short)").split() == ["main", "template"]
    assert new.git(folder, "rev-parse", "main") == new.git(folder, "rev-parse", "template")
    assert new.git(folder, "log", "--format=%an: %s").startswith("template: Template, ")
    assert len(new.git(folder, "log", "--format=%h").split()) == 1


def test_without_git_it_is_what_is_not_ignored(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = set(new.template()[0])
    shutil.rmtree(template / ".git", ignore_errors=True)
    for name in ("data/a.bin", "project/__pycache__/a.pyc", ".venv/pyvenv.cfg"):
        (template / name).parent.mkdir(exist_ok=True)
        (template / name).touch()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert set(new.template()[0]) == tracked
    folder = start(tmp_path / NAME)
    assert (folder / NAME / "engine/augment.py").is_file()
    assert not (folder / ".git").exists()
    assert "version unknown" in (folder / "README.md").read_text("utf-8")


def changed_on_both_sides(template: Path, folder: Path) -> None:
    """Changes of the template and of a project, of which the owner's are not all committed."""
    replace(folder / "configs/synthetic.yaml", "# ", "# Mine. ")
    (folder / "README.md").write_text("# My own words\n")
    commit(folder, "Mine")
    (folder / "notes.txt").write_text("of mine, not for git")
    replace(template / "project/commands/table.py", '"synthetic"', '"cifar"')
    replace(template / "README.md", "# ", "# More than ")
    (template / "project/extra.py").write_text("from project import usage\n\nprint(usage)\n")
    (template / "configs/linear_regression.yaml").unlink()
    commit(template, "Version 2")


@GIT
def test_later_versions_are_merged_by_git(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = start(tmp_path / "mine", "--name", NAME)
    changed_on_both_sides(template, folder)
    main = new.git(folder, "rev-parse", "main")
    start(folder, "--update")
    assert "git merge template" in capsys.readouterr().out
    assert new.git(folder, "rev-parse", "main") == main  # until its owner merges
    assert "Version" not in new.git(folder, "log", "template", "--format=%s")
    new.git(folder, "merge", "--no-edit", "template")
    assert 'DEFAULT_CONFIG = "cifar"' in (folder / NAME / "commands/table.py").read_text("utf-8")
    assert (folder / NAME / "extra.py").read_text("utf-8").startswith(f"from {NAME} import")
    assert not (folder / "configs/linear_regression.yaml").exists()
    assert (folder / "configs/synthetic.yaml").read_text("utf-8").startswith("# Mine. ")
    assert (folder / "README.md").read_text("utf-8") == "# My own words\n"
    assert (folder / "notes.txt").is_file()

    replace(template / "configs/synthetic.yaml", "# ", "# Theirs. ")
    commit(template, "Version 3")
    start(folder, "--update")
    with pytest.raises(UsageError, match="git merge"):
        new.git(folder, "merge", "template")
    text = (folder / "configs/synthetic.yaml").read_text("utf-8")
    assert re.search(r"<<<<<<< HEAD\n# Mine\. .*=======\n# Theirs\. ", text, re.DOTALL)
    assert new.git(folder, "diff", "--name-only", "--diff-filter=U") == "configs/synthetic.yaml\n"


@GIT
def test_a_repository_made_by_github_takes_later_versions_too(
    template: Path, tmp_path: Path
) -> None:
    """ "Use this template" copies all files in one commit, and names no branch `template`."""
    folder = tmp_path / "mine"
    shutil.copytree(template, folder, ignore=shutil.ignore_patterns(".git"))
    new.git(folder, "init", "-qb", "main")
    commit(folder, "Initial commit")
    (root,) = new.git(folder, "rev-list", "--max-parents=0", "HEAD").split()
    new.git(folder, "branch", "template", root)
    changed_on_both_sides(template, folder)
    start(folder, "--update")
    new.git(folder, "merge", "--no-edit", "template")
    assert 'DEFAULT_CONFIG = "cifar"' in (folder / "project/commands/table.py").read_text("utf-8")
    assert (folder / "configs/synthetic.yaml").read_text("utf-8").startswith("# Mine. ")
    assert not (folder / "project/new.py").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["full"], "full has something in it"),
        (["full/file"], "has something in it"),
        (["template/inside"], "or is in the template"),
        (["new", "--name", "my-name"], "'my-name' is not small letters, digits and _"),
        (["new", "--name", "Name"], "'Name' is not small letters"),
        (["123"], "'' is not small letters"),
        (["class"], "'class' is not .* or is a keyword"),
        (["json"], "json is taken, by a module"),
        (["torch"], "torch is taken"),
        (["tests"], "tests is taken, .* by a folder of the template"),
        (["data"], "data is taken"),
        (["full", "--update"], "git show in .*full: .*docs/new_project.md"),
        (["full", "--update", "--name", "a"], "--name: not allowed with argument --update"),
        (["new", "--nam", "a"], "unrecognized arguments: .* see python -m project.new --help"),
    ],
)
def test_refuses_in_one_sentence(
    template: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=message) as error:
        new.main(args)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_installed_package_says_to_take_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new, "ROOT", tmp_path)
    with pytest.raises(UsageError, match="in a clone of the template"):
        new.main(["new"])
