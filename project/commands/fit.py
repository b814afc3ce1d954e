"""`fit`: what a run's trainer has, what is said if training fails, and what at its end."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from jsonargparse import Namespace
from lightning.fabric.plugins.environments import (  # type: ignore[attr-defined]
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.callbacks import Callback, ModelSummary
from lightning.pytorch.loggers import Logger

from ..callbacks import RNGState, run_callbacks
from ..engine.checkpoint_io import AtomicCheckpointIO
from ..engine.exact import ResumeCheck
from ..engine.failures import claim
from ..engine.image_files import DamagedImageError
from ..engine.live import LiveState
from ..engine.loggers import is_rank_zero, run_loggers
from ..engine.monitored import model_modes, monitor_mode
from ..engine.processes import SameStart, end_children, join
from ..engine.progress import LayerTable
from ..engine.restore_best import find_restored
from ..engine.restoring import from_checkpoint
from ..engine.weights import check_fits, check_same_classes
from ..runs.errors import UsageError
from ..runs.folder import LAST, RECORD
from ..runs.names import PROGRAM
from ..runs.summary import kept, summary
from .plan import RunPlan


def fit_arguments(
    plan: RunPlan,
    options: Namespace,
    command: list[str],
    model: L.LightningModule,
    callbacks: list[Callback],
    loggers: list[Logger],
) -> dict[str, Any]:
    """Return callbacks, plugins and loggers of a run, as arguments of its trainer.

    Args:
        plan: Plan of the run.
        options: Options of the command, with classes instantiated.
        command: Arguments of the command line.
        model: Model to train.
        callbacks: Callbacks that were named, and the progress bar.
        loggers: Loggers that were named.
    """
    trainer = options.trainer
    if trainer.limit_train_batches == 0:
        raise UsageError("--trainer.limit_train_batches 0 leaves nothing to train: leave it out")
    monitor = plan.config["monitor"]
    modes = {f"val/{name}": mode for name, mode in model_modes(model).items()}
    modes[monitor] = monitor_mode(monitor, plan.config["monitor_mode"], model)
    given = (options.early_stopping, options.checkpoint, options.pictures)
    start = f"at step {plan.step} of {plan.folder.name}" if plan.checkpoint else "anew"
    arguments: dict[str, Any] = {
        "callbacks": [
            RNGState(),
            LiveState(),
            *callbacks,
            SameStart(start),
            ResumeCheck(list(plan.doubts)),
            *run_callbacks(plan.folder, plan.config, command, modes, *given),
        ],
        "plugins": [*listed(trainer.plugins), AtomicCheckpointIO(), *_environment()],
    }
    tables = [callback for callback in callbacks if isinstance(callback, ModelSummary)]
    if trainer.enable_model_summary is not False and not tables:
        arguments["callbacks"].append(LayerTable())
        arguments["enable_model_summary"] = False  # Lightning's own
    if trainer.logger is not False:
        arguments["logger"] = [*run_loggers(plan.folder, plan.step), *loggers]
    return arguments


def listed(one_or_more: Any) -> list[Any]:
    """Return the value of an option that takes one or several as a list of its own."""
    return [*one_or_more] if isinstance(one_or_more, list) else [*filter(None, [one_or_more])]


def _environment() -> list[SLURMEnvironment]:
    """Return SLURM's without Lightning's own requeue, which saves in the middle of a step."""
    if TorchElasticEnvironment.detect() or not SLURMEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]


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
