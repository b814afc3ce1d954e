"""Start a project of your own from a clone of this template, or bring its later versions to one.

Branch `template` of FOLDER keeps what came from here: --update renews it, for `git merge template`.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from tempfile import TemporaryDirectory

from project.commands.table import OptionParser
from project.runs.errors import UsageError

ROOT = Path(__file__).parents[1]
OWN = (
    "project/new.py",
    "tests/template/test_new.py",
    "docs/new_project.md",
    "tests/template/test_readme.py",
)
TOP = r"\A# (.+?)\s*\n\s*(\S.*\n)+"  # title and first paragraph
# What names the package; the word is also English, and in pyproject.toml a table.
REFERENCE = re.compile(
    r"""
    (?<![\w.-])(?<![\n`]\[)(?<!org/)project(
        (?=/)                         # a path: project/models
        | (?=\\?\.[a-z_])             # a dotted name: project.models
        | (?=\ =\ "project\.)         # a console script
        | (?=\ \(pyproject\.)         # of the lock: project (pyproject.toml)
    )
    | (?<=COPY\ )project\b | (?<=COPY\ project\ )project
    | (?<=from\ )project\b | (?<=import\ )project\b
    | (?<=-m\ )project\b | (?<=-q\ )project\b | (?<=-m\ --\ )project\b
    | (?<=name=)project\b | (?<=-tag\ )project\b | (?<=\n!)project\b  # in files of containers
    | (?<=["'`])(?<![\w)\]]\[["'])project(?=\\?["'`])  # quoted, but not as in x["project"]
    | \bproject(?=\ fit\ --)         # the console script
    """,
    re.VERBOSE,
)


def git(folder: Path, *args: str | Path) -> str:
    """What a git command prints, without the variables by which a hook names its repository."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "user.name=template", "-c", "user.email=template@localhost", *args]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise UsageError(f"git {args[0]} in {folder}: {done.stderr.strip()} (docs/new_project.md)")
    return done.stdout


def template() -> tuple[list[str], str]:
    """The files of a new project, and the template's version."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        names = git(ROOT, "ls-files", "-z").split("\0")
        version = git(ROOT, "describe", "--always", "--dirty").strip()
    else:
        names, version = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*")], "unknown"
        for line in (".git", *(ROOT / ".gitignore").read_text().split()):
            names = [n for n in names if not fnmatch(f"//{n}/", f"*/{line.rstrip('/')}/*")]
    return [name for name in names if (ROOT / name).is_file() and name not in OWN], version


def write(folder: Path, name: str, old: Path | None = None) -> str:
    """Make a project, or the next commit of an old one's branch `template`; return the version."""
    names, version = template()
    title = rf"# {name}\n\nFrom the template *\1*, version {version}: see branch `template`.\n"
    for path in names:
        new = folder / REFERENCE.sub(name, path)
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, new)
        text = REFERENCE.sub(name, new.read_bytes().decode(errors="surrogateescape"))
        text = re.sub(TOP, title, text) if path == "README.md" else text
        new.write_bytes(text.encode(errors="surrogateescape"))
    # Another name has another place among the imports, and wraps other lines.
    for args in ("check --fix --select=I", "format", "check --add-noqa --select=E501"):
        command = f"-m ruff {args} --quiet --no-cache --no-respect-gitignore .".split()
        subprocess.run([sys.executable, *command], cwd=folder, check=True)
    if shutil.which("git"):
        git(folder, "init", "-qb", "main")
        git(folder, "add", "-Af")
        if old:
            git(folder, "fetch", "-q", old, "template")
            git(folder, "reset", "-q", "--soft", "FETCH_HEAD")
            git(folder, "checkout", "-q", "FETCH_HEAD", "README.md")  # which is its owner's
        git(folder, "commit", "-qn", "--allow-empty", "--no-gpg-sign", "-m", f"Template, {version}")
        git(folder, "branch", "template")
    return version


def check_name(name: str) -> None:
    """Refuse a name that can't be imported, or that something else has."""
    if iskeyword(name) or not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name):
        raise UsageError(f"--name {name!r} is not small letters, digits and _, or is a keyword")
    taken = {*os.listdir(ROOT), *(ROOT / ".gitignore").read_text().replace("/", "").split()}
    if name != "project" and (name in taken or getattr(find_spec(name), "origin", None)):
        raise UsageError(f"--name {name} is taken, by a module or by a folder of the template")


def main(args: list[str]) -> None:
    """The command."""
    parser = OptionParser("new", str(__doc__))
    parser.prog = "python -m project.new"
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="empty, or yet to be made")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--name", help="of the package; by default the folder's, made valid")
    either.add_argument("--update", action="store_true", help="a project that was made before")
    options = parser.parse_args(args)
    folder = options.folder.resolve()
    if not (ROOT / "pyproject.toml").is_file():
        raise UsageError("tests and configs are not installed: run it in a clone of the template")
    if not find_spec("ruff"):
        raise UsageError("ruff, which sorts the imports anew, is missing: pip install ruff")
    if options.update:
        name = tomllib.loads(git(folder, "show", "template:pyproject.toml"))["project"]["name"]
        with TemporaryDirectory() as made:
            version = write(Path(made), name, folder)
            git(folder, "fetch", "-q", made, "template:template")
    else:
        if ROOT in folder.parents or folder.is_file() or any(folder.glob("*")):
            raise UsageError(f"{folder} has something in it, or is in the template: name a new one")
        name = options.name or re.sub("^[^a-z]+|[^a-z0-9]+", "_", folder.name.lower()).strip("_")
        check_name(name)
        version = write(folder, name)
    next_step = "git merge template" if options.update else "make test"
    print(f"{folder} has package {name} of template {version}. Next, there: {next_step}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, OSError) as error:
        sys.exit(f"error: {error}")
