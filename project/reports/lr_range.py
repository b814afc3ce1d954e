"""The LR range test (arXiv:1506.01186): which learning rates a model can be trained with."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray

from project.files import write_whole

BETA, MEMORY = 0.9, 10  # of the moving average, and the steps that it goes back
DIVERGED = 4  # times the best smoothed loss


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
    """Exponential moving average, corrected for starting from zero (arXiv:1412.6980)."""
    average, smoothed = 0.0, []
    for step, loss in enumerate(losses, start=1):
        average = BETA * average + (1 - BETA) * loss
        smoothed.append(average / (1 - BETA**step))
    return np.array(smoothed)


@dataclass
class LRRange:
    """The result of a sweep. `lr` and `loss` are its steps; the others are learning rates."""

    lr: list[float]
    loss: list[float]
    min_over_10: float
    steepest: float

    @classmethod
    def of(cls, sweep: LRSweep) -> "LRRange":
        """Both suggestions from the smoothed loss of the steps before it was not finite.

        Raises:
            ValueError: If the loss never fell.
        """
        losses = [loss for loss in sweep.losses if np.isfinite(loss)]
        lrs, smoothed = sweep.lrs[: len(losses)], smooth(losses)
        lowest = int(smoothed.argmin()) if losses else 0
        if lowest < 3:
            raise ValueError(
                f"the loss never fell, from {losses[0] if losses else 'nan'} at the first step: "
                "start lower with --lr_min, or see whether the model can learn at all"
            )
        slope = np.gradient(smoothed[: lowest + 1], np.log(lrs[: lowest + 1]))
        steepest = 1 + int(slope[1:-1].argmin())  # both ends are differences of one side
        return cls(lrs, losses, lrs[lowest] / 10, lrs[steepest])

    def __str__(self) -> str:
        low, high = sorted((self.min_over_10, self.steepest))
        lines = [
            f"Learning rates from {low:.1e} to {high:.1e} should train well:",
            f"  {self.min_over_10:.1e}  a tenth of where the smoothed loss is lowest",
            f"  {self.steepest:.1e}  where it falls fastest, per decade of the learning rate",
        ]
        if self.open_ended:
            lines.append("The loss still fell at the end: raise --lr_max to see further.")
        if self.uncertain:
            lines.append(
                "The loss fell by less than it varies from step to step, so that this is little "
                "more than noise: raise --num_steps or --data.batch_size."
            )
        return "\n".join(lines)

    @property
    def open_ended(self) -> bool:
        """Whether the smoothed loss was lowest at the last step."""
        return bool(smooth(self.loss).argmin() == len(self.loss) - 1)

    @property
    def uncertain(self) -> bool:
        """Whether the smoothed loss fell by less than two standard deviations of the steps."""
        smoothed = smooth(self.loss)
        fall = slice(max(int(smoothed.argmin()), MEMORY) + 1)
        return bool(smoothed[0] - smoothed.min() < 2 * np.std((self.loss - smoothed)[fall]))

    def save(self, folder: Path) -> None:
        """Write `lr_find.json` and `lr_find.png`."""
        from matplotlib.figure import Figure

        from project.reports.curves import to_png

        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "lr_find.json", json.dumps(vars(self)) + "\n")
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        smoothed = smooth(self.loss)
        axes.semilogx(self.lr, self.loss, ".", color="0.6", label="loss of a step")
        axes.semilogx(self.lr, smoothed, color="C0", label="smoothed")
        usable = sorted((self.min_over_10, self.steepest))
        axes.axvspan(*usable, color="C2", alpha=0.2, label="usable range")
        marks = (("minimum / 10", self.min_over_10, "o"), ("steepest", self.steepest, "s"))
        for name, lr, marker in marks:
            label = f"{name}: {lr:.1e}"
            axes.plot(lr, np.interp(lr, self.lr, smoothed), marker, color="C1", label=label)
        top = smoothed[: smoothed.argmin() + 1].max()
        axes.set_ylim(0.9 * min(self.loss), 1.1 * top)  # without what diverged
        axes.set(xlabel="learning rate", ylabel="training loss", title="LR range test")
        axes.legend()
        write_whole(folder / "lr_find.png", to_png(figure, dpi=150))
