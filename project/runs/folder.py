"""The run folder `runs/<name>/version_<n>`: the names of its files, and how it is made.

Nothing here imports torch, so that commands that only read runs start at once.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .plain import read_yaml

RECORD, CONFIG, LOCK = "run.json", "config.yaml", ".lock"
METRICS, PREDICTIONS = "metrics.csv", "predictions.csv"
BEST, LAST = Path("checkpoints/best.ckpt"), Path("checkpoints/last.ckpt")
CLAIMS = 1000  # tries to make a run folder, while others make and remove theirs


def next_version(folder: Path) -> int:
    """Return the number after the highest `version_<n>` in a folder."""
    taken = (path.name.removeprefix("version_") for path in folder.glob("version_*"))
    return 1 + max((int(number) for number in taken if number.isdigit()), default=-1)


def claim_run(folder: Path) -> Path:
    """Make the folder of a new run, which no run that starts at the same moment can have.

    Raises:
        OSError: If it can't be made.
    """
    for _ in range(CLAIMS):
        run = folder / f"version_{next_version(folder)}"
        # Another process has just taken the number, or has just removed the folder around it.
        with suppress(FileExistsError, FileNotFoundError):
            run.mkdir(parents=True)
            return run
    raise OSError(f"can't make a run folder in {folder}: is it a folder that can be written to?")


def absent(folder: Path) -> list[Path]:
    """Return those of a folder and its parents that do not exist, from the inside out."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def release_run(run: Path, made: Iterable[Path] = ()) -> None:
    """Remove the folder of a new run that has not begun, if nothing of the user's is in it.

    Args:
        run: Path of the run folder.
        made: Folders around it that were made for it, from the inside out; empty ones go too.
    """
    if (run / RECORD).exists():
        return
    with suppress(OSError):
        for path in (run / LOCK, *run.glob("events.out.tfevents.*")):  # of a logger that was made
            path.unlink(missing_ok=True)
        for folder in (run, *made):
            folder.rmdir()


def read_config(run: Path) -> dict[str, Any]:
    """Return the configuration of a run, in plain types.

    Raises:
        ValueError: If the file is not a configuration.
        OSError: If it can't be read.
    """
    config = read_yaml(run / CONFIG)
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{run / CONFIG} is not the configuration of a run")
    return config


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder that a checkpoint lies in, if it lies in one."""
    run = checkpoint.resolve().parent.parent
    return run if (run / RECORD).is_file() else None
