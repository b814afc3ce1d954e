"""What a command works with, decided before anything is built."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_info

from ..engine.checkpoint_io import load_checkpoint
from ..engine.loggers import is_rank_zero
from ..engine.restoring import from_checkpoint
from ..engine.resume import check_resumable, find_unfinished
from ..runs.errors import UsageError
from ..runs.folder import LAST, absent, claim_run, release_run, run_of
from ..runs.lock import lock_run
from ..runs.record import Record, read_record

MEASURING = ("validate", "test", "predict")  # commands that need trained weights


@dataclass(frozen=True)
class RunPlan:
    """The run folder, checkpoint and configuration of a command.

    Args:
        folder: Run folder that `fit` trains in. On ranks other than 0 that of a new run is not
            known before rank 0 has told it.
        config: Configuration in plain types, as in `config.yaml`.
        checkpoint: Content of the checkpoint, until the model has its weights.
        checkpoint_path: Path of the checkpoint.
        names_run: Whether --run was given.
        doubts: Reasons why a resumed run may differ from an uninterrupted one.
        lock: Lock on the folder, which keeps other processes from training in it.
        created: Folders around that of a new run that did not exist, from the inside; None for a
            run that is resumed.
    """

    folder: Path = field(default_factory=Path)
    config: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = None
    checkpoint_path: Path | None = None
    names_run: bool = False
    doubts: tuple[str, ...] = ()
    lock: BaseFileLock | None = None
    created: tuple[Path, ...] | None = None

    @property
    def step(self) -> int:
        """Number of optimiser steps that the checkpoint was trained for."""
        return self.checkpoint["global_step"] if self.checkpoint else 0

    @property
    def way_out(self) -> str:
        """What to do about a checkpoint that does not fit the model, if that can be told."""
        return "Leave out the options that change the model" if self.names_run else ""

    def release(self) -> None:
        """Unlock the run folder, and remove that of a new run in which nothing has begun."""
        if self.lock is not None:
            self.lock.release()
        if self.created is not None:
            release_run(self.folder, self.created)


def make_plan(command: str, config: Namespace, plain: Callable[[], dict[str, Any]]) -> RunPlan:
    """Decide what a command works with. On rank 0, `fit` claims and locks its run folder.

    Args:
        command: Name of the command.
        config: Its configuration, in which `ckpt_path` becomes the path of a file.
        plain: Function that returns the configuration in plain types.

    Raises:
        UsageError: If the command needs a checkpoint and has none, or if another process is
            training the run.
    """
    run = config.pop("run")
    if command == "fit":
        return _plan_fit(config, Path(run) if run else None, plain)
    path = config.get("ckpt_path")
    if command in MEASURING and not path:
        raise UsageError(f"{command} needs trained weights: --run FOLDER or --ckpt_path FILE")
    return RunPlan(
        config=plain(),
        checkpoint=load_checkpoint(Path(path)) if path else None,
        checkpoint_path=Path(path) if path else None,
        names_run=bool(run),
    )


def _plan_fit(
    config: Namespace, given: Path | None, plain: Callable[[], dict[str, Any]]
) -> RunPlan:
    runs = Path(config.trainer.default_root_dir, config.name)
    run = _find_resumed(config, given, runs)
    record = read_record(run) if run else None
    plan = RunPlan(run or runs / "version_of_rank_0", plain(), names_run=given is not None)
    claims = is_rank_zero() and not config.trainer.fast_dev_run
    if claims and run is None:
        plan = replace(plan, created=tuple(absent(runs)), folder=claim_run(runs))
    try:
        if claims:
            plan = replace(plan, lock=_lock(plan.folder))
        return _with_checkpoint(plan, config.ckpt_path, record)
    except BaseException:
        plan.release()
        raise


def _find_resumed(config: Namespace, given: Path | None, runs: Path) -> Path | None:
    """Return the run to resume, if any. If --ckpt_path is `last`, it becomes the path of a file."""
    if config.ckpt_path == "last":
        run = find_unfinished(runs, locked=not is_rank_zero())
        config.ckpt_path = str(run / LAST) if run else None
        found = f"Resuming {run}." if run else f"No run in {runs} to resume: starting one."
        rank_zero_info(found)
        return run
    if given is None and config.ckpt_path and Path(config.ckpt_path).name == LAST.name:
        return run_of(Path(config.ckpt_path))
    return given  # any other checkpoint starts a new run


def _lock(folder: Path) -> BaseFileLock:
    lock = lock_run(folder)
    if lock is None:
        raise UsageError(f"another process is training {folder}: let it finish")
    return lock


def _with_checkpoint(plan: RunPlan, path: str | None, record: Record | None) -> RunPlan:
    """Add the checkpoint that `fit` resumes from, or refuse it."""
    if not path:
        return plan
    checkpoint = load_checkpoint(Path(path))
    with from_checkpoint(path, restores=True):
        doubts = check_resumable(checkpoint, plan.config, record)
    return replace(plan, checkpoint=checkpoint, checkpoint_path=Path(path), doubts=tuple(doubts))
