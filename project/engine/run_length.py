"""How long a run is, and how many examples an optimiser step has, as far as the trainer knows."""

import math

import lightning as L
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities import rank_zero_info

from .datamodule import StreamDataModule
from .protocols import HasBatchSize
from .schedule import Interval


def run_length(trainer: L.Trainer, interval: Interval) -> float:
    """Return the optimiser steps or epochs after which `max_epochs` or `max_steps` ends the run."""
    limit = trainer.max_epochs
    epochs = math.inf if limit is None or limit < 0 else max(limit, 1)
    if interval == "epoch" and trainer.max_steps < 0:
        return epochs
    trainer.fit_loop.setup_data()
    steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
    steps = steps if steps >= 0 else math.inf  # Lightning's -1
    if interval == "step" or math.isinf(batches):
        return steps if interval == "step" else epochs
    per_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
    return min(epochs, math.ceil(steps / per_epoch))


def examples_per_step(trainer: L.Trainer, data: HasBatchSize) -> int:
    """Return the examples of an optimiser step; the most, if the last of an epoch has fewer.

    Raises:
        ValueError: If the steps differ by design.
    """
    if any(isinstance(c, GradientAccumulationScheduler) for c in trainer.callbacks):  # type: ignore[attr-defined]
        raise ValueError(
            "reference_batch_size needs steps of one size, and GradientAccumulationScheduler "
            "changes it: leave one of them out"
        )
    trainer.fit_loop.setup_data()
    batches = trainer.num_training_batches
    if batches < trainer.accumulate_grad_batches:
        # Lightning steps at the end of an epoch all the same, but would divide the gradients by
        # the number of batches that never come.
        rank_zero_info(f"An epoch has {batches:g} batches: no more of them are accumulated.")
        trainer.accumulate_grad_batches = int(batches)
    size = data.batch_size * trainer.accumulate_grad_batches
    if isinstance(data, StreamDataModule):
        size = min(size, len(data.sets["train"][2]))
    return size
