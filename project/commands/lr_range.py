"""The LR range test (arXiv:1506.01186): which learning rates to begin with."""

import math
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray

BETA, MEMORY = 0.9, 10  # decay of the moving average, and the steps that it reaches back
DIVERGED = 4  # times the best smoothed loss
FALLEN = 2 / 3  # share of the whole fall that the lowest good rate must have reached
SAFE = 3  # factor between the rate of the lowest loss and one that trains for longer
CLEAR = 2  # standard deviations of single steps by which the loss must fall, to say anything
SURE = 4  # standard errors by which the steepest of many slopes must be above the average
WINDOW = 0.5  # decades of the learning rate on each side, over which the slope is measured


class LRSweep(Callback):
    """Raises the learning rate exponentially and records the loss, until it diverges.

    Args:
        lr_min: Learning rate of the first step.
        lr_max: Learning rate of the last step.
        num_steps: Optimiser steps.
    """

    def __init__(self, lr_min: float, lr_max: float, num_steps: int) -> None:
        if not 0 < lr_min < lr_max or num_steps < 10:
            raise ValueError(
                f"lr_min {lr_min} must be above 0 and below lr_max {lr_max}, and num_steps "
                f"{num_steps} at least 10"
            )
        self.lrs: list[float] = np.geomspace(lr_min, lr_max, num_steps).tolist()
        self.losses: list[float] = []
        self._ratios: list[float] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
        self._ratios = [rate / rates[0] for rate in rates]  # groups keep their proportions

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        for group, ratio in zip(trainer.optimizers[0].param_groups, self._ratios, strict=True):
            group["lr"] = self.lrs[len(self.losses)] * ratio

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any
    ) -> None:
        loss = trainer.strategy.reduce(outputs["loss"].detach().float(), reduce_op="mean")
        assert isinstance(loss, torch.Tensor)
        self.losses.append(loss.item())
        smoothed = smooth(self.losses)
        if not np.isfinite(smoothed[-1]) or smoothed[-1] > DIVERGED * smoothed.min():
            trainer.should_stop = True


def smooth(losses: list[float]) -> NDArray[np.float64]:
    """Return the exponential moving average, corrected for its start at zero (arXiv:1412.6980)."""
    average, smoothed = 0.0, []
    for step, loss in enumerate(losses, start=1):
        average = BETA * average + (1 - BETA) * loss
        smoothed.append(average / (1 - BETA**step))
    return np.array(smoothed)


def span(low: float, high: float) -> str:
    """Return a range in words, or one number if it is narrow."""
    return f"from {low:.1e} to {high:.1e}" if high > 1.2 * low else f"of about {high:.1e}"


@dataclass
class LRRange:
    """The result of a sweep.

    Args:
        lr: Learning rate of each step.
        loss: Loss of each step.
        min_over_10: A tenth of the learning rate at which the smoothed loss is lowest.
        steepest: Learning rate at which the loss falls fastest; None if noise hides it.
    """

    lr: list[float]
    loss: list[float]
    min_over_10: float
    steepest: float | None

    @classmethod
    def of(cls, sweep: LRSweep) -> "LRRange":
        """Return both suggestions, from the steps before the loss was no longer finite.

        Raises:
            ValueError: If the loss never fell.
        """
        losses = [loss for loss in sweep.losses if np.isfinite(loss)]
        lrs, smoothed = sweep.lrs[: len(losses)], smooth(losses)
        lowest = int(smoothed.argmin()) if losses else 0
        if lowest < 3:
            first = losses[0] if losses else math.nan
            raise ValueError(
                f"the loss never fell, from {first:.4g} at the first step: "
                "start lower with --lr_min, or see whether the model can learn at all"
            )
        found = cls(lrs, losses, lrs[lowest] / 10, None)
        found.steepest = found._steepest()
        return found

    @property
    def _lowest(self) -> int:
        return int(smooth(self.loss).argmin())

    @property
    def _noise(self) -> float:
        """Standard deviation of single steps around the smoothed loss, until that is lowest."""
        fall = slice(max(self._lowest, MEMORY) + 1)
        return float(np.std((self.loss - smooth(self.loss))[fall]))

    @property
    def usable(self) -> tuple[float, float] | None:
        """The lowest and highest learning rate to begin with, or None if noise hides them.

        At the lower one, two thirds of the fall are over for good. The higher one keeps a distance
        from the rate at which the loss no longer falls.
        """
        smoothed, lowest = smooth(self.loss), self._lowest
        start = smoothed[min(MEMORY, lowest)]
        if self.uncertain:
            return None
        enough = start - FALLEN * (start - smoothed[lowest])
        above = np.flatnonzero(smoothed[: lowest + 1] > enough)
        low, high = self.lr[int(above.max(initial=0)) + 1], self.lr[lowest] / SAFE
        return min(low, high), high

    def _steepest(self) -> float | None:
        """Return where a line through the losses of a decade falls fastest, if noise allows."""
        if self.uncertain:
            return None
        lowest = self._lowest
        x, y = np.log10(self.lr[: lowest + 1]), np.array(self.loss[: lowest + 1])
        slopes = []
        for centre in x[(x - WINDOW >= x[0]) & (x + WINDOW <= x[-1])]:
            near = np.abs(x - centre) <= WINDOW
            away = x[near] - x[near].mean()
            slopes.append(
                (away @ y[near] / (away @ away), self._noise / np.sqrt(away @ away), centre)
            )
        slope, error, centre = min(slopes, default=(0.0, 1.0, 0.0))
        average = np.polyfit(x, y, 1)[0]  # a straight line is equally steep everywhere
        return float(10**centre) if slope < average - SURE * error else None

    def describe(self, factor: float | None = None) -> str:
        """Return the suggestions in words, and which option to set.

        Args:
            factor: Number by which the run multiplies the optimiser's learning rate, if it does.
        """
        lines = [self._range()]
        lines.append(f"  {self.min_over_10:.1e}  a tenth of where the smoothed loss is lowest")
        if self.steepest is not None:
            lines.append(f"  {self.steepest:.1e}  where it falls fastest, by the slope of a decade")
        elif not self.uncertain:
            lines.append("  Where it falls fastest can't be told from the noise.")
        if self.open_ended:
            lines.append("The loss still fell at the end: raise --lr_max to see further.")
        if factor is not None:
            low, high = self.usable or (self.min_over_10, self.min_over_10)
            rates = span(low / factor, high / factor)
            lines.append(
                f"The run multiplies the optimiser's lr by {factor:g} (reference_batch_size): to "
                f"train at these rates, set --model.optimizer.lr to a value {rates}."
            )
        return "\n".join(lines)

    def _range(self) -> str:
        if self.usable is None:
            return (
                "The loss fell by less than it varies from step to step, so that this is little "
                "more than noise,\nand no range can be given: raise --num_steps or "
                "--data.batch_size."
            )
        return (
            f"Begin with a learning rate {span(*self.usable)}: there the loss clearly falls.\n"
            "The best one may be several times lower or higher: only runs of full length can tell."
        )

    @property
    def open_ended(self) -> bool:
        """Whether the smoothed loss was lowest at the last step."""
        return self._lowest == len(self.loss) - 1

    @property
    def uncertain(self) -> bool:
        """Whether the smoothed loss fell by less than twice the noise of the steps."""
        smoothed, lowest = smooth(self.loss), self._lowest
        return bool(smoothed[min(MEMORY, lowest)] - smoothed[lowest] < CLEAR * self._noise)
