"""Callbacks: each is one fact about a run."""

from project.callbacks.checkpoints import (
    BestCheckpoint,
    EarlyStopping,
    LastCheckpoint,
    run_checkpoints,
)
from project.callbacks.checks import MonitorCheck
from project.callbacks.progress import ProgressBar
from project.callbacks.rng import RNGState
from project.callbacks.run_record import RunRecord

__all__ = [
    "BestCheckpoint",
    "EarlyStopping",
    "LastCheckpoint",
    "MonitorCheck",
    "ProgressBar",
    "RNGState",
    "RunRecord",
    "run_checkpoints",
]
