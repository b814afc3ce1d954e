"""The run folder `runs/<name>/version_<n>`: the names of its files, and how it is created.

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
CLAIMS = 1000  # attempts to make a run folder while other processes make and remove theirs


def next_version(folder: Path) -> int:
    """Return the next free n, one above the highest `version_<n>` in a folder."""
    taken = (path.name.removeprefix("version_") for path in folder.glob("version_*"))
    return 1 + max((int(number) for number in taken if number.isdigit()), default=-1)


def claim_run(folder: Path) -> Path:
    """Create the folder of a new run, so that no other run starting at the same time gets it too.

    Raises:
        OSError: If the folder can't be created.
    """
    for _ in range(CLAIMS):
        run = folder / f"version_{next_version(folder)}"
        # Another process may just have taken the number, or removed the folder around it.
        with suppress(FileExistsError, FileNotFoundError):
            run.mkdir(parents=True)
            return run
    raise OSError(f"can't make a run folder in {folder}: is it a folder that can be written to?")


def absent(folder: Path) -> list[Path]:
    """Return which of a folder and its parents do not exist, from the inside out."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def release_run(run: Path, made: Iterable[Path] = ()) -> None:
    """Remove the folder of a new run that has not begun, unless it holds a user's files.

    Args:
        run: Path of the run folder.
        made: Folders around it that were created for it, from the inside out. They are removed too
            if they are empty.
    """
    if (run / RECORD).exists():
        return
    with suppress(OSError):
        for path in (run / LOCK, *run.glob("events.out.tfevents.*")):  # made by the loggers
            path.unlink(missing_ok=True)
        for folder in (run, *made):
            folder.rmdir()


def read_config(run: Path) -> dict[str, Any]:
    """Return the configuration of a run, in plain types.

    Raises:
        ValueError: If the file is not a configuration.
        OSError: If the file can't be read.
    """
    config = read_yaml(run / CONFIG)
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{run / CONFIG} is not the configuration of a run")
    return config


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder that contains a checkpoint, or None if it is in none."""
    run = checkpoint.resolve().parent.parent
    return run if (run / RECORD).is_file() else None
