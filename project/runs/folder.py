"""The run folder `runs/<name>/version_<n>`: everything about a run, in files that other tools read.

Nothing here imports torch, so that commands that only read runs start at once.
"""

import hashlib
import itertools
import json
import platform
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from .files import check_regular, open_regular, write_whole
from .names import PROGRAM
from .plain import read_json, read_yaml

RECORD, LOCK, PREDICTIONS = "run.json", ".lock", "predictions.csv"
CONFIG = "config.yaml"
TEST_SET = "test_sha256"  # in the run record: hash of the test examples, from the first look on
BEST, LAST = Path("checkpoints/best.ckpt"), Path("checkpoints/last.ckpt")
NEUTRAL = (  # beginnings of settings that do not change what a run computes
    *("name", "ckpt_path", "checkpoint", "preflight", "pictures", "max_wait_s"),
    *("data.root", "data.num_workers", "data.memory_budget", "data.cache"),
    *("trainer.default_root_dir", "trainer.enable_", "trainer.logger", "trainer.profiler"),
    *("trainer.num_sanity_val_steps", "trainer.log_every_n_steps", "trainer.model_registry"),
    *("trainer.limit_test_batches", "trainer.limit_predict_batches"),
    *("trainer.detect_anomaly", "trainer.inference_mode"),
)
CLAIMS = 1000  # tries to make a run folder, while others make and remove theirs
FINISHED = ("max_epochs", "max_steps", "early_stopping")  # what stops a run at its end
ENDED = (*FINISHED, "max_time")  # what stops one whose result counts
FIELDS = {  # of a run record, and what others may take them for
    **{"name": str, "version": str, "seed": int, "config_sha256": str, "data_sha256": str | None},
    **{"seconds": int | float, "epochs": int | None, "best_epoch": int | None},
    **{"stopped_by": str | None, "metrics": dict},
}
OPTIONAL = {"examples": dict, "tested": int, "precision": str, "world_size": int, "modes": dict}
OPTIONAL |= {"ended": bool, "resumes": list, "command": str}
# What decides a run, in a whole repository, by git's patterns.
CODE = (":/*.py", ":/*.yaml", ":/*.yml", ":(top,exclude,glob)**/version_*/**")
PACKAGES = ("lightning", "torch", "torchvision", "torchmetrics", "numpy")


def next_version(folder: Path) -> int:
    """The number after the highest `version_<n>` in a folder."""
    taken = (path.name.removeprefix("version_") for path in folder.glob("version_*"))
    return 1 + max((int(number) for number in taken if number.isdigit()), default=-1)


def is_finished(record: dict[str, Any]) -> bool:
    """Return whether a run came to its end, so that there is nothing to resume."""
    stopped_by = record.get("stopped_by")
    return stopped_by in FINISHED or (has_ended(record) and stopped_by != "max_time")


def has_ended(record: dict[str, Any]) -> bool:
    """Return whether the result of a run counts: it finished, or used up its time."""
    return record.get("stopped_by") in ENDED or bool(record.get("ended"))


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
    """A folder and those around it, from the inside, as far as they do not exist."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def lock_run(run: Path) -> BaseFileLock | None:
    """Take a run for this process, or nothing if another process trains it."""
    check_regular(run / LOCK)
    lock = FileLock(run / LOCK)
    try:
        lock.acquire(timeout=0.2)  # another process may be looking whether it is free
    except Timeout:
        return None
    return lock


def is_free(run: Path) -> bool:
    """Whether no process trains a run. To look leaves no file, and does not hinder other looks."""
    try:
        import fcntl

        with open_regular(run / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # on Windows, and on file systems that have no such locks
        if lock := lock_run(run):
            lock.release()
        return lock is not None
    return True


def release_run(run: Path, made: Iterable[Path] = ()) -> None:
    """Remove the folder of a new run that has not begun, if nothing of the user's is in it.

    Args:
        run: Path of the run folder.
        made: Folders around it that were made for it, from the inside; empty ones go too.
    """
    if (run / RECORD).exists():
        return
    with suppress(OSError):
        for path in (run / LOCK, *run.glob("events.out.tfevents.*")):  # of a logger that was made
            path.unlink(missing_ok=True)
        for folder in (run, *made):
            folder.rmdir()


def read_record(run: Path) -> dict[str, Any]:
    """What is known of a run.

    Raises:
        ValueError: If the folder is no run.
    """
    try:
        record = read_json(run / RECORD)
        if fault := _fault(record):
            raise ValueError(f"{run / RECORD} is damaged: {fault}")
    except FileNotFoundError as error:
        listed = f"`{PROGRAM} runs` lists those that there are"
        raise ValueError(f"{run} is no run folder, it has no {RECORD}: {listed}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{run} is no run folder: {error}") from error
    return dict(record)


def _fault(record: Any) -> str:
    """What is wrong with a run record, if anything."""
    if not isinstance(record, dict):
        return "it holds no run record"
    if missing := [name for name in FIELDS if name not in record]:
        return f"no {', '.join(missing)}"
    for name, kind in (FIELDS | OPTIONAL).items():
        if not _is_a(record.get(name), kind if name in FIELDS else kind | None):
            return f"{name} is {str(record[name])[:40]!r}"
    numbers = record["metrics"].items(), record.get("examples", {}).items()
    for name, value in itertools.chain(*numbers):
        if not _is_a(value, int | float):
            return f"{name} is {str(value)[:40]!r}"
    return ""


def _is_a(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def read_config(run: Path) -> dict[str, Any]:
    """The configuration of a run, in plain types.

    Raises:
        ValueError: If the file is not a configuration.
        OSError: If it can't be read.
    """
    config = read_yaml(run / CONFIG)
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{run / CONFIG} is not the configuration of a run")
    return config


def write_record(run: Path, record: dict[str, Any]) -> None:
    """Write the run record."""
    write_whole(run / RECORD, json.dumps(record, indent=2) + "\n")


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, if it does."""
    run = checkpoint.resolve().parent.parent
    return run if (run / RECORD).is_file() else None


def git_state(folder: Path) -> dict[str, Any]:
    """Commit of the repository around a folder, and whether it has uncommitted changes."""

    def git(*args: str) -> str | None:
        command = ["git", "-C", str(folder), *args]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    status = git("status", "--porcelain", "--untracked-files=no")
    # A new model or config that was never added; run folders hold configs too.
    new = git("ls-files", "--others", "--exclude-standard", "--", *CODE)
    return {
        "git_sha": git("rev-parse", "HEAD"),
        "git_dirty": None if status is None or new is None else bool(status or new),
    }


def flatten(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their names on the command line, as `model.optimizer.lr`."""
    if not isinstance(config, dict):
        yield key, config
        return
    for name, value in config.items():
        inside = name in ("class_path", "init_args")
        yield from flatten(value, key if inside else f"{key}.{name}".lstrip("."))


def config_sha256(config: dict[str, Any]) -> str:
    """Hash of a configuration without its seed, and without what can't change a result."""
    others = (*NEUTRAL, "seed_everything")
    # Without what is not set, so that a new option does not set old runs apart.
    given = {name: value for name, value in flatten(config) if value is not None}
    same = {name: value for name, value in given.items() if not name.startswith(others)}
    return hashlib.sha256(json.dumps(same, sort_keys=True, default=str).encode()).hexdigest()


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's numbers."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def kept(run: Path) -> str:
    """What an error has left of a run, in words."""
    if (run / LAST).is_file():
        again = f"{PROGRAM} fit --run {shlex.quote(str(run))}"
        return f"Kept: {run}, up to its newest checkpoint. To resume it: {again}"
    if (run / RECORD).is_file():
        return f"Kept: {run}, which has no checkpoint to resume from yet."
    return "No run folder was left, since training had not begun."


def summary(run: Path, restored: bool = True) -> str:
    """What a finished run tells its user, such as whether the best weights are restored."""
    record = read_record(run)
    measured = [f"{k} {v:.4f}" for k, v in record["metrics"].items() if k.startswith("val/")]
    found = f", with {', '.join(measured)}" if measured else ""
    name = shlex.quote(str(run))
    if record["best_epoch"] is None:
        return f"Stopped by {record['stopped_by']}, without a best epoch.\nRun folder: {name}"
    return (
        f"Stopped by {record['stopped_by']} after {record['epochs']} epochs.\n"
        f"Best epoch: {record['best_epoch'] + 1} of {record['epochs']}{found}."
        f"{' Its weights are restored.' if restored else ''}\n"
        f"Run folder: {name}, {record['seconds']:.0f} s in all\n"
        f"Test set, once, at the end: {PROGRAM} test --run {name}"
    )


def record_test(run: Path, metrics: dict[str, float], examples: dict[str, int]) -> str:
    """Write down that the test set was looked at, and what came out where it is a result.

    Returns:
        How often that was.
    """
    record = read_record(run)
    times = record["tested"] = record.get("tested", 0) + 1
    record["metrics"] |= metrics
    record["examples"] |= examples
    write_record(run, record)
    if times == 1:
        return "The test set has been looked at once for this run."
    return (
        f"The test set has been looked at {times} times for this run: choices belong to "
        "validation, or it no longer says how good the run is on new images."
    )
