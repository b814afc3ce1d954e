"""`fit`: training, what is said if it fails, and what at its end."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L

from ..engine.failures import claim
from ..engine.image_files import DamagedImageError
from ..engine.loggers import is_rank_zero
from ..engine.processes import end_children, join
from ..engine.restore_best import find_restored
from ..engine.restoring import from_checkpoint
from ..engine.weights import check_fits, check_same_classes
from ..runs.folder import LAST, RECORD
from ..runs.names import PROGRAM
from ..runs.summary import kept, summary
from .plan import RunPlan


def check_resumed(plan: RunPlan, model: L.LightningModule, names: list[str] | None) -> None:
    """Refuse a checkpoint of another model or other classes; Lightning restores it later.

    Args:
        plan: Plan with the checkpoint.
        model: Model to train.
        names: Class names of the data, if they have any.
    """
    assert plan.checkpoint is not None
    assert plan.checkpoint_path is not None
    check_same_classes(plan.checkpoint_path, plan.checkpoint, names)
    check_fits(plan.checkpoint_path, plan.checkpoint, model, plan.way_out)


def train(trainer: L.Trainer, plan: RunPlan, max_wait_s: float, **arguments: Any) -> None:
    """Train, and end the processes that this one has started if it fails.

    Args:
        trainer: Trainer, set up.
        plan: Plan of the run.
        max_wait_s: Seconds that a process waits for the others.
        arguments: Arguments of `Trainer.fit`.
    """
    join(trainer.strategy, max_wait_s)
    path = plan.checkpoint_path
    try:
        with from_checkpoint(str(path) if path else None):
            trainer.fit(**arguments | {"weights_only": True})
    except DamagedImageError as error:  # in data that are read as they are needed
        end_children(trainer)
        raise DamagedImageError(f"{error}: {_way_on(plan.folder)}") from None
    except BaseException as error:
        if isinstance(error, Exception) and is_rank_zero():
            error.add_note(kept(plan.folder))
            claim(error)  # before its children, which look for it
        end_children(trainer)
        raise


def _way_on(run: Path) -> str:
    """Return what to do about an image that could be read at the start and no longer can."""
    if (run / LAST).is_file():
        again = f"{PROGRAM} fit --run {shlex.quote(str(run))}"
        return f"put it back as it was, then resume the run with {again}"
    return "put it back as it was or remove it, and start again; nothing was saved so far"


def print_summary(trainer: L.Trainer, plan: RunPlan) -> RunPlan:
    """Print how a run ended, and return its plan with the folder that rank 0 has told."""
    end = find_restored(trainer)
    plan = replace(plan, folder=end.run) if end else plan
    if trainer.is_global_zero and (plan.folder / RECORD).is_file():
        print(summary(plan.folder, restored=bool(end and end.restored)))
    return plan
