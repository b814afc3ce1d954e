"""Callbacks: each is one fact about a run."""

from project.callbacks.checks import MonitorCheck
from project.callbacks.progress import ProgressBar
from project.callbacks.run_record import RunRecord

__all__ = ["MonitorCheck", "ProgressBar", "RunRecord"]
