"""When ReduceLROnPlateau takes its step."""

from collections.abc import Callable

import lightning as L
from lightning.pytorch.callbacks import Callback


class PlateauStepper(Callback):
    """Steps ReduceLROnPlateau after each validation, whatever the monitored metric is logged by.

    All metrics of the validation are there by then, also those that a module logs in its own
    `on_validation_epoch_end`, and the checkpoint is saved afterwards: Lightning steps a plateau
    schedule after the save, and a run that resumes from it would lack the step.

    Args:
        step: Function that takes the step.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self.step()
