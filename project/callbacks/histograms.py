"""An example of a callback of your own: histograms of the weights in TensorBoard."""

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn

from project.engine.full_precision import to_float32
from project.engine.harmless import Harmless
from project.engine.loggers import tensorboards


class WeightHistogramMonitor(Harmless, Callback):
    """Shows a histogram of each parameter in TensorBoard.

    Args:
        every_n_epochs: Number of epochs from one histogram to the next.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        if every_n_epochs < 1:
            raise ValueError(f"every_n_epochs {every_n_epochs} must be at least 1")
        self.every_n_epochs = every_n_epochs

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not tensorboards(trainer) and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            rank_zero_warn("no histograms are written: the run has no TensorBoardLogger")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero or (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        step = trainer.global_step - 1  # the step at which this epoch's train/loss is logged
        for logger in [] if self.given_up else tensorboards(trainer):
            with self.harmless("histograms of the weights"):
                for name, parameter in pl_module.named_parameters():
                    values = to_float32(parameter.detach())
                    logger.experiment.add_histogram(f"weights/{name}", values, step)
