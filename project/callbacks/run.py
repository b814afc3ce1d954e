"""The callbacks of a run."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, LearningRateMonitor

from project.callbacks.checkpoints import EarlyStopping, LastCheckpoint, run_checkpoints
from project.callbacks.checks import OverfitOneBatch
from project.callbacks.finite import FiniteCheck
from project.callbacks.init_loss import InitLossCheck
from project.callbacks.monitor_check import MonitorCheck
from project.callbacks.monitors import StepMonitor, TensorBoardRecord
from project.callbacks.pictures import CurvesMonitor, PredictionGrid
from project.callbacks.restore_best import RestoreBest
from project.callbacks.run_record import RunRecord
from project.callbacks.storable import StorableCheck
from project.direction import Mode


def run_callbacks(
    run: Path,
    config: dict[str, Any],
    command: list[str],
    modes: dict[str, Mode],
    stopping: EarlyStopping | None,
    last: LastCheckpoint,
    pictures: PredictionGrid,
) -> list[Callback]:
    """What refuses, watches, records and saves a run, in the order in which one needs another.

    Args:
        run: Its folder.
        config: Its configuration, in plain types.
        command: The arguments of the command line.
        modes: Directions of metrics, the monitored one among them.
        stopping: Early stopping, if any.
        last: The checkpoint to resume from.
        pictures: Of the validation images.
    """
    trainer, monitor = config["trainer"], config["monitor"]
    if stopping is not None:
        stopping.follow(modes[monitor])
    callbacks = [MonitorCheck(monitor), *filter(None, [stopping]), FiniteCheck()]
    if trainer["logger"] is not False:
        callbacks += [LearningRateMonitor(), StepMonitor()]
    if trainer["fast_dev_run"]:
        return callbacks
    if config["preflight"]:
        callbacks += [] if config["init_from"] else [InitLossCheck()]
        callbacks.append(OverfitOneBatch())
    callbacks += [RunRecord(run, config, command, modes), RestoreBest(run)]
    callbacks += [TensorBoardRecord(config)]
    callbacks += [CurvesMonitor(), pictures]
    if trainer["enable_checkpointing"] is not False:
        callbacks.append(StorableCheck())
        callbacks += run_checkpoints(run, monitor, modes[monitor], last)
    return callbacks
