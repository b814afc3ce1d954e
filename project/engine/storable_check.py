"""The check, before the first step of a run, that its checkpoints can be saved."""

import lightning as L
from lightning.pytorch.callbacks import Callback

from .storable import storable


class StorableCheck(Callback):
    """Refuses a run whose checkpoints would hold objects.

    It looks at the arguments of model and data, and at the states of callbacks and schedules.
    Anything else that a model adds to a checkpoint is checked when the first one is saved.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        storable(dict(pl_module.hparams), "hyper_parameters")
        if (data := trainer.datamodule) is not None:  # type: ignore[attr-defined]
            storable(dict(data.hparams), "hyper_parameters of the data")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            storable(callback.state_dict(), f"state of {type(callback).__name__}")
        for config in trainer.lr_scheduler_configs:
            kind = type(config.scheduler).__name__
            storable(config.scheduler.state_dict(), f"state of {kind}")
