"""Callbacks: each is one fact about a run."""

from project.callbacks.checkpoints import (
    BestCheckpoint,
    EarlyStopping,
    LastCheckpoint,
    run_checkpoints,
)
from project.callbacks.checks import OverfitOneBatch
from project.callbacks.finite import FiniteCheck
from project.callbacks.init_loss import InitLossCheck
from project.callbacks.monitor_check import MonitorCheck
from project.callbacks.monitors import StepMonitor, TensorBoardRecord, WeightHistogramMonitor
from project.callbacks.pictures import CurvesMonitor, PredictionGrid
from project.callbacks.progress import ProgressBar
from project.callbacks.restore_best import RestoreBest
from project.callbacks.rng import RNGState
from project.callbacks.run_record import RunRecord

__all__ = ["BestCheckpoint", "EarlyStopping", "LastCheckpoint", "RNGState", "run_checkpoints"]
__all__ += ["FiniteCheck", "InitLossCheck", "MonitorCheck", "OverfitOneBatch"]
__all__ += ["CurvesMonitor", "PredictionGrid", "ProgressBar", "RestoreBest", "RunRecord"]
__all__ += ["StepMonitor", "TensorBoardRecord", "WeightHistogramMonitor"]
