"""The list of a run's callbacks. Each line is also an option: `--pictures null` leaves one out.

To add a callback or a picture of your own, write it in a file in this folder, as in
`histograms.py`, and add a line to the list.
"""

from dataclasses import dataclass

from lightning.pytorch.callbacks import LearningRateMonitor

from project.callbacks.histograms import WeightHistogramMonitor
from project.callbacks.pictures import CurvesMonitor, PredictionGrid
from project.engine.defaults import by_default
from project.engine.early_stopping import EarlyStopping
from project.engine.finite import FiniteCheck
from project.engine.monitor_check import MonitorCheck
from project.engine.progress import ProgressBar
from project.engine.restore_best import RestoreBest
from project.engine.rng import RNGState
from project.engine.run_record import RunRecord
from project.engine.saving import BestCheckpoint, LastCheckpoint, run_checkpoints
from project.engine.step_monitor import StepMonitor
from project.preflight.init_loss import InitLossCheck
from project.preflight.overfit import OverfitOneBatch


@dataclass
class Callbacks:
    """What a run has, in this order; null leaves one out.

    Args:
        early_stopping: Callback that stops the run when the monitored metric no longer improves;
            by default there is none.
        finite_check: Callback that stops the run at the first training loss that is NaN or
            infinite.
        lr_monitor: Callback that logs the learning rate.
        step_monitor: Callback that logs the gradient norm and the images per second.
        curves: Callback that draws curves.png from metrics.csv.
        pictures: Callback that draws the predictions for the validation images.
    """

    early_stopping: EarlyStopping | None = None
    finite_check: FiniteCheck | None = by_default(FiniteCheck)
    lr_monitor: LearningRateMonitor | None = by_default(LearningRateMonitor)
    step_monitor: StepMonitor | None = by_default(StepMonitor)
    curves: CurvesMonitor | None = by_default(CurvesMonitor)
    pictures: PredictionGrid | None = by_default(PredictionGrid)


# Tests and notebooks import these from here, and `--trainer.callbacks+` finds them by short name.
__all__ = ["BestCheckpoint", "Callbacks", "CurvesMonitor", "EarlyStopping", "FiniteCheck"]
__all__ += ["InitLossCheck", "LastCheckpoint", "MonitorCheck", "OverfitOneBatch", "PredictionGrid"]
__all__ += ["ProgressBar", "RNGState", "RestoreBest", "RunRecord", "StepMonitor"]
__all__ += ["WeightHistogramMonitor", "run_checkpoints"]
