"""Copies of the network and the trainer, which leave no trace of what is tried with them."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.utilities.seed import isolate_rng


@contextmanager
def unseen() -> Iterator[None]:
    """Leave the random state as it is, and print nothing."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with isolate_rng(), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def bare_trainer(trainer: L.Trainer, **kwargs: Any) -> L.Trainer:
    """Return a trainer that has the device, precision and clipping of another, and writes nothing.

    Args:
        trainer: Trainer of the run.
        kwargs: Further arguments of the new trainer.
    """
    device = trainer.strategy.root_device
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return L.Trainer(
        accelerator=device.type,
        devices=[device.index] if device.type == "cuda" else 1,
        plugins=[copy.deepcopy(trainer.precision_plugin)],
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        num_sanity_val_steps=0,
        log_every_n_steps=0,
        **dict.fromkeys(off, False),  # type: ignore[arg-type]
        **kwargs,
    )


def copy_of(model: L.LightningModule) -> L.LightningModule:
    """Return a deep copy without a compiled `forward`, which would use the model's own weights."""
    twin = copy.deepcopy(model)
    vars(twin).pop("forward", None)
    return twin
