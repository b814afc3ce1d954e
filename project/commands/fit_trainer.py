"""What the trainer of `fit` is made of: callbacks, plugins and loggers."""

from dataclasses import fields
from typing import Any

import lightning as L
from jsonargparse import Namespace
from lightning.fabric.plugins.environments import (  # type: ignore[attr-defined]
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelSummary
from lightning.pytorch.loggers import Logger

from ..callbacks import Callbacks, CurvesMonitor, PredictionGrid
from ..engine.checkpoint_io import AtomicCheckpointIO
from ..engine.early_stopping import EarlyStopping
from ..engine.exact import ResumeCheck
from ..engine.live import LiveState
from ..engine.loggers import run_loggers
from ..engine.monitor_check import MonitorCheck
from ..engine.monitored import model_modes, monitor_mode
from ..engine.processes import SameStart
from ..engine.progress import LayerTable
from ..engine.restore_best import RestoreBest
from ..engine.rng import RNGState
from ..engine.run_record import RunRecord
from ..engine.saving import run_checkpoints
from ..engine.settings_record import SettingsRecord
from ..engine.step_monitor import StepMonitor
from ..engine.storable_check import StorableCheck
from ..preflight.init_loss import InitLossCheck
from ..preflight.overfit import OverfitOneBatch
from ..runs.direction import Mode
from ..runs.errors import UsageError
from .plan import RunPlan

LOGGING = (LearningRateMonitor, StepMonitor)  # which need a logger
DRAWING = (CurvesMonitor, PredictionGrid)  # which need a run folder


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
        callbacks: Callbacks of --trainer.callbacks, and the progress bar.
        loggers: Loggers of --trainer.logger.
    """
    trainer = options.trainer
    if trainer.limit_train_batches == 0:
        raise UsageError("--trainer.limit_train_batches 0 leaves nothing to train: leave it out")
    if trainer.logger is not False:
        loggers = [*run_loggers(plan.folder, plan.step, listed(options.loggers)), *loggers]
    own = _own(options, bool(loggers), bool(trainer.fast_dev_run))
    arguments: dict[str, Any] = {
        "callbacks": run_callbacks(plan, options, command, _modes(plan, model), callbacks, own),
        "plugins": [*listed(trainer.plugins), AtomicCheckpointIO(), *_environment()],
        "logger": loggers or False,
    }
    tables = [callback for callback in callbacks if isinstance(callback, ModelSummary)]
    if trainer.enable_model_summary is not False and not tables:
        arguments["callbacks"].append(LayerTable())
        arguments["enable_model_summary"] = False  # Lightning's own
    return arguments


def listed(one_or_more: Any) -> list[Any]:
    """Return the value of an option that takes one or several as a list of its own."""
    return [*one_or_more] if isinstance(one_or_more, list) else [*filter(None, [one_or_more])]


def run_callbacks(
    plan: RunPlan,
    options: Namespace,
    command: list[str],
    modes: dict[str, Mode],
    given: list[Callback],
    own: list[Callback],
) -> list[Callback]:
    """Return all callbacks of a run, in the order in which one needs another.

    Args:
        plan: Plan of the run.
        options: Options of the command, with classes instantiated.
        command: Arguments of the command line.
        modes: Directions of metrics, the monitored one among them.
        given: Callbacks of --trainer.callbacks, and the progress bar.
        own: Callbacks of the list in `callbacks/__init__.py`.
    """
    for callback in own:
        if isinstance(callback, EarlyStopping):
            callback.follow(modes[options.monitor])
    start = f"at step {plan.step} of {plan.folder.name}" if plan.checkpoint else "anew"
    monitor, run = options.monitor, plan.folder
    callbacks = [RNGState(), LiveState(), *given, SameStart(start), ResumeCheck([*plan.doubts])]
    callbacks += [MonitorCheck(monitor)]
    if options.trainer.fast_dev_run:
        return [*callbacks, *own]
    if options.preflight:
        callbacks += [] if options.init_from else [InitLossCheck()]
        callbacks += [OverfitOneBatch()]
    callbacks += [RunRecord(run, plan.config, command, modes), RestoreBest(run)]
    callbacks += [SettingsRecord(plan.config), *own]
    if options.trainer.enable_checkpointing is not False:
        callbacks += [StorableCheck()]
        callbacks += run_checkpoints(run, monitor, modes[monitor], options.checkpoint)
    return callbacks


def _own(options: Namespace, logs: bool, fast_dev_run: bool) -> list[Callback]:
    """Return the callbacks of the list that are not left out and have what they need."""
    without = (() if logs else LOGGING) + (DRAWING if fast_dev_run else ())
    named = [options[field.name] for field in fields(Callbacks)]
    return [c for c in named if c is not None and not isinstance(c, without)]


def _modes(plan: RunPlan, model: L.LightningModule) -> dict[str, Mode]:
    """Return the directions of metrics, the monitored one among them."""
    monitor = plan.config["monitor"]
    modes = {f"val/{name}": mode for name, mode in model_modes(model).items()}
    return modes | {monitor: monitor_mode(monitor, plan.config["monitor_mode"], model)}


def _environment() -> list[SLURMEnvironment]:
    """Return SLURM's without Lightning's own requeue, which saves in the middle of a step."""
    if TorchElasticEnvironment.detect() or not SLURMEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]
