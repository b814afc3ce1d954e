"""Start a project of your own from a clone of this template, or bring later versions to one.

    python scripts/new_project.py ../my_project --name plankton
    python scripts/new_project.py ../my_project --update

The machinery is copied byte for byte; everywhere else the package gets its new name. The project's
branch `template` keeps what came from here, so that `git merge template` brings updates.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
MACHINERY = tuple(f"project/{r}/" for r in ("runs", "engine", "preflight", "reports", "commands"))
ROOMS = ("models", "data", "callbacks")  # the owner's rooms: updates leave them alone
OWNERS = ("README.md", "configs/", *(f"{top}/{r}/" for top in ("project", "tests") for r in ROOMS))
STAYS = ("scripts/new_project.py", "docs/new_project.md")  # not copied, nor are their tests
STAYS += ("tests/template/test_new.py", "tests/template/test_readme.py")
TOP = r"\A# (.+?)\s*\n\s*(\S.*\n)+"  # title and first paragraph
# Matches the package's name, but not the English word, nor the table in pyproject.toml.
REFERENCE = re.compile(
    r"""
    (?<![\w.-])(?<![\n`]\[)(?<!org/)project(?=/|\\?\.[a-z_]|\ =\ "|\ \(pyproject|\ fit\ --)
    | (?:(?<=from\ )|(?<=import\ )|(?<=-m\ )|(?<=--\ )|(?<=name=)|(?<=--tag\ ))project\b
    | (?<=["'`])(?<![\w)\]]\[["'])project(?=\\?["'`])  # quoted, but not as in x["project"]
    """,
    re.VERBOSE,
)


def git(folder: Path, *args: str | Path) -> str:
    """Return the output of a git command, ignoring the repository that a hook's variables name."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "user.name=template", "-c", "user.email=template@localhost", *args]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8")
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise ValueError(f"git {args[0]} in {folder}: {reason} (docs/new_project.md)")
    return done.stdout


def copy(folder: Path, name: str, without: tuple[str, ...] = ()) -> str:
    """Copy the template under another name, commit it, and return the template's version."""
    version = git(ROOT, "describe", "--always", "--dirty").strip()
    title = rf"# {name}\n\nFrom the template *\1*, version {version}: see branch `template`.\n"
    python = []
    for path in git(ROOT, "ls-files", "-z").split("\0"):
        if not (ROOT / path).is_file() or path in STAYS or path.startswith(without or "\0"):
            continue
        new = folder / REFERENCE.sub(name, path)
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, new)
        if not path.startswith(MACHINERY):
            text = REFERENCE.sub(name, new.read_bytes().decode(errors="surrogateescape"))
            text = re.sub(TOP, title, text) if path == "README.md" else text
            new.write_bytes(text.encode(errors="surrogateescape"))
            python += [new] if new.suffix in (".py", ".ipynb") else []
    # The name decides the order of imports and where lines are wrapped.
    for args in ("check --fix --select=I", "format", "check --add-noqa --select=E501"):
        command = [sys.executable, "-m", "ruff", *args.split(), "--quiet", "--no-cache", *python]
        subprocess.run(command, cwd=folder, check=True)
    git(folder, "add", "-Af")
    git(folder, "commit", "-qn", "--allow-empty", "--no-gpg-sign", "-m", f"Template, {version}")
    return version


def create(folder: Path, name: str) -> str:
    """Create a repository with one commit, and return the template's version."""
    if ROOT in folder.parents or folder.is_file() or any(folder.glob("*")):
        raise ValueError(f"{folder} is not empty or lies in the template: name a new folder")
    if iskeyword(name) or not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name):
        raise ValueError(f"--name {name!r} is a keyword, or not of small letters, digits and _")
    ignored = (ROOT / ".gitignore").read_text().replace("/", "").split()
    modules = {*sys.stdlib_module_names, *packages_distributions()}
    if name != "project" and name in {*modules, *os.listdir(ROOT), *ignored}:
        raise ValueError(f"--name {name} is already a module or a folder of the template")
    with TemporaryDirectory() as made:
        git(Path(made), "init", "-qb", "main")
        version = copy(Path(made), name)
        git(Path(made), "branch", "template")
        shutil.copytree(made, folder, dirs_exist_ok=True)
    return version


def update(folder: Path) -> str:
    """Add a commit to a project's branch `template`, and return the template's version."""
    name = tomllib.loads(git(folder, "show", "template:pyproject.toml"))["project"]["name"]
    kept = tuple(REFERENCE.sub(name, path) for path in OWNERS)
    with TemporaryDirectory() as made:
        git(folder, "clone", "-q", "--single-branch", "--branch", "template", folder, made)
        for path in git(Path(made), "ls-files", "-z").split("\0")[:-1]:
            if not path.startswith(kept):
                Path(made, path).unlink()
        version = copy(Path(made), name, OWNERS)
        git(folder, "fetch", "-q", made, "template:template")
    return version


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Start a project of your own, or update it.")
    parser.allow_abbrev = False
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the project")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--name", help="name of the package of a new project")
    text = "bring this version to a project that was made before"
    either.add_argument("--update", action="store_true", help=text)
    options = parser.parse_args(args)
    folder = options.folder.resolve()
    try:
        if not shutil.which("git") or not (ROOT / ".git").exists():
            raise ValueError("git is missing, or this is not a clone: install git and clone it")
        if not find_spec("ruff"):
            raise ValueError("ruff, which sorts the imports again, is missing: pip install ruff")
        version = update(folder) if options.update else create(folder, options.name)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    next_step = "git merge template" if options.update else "make test"
    print(f"{folder} has version {version} of the template. Next, there: {next_step}")


if __name__ == "__main__":
    main()
