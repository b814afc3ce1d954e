"""The callbacks of a run: each is one fact about it, and here is the list, in its order."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, LearningRateMonitor

from project.callbacks.pictures import CurvesMonitor, PredictionGrid
from project.engine.finite import FiniteCheck
from project.engine.monitor_check import MonitorCheck
from project.engine.progress import ProgressBar
from project.engine.restore_best import RestoreBest
from project.engine.rng import RNGState
from project.engine.run_record import RunRecord
from project.engine.saving import (
    BestCheckpoint,
    EarlyStopping,
    LastCheckpoint,
    run_checkpoints,
)
from project.engine.step_monitor import StepMonitor, TensorBoardRecord, WeightHistogramMonitor
from project.engine.storable_check import StorableCheck
from project.preflight.check import OverfitOneBatch
from project.preflight.init_loss import InitLossCheck
from project.runs.direction import Mode

__all__ = ["BestCheckpoint", "EarlyStopping", "LastCheckpoint", "RNGState", "run_checkpoints"]
__all__ += ["FiniteCheck", "InitLossCheck", "MonitorCheck", "OverfitOneBatch"]
__all__ += ["CurvesMonitor", "PredictionGrid", "ProgressBar", "RestoreBest", "RunRecord"]
__all__ += ["StepMonitor", "TensorBoardRecord", "WeightHistogramMonitor"]
__all__ += ["run_callbacks"]


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
