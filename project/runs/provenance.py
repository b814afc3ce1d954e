"""The code that a run was made with: commit, uncommitted changes, and versions of packages."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

# The files in a repository that can affect a run, as git's patterns.
CODE = (":/*.py", ":/*.yaml", ":/*.yml", ":(top,exclude,glob)**/version_*/**")
PACKAGES = ("lightning", "torch", "torchvision", "torchmetrics", "numpy")


def git_state(folder: Path) -> dict[str, Any]:
    """Return the commit of the repository around a folder, and whether it has further changes."""

    def git(*args: str) -> str | None:
        command = ["git", "-C", str(folder), *args]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    status = git("status", "--porcelain", "--untracked-files=no")
    # A new model or config may never have been added. Run folders are excluded, since they hold
    # configs too.
    new = git("ls-files", "--others", "--exclude-standard", "--", *CODE)
    return {
        "git_sha": git("rev-parse", "HEAD"),
        "git_dirty": None if status is None or new is None else bool(status or new),
    }


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect a run's numbers."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
