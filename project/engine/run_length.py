"""The length of a run, and the examples of an optimiser step, as far as the trainer knows them."""

import math

import lightning as L
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities import rank_zero_info

from .datamodule import StreamDataModule
from .protocols import HasBatchSize
from .schedule import Interval


def run_length(trainer: L.Trainer, interval: Interval) -> float:
    """Return the length of a run in optimiser steps or epochs, by `max_epochs` and `max_steps`."""
    limit = trainer.max_epochs
    epochs = math.inf if limit is None or limit < 0 else max(limit, 1)
    if interval == "epoch" and trainer.max_steps < 0:
        return epochs
    trainer.fit_loop.setup_data()
    steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
    steps = steps if steps >= 0 else math.inf  # Lightning's -1 means that there is no limit
    if interval == "step" or math.isinf(batches):
        return steps if interval == "step" else epochs
    per_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
    return min(epochs, math.ceil(steps / per_epoch))


def examples_per_step(trainer: L.Trainer, data: HasBatchSize) -> int:
    """Return the number of examples of an optimiser step; the last of an epoch may have fewer.

    Raises:
        ValueError: If steps within the epoch are meant to differ.
    """
    if any(isinstance(c, GradientAccumulationScheduler) for c in trainer.callbacks):  # type: ignore[attr-defined]
        raise ValueError(
            "reference_batch_size needs steps of one size, and GradientAccumulationScheduler "
            "changes it: leave one of them out"
        )
    trainer.fit_loop.setup_data()
    batches = trainer.num_training_batches
    if batches < trainer.accumulate_grad_batches:
        # Lightning takes an optimiser step at the end of the epoch anyway, but would divide the
        # gradients by the full number of batches, some of which never come.
        rank_zero_info(f"An epoch has {batches:g} batches: no more of them are accumulated.")
        trainer.accumulate_grad_batches = int(batches)
    size = data.batch_size * trainer.accumulate_grad_batches
    if isinstance(data, StreamDataModule):
        size = min(size, len(data.sets["train"][2]))
    return size
