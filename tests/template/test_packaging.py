"""The files of an installation: the wheel, its dependencies' bounds, the lock and the Makefile."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import packages_distributions, version
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for line in chain(*PROJECT["optional-dependencies"].values())]
CONFIGS = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
TINY = ["--model.width=4", "--data.train_size=64", "--data.val_size=32", "--data.test_size=32"]


class Installed(NamedTuple):
    """A virtual environment with the wheel, and a working folder outside the checkout."""

    wheel: Path
    python: Path
    scripts: Path
    package: Path
    cwd: Path

    def run(self, *command: str | Path) -> str:
        """Run a command in the working folder and return what it prints."""
        unset = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        env = {key: value for key, value in os.environ.items() if key not in unset}
        env |= {"COLUMNS": "200", "PYTHONUTF8": "1"}
        done = subprocess.run(command, cwd=self.cwd, env=env, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it, without any download.

    The new environment borrows this one's packages by a `.pth` file. Python does not follow the
    `.pth` files found there, so an editable install of the checkout stays out of sight.
    """
    root = tmp_path_factory.mktemp("packaging")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*build, root / "dist", ROOT], check=True, capture_output=True)
    (wheel,) = (root / "dist").iterdir()
    venv.create(root / "venv", symlinks=os.name != "nt")
    paths = {"base": str(root / "venv"), "platbase": str(root / "venv")}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    scripts = Path(sysconfig.get_path("scripts", "venv", paths))
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    python = scripts / Path(sys.executable).name
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, capture_output=True)
    cwd = root / "elsewhere"
    cwd.mkdir()
    return Installed(wheel, python, scripts, site / "project", cwd)


def test_wheel_holds_the_package_and_every_config_and_nothing_else(installed: Installed) -> None:
    names = {Path(name) for name in ZipFile(installed.wheel).namelist()}
    modules = {path.relative_to(ROOT) for path in (ROOT / "project").rglob("*.py")}
    configs = {Path("project", "configs", path) for path in CONFIGS}
    metadata = {name for name in names if name.parts[0].endswith(".dist-info")}
    assert names - metadata == modules | configs
    assert "LICENSE" in {name.name for name in metadata}


def test_checkout_is_out_of_sight(installed: Installed) -> None:
    code = "import project; print(project.__file__)"
    assert Path(installed.run(installed.python, "-c", code).strip()).parent == installed.package


def test_script_fits_an_installed_config_from_anywhere(installed: Installed) -> None:
    configs = installed.package / "configs"
    shutil.copy(configs / "synthetic.yaml", configs / "nowhere_else.yaml")
    fit = ["fit", "--config", "nowhere_else", *TINY, "--trainer.fast_dev_run=true"]
    installed.run(installed.scripts / "project", *fit, "--trainer.accelerator=cpu")


def test_module_shows_its_help_from_anywhere(installed: Installed) -> None:
    assert "fit" in installed.run(installed.python, "-m", "project", "--help")


@pytest.mark.parametrize("dependency", DEPENDENCIES, ids=lambda dependency: dependency.name)
def test_lower_bound_is_no_newer_than_what_is_installed(dependency: Requirement) -> None:
    bounds = [Version(s.version) for s in dependency.specifier if s.operator == ">="]
    assert len(bounds) == 1
    assert bounds[0] <= Version(version(dependency.name))


def test_every_import_is_declared() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "project").rglob("*.py")]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(n.module) for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"project"}
    owners = packages_distributions()
    declared = {canonicalize_name(dependency.name) for dependency in DEPENDENCIES}
    undeclared = {m for m in modules if not declared & set(map(canonicalize_name, owners[m]))}
    assert modules
    assert not undeclared


def test_lock_pins_every_dependency_within_its_bounds() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE))
    for requirement in [*DEPENDENCIES, *EXTRAS]:
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier


def test_lock_has_hashes_and_no_address() -> None:
    requirements = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert requirements
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert not re.search(r"\w://|--\S*(index|links)", LOCK)


def test_default_config_of_make_exists() -> None:
    (default,) = re.findall(r"^CONFIG \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert (ROOT / default).is_file()
