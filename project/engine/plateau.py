"""The moment at which ReduceLROnPlateau takes its step."""

from collections.abc import Callable

import lightning as L
from lightning.pytorch.callbacks import Callback


class PlateauStepper(Callback):
    """Steps ReduceLROnPlateau after each validation, whatever logs the monitored metric.

    By then all metrics of the validation are there, including those that a module logs in its own
    `on_validation_epoch_end`. The checkpoint is saved afterwards. Lightning would take the step
    after the save, so that a resumed run would lack it.

    Args:
        step: Function that takes the step.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self.step()
