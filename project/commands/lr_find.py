"""`lr_find`: the LR range test of a model, its suggestions, its numbers and its figure."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from ..engine.protocols import HasBatchSize
from ..engine.task import Task
from ..runs.files import write_whole
from .lr_range import LRRange, smooth
from .trainer import Trainer

LR_FIND_TRAINER: dict[str, Any] = {
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "max_epochs": -1,
    "accumulate_grad_batches": 1,
}


def find_range(
    trainer: Trainer,
    model: L.LightningModule,
    data: L.LightningDataModule,
    folder: Path,
    **options: Any,
) -> LRRange:
    """Print both suggestions, and write them with a figure beside the runs of that name.

    Args:
        trainer: Trainer, set up.
        model: Model to train without its schedule.
        data: Data module whose training examples are used.
        folder: Folder of `lr_find.json` and `lr_find.png`.
        options: Arguments of `Trainer.lr_find`.
    """
    factor = _constant(model, data) if isinstance(model, Task) else None
    found = trainer.lr_find(model, data, **options)
    if trainer.is_global_zero:
        save(found, folder)
        print(found.describe(factor))
        print(f"Figure and numbers: {folder}/lr_find.png and .json")
    return found


def _constant(model: Task, data: L.LightningDataModule) -> float | None:
    """Take all that changes the optimiser's learning rate out of a model.

    Returns:
        Number by which a run multiplies that learning rate, if it does.
    """
    reference = model.reference_batch_size
    size = data.batch_size if isinstance(data, HasBatchSize) else None
    model.lr_scheduler, model.warmup_steps, model.reference_batch_size = None, 0, None
    return size / reference if size and reference else None


def save(found: LRRange, folder: Path) -> None:
    """Write `lr_find.json` and `lr_find.png`."""
    from matplotlib.figure import Figure

    from ..reports.curves import to_png

    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "lr_find.json", json.dumps(vars(found)) + "\n")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    smoothed = smooth(found.loss)
    axes.semilogx(found.lr, found.loss, ".", color="0.6", label="loss of a step")
    axes.semilogx(found.lr, smoothed, color="C0", label="smoothed")
    if found.usable is not None:
        axes.axvspan(*found.usable, color="C2", alpha=0.2, label="range to begin with")
    marks = (("minimum / 10", found.min_over_10, "o"), ("steepest", found.steepest, "s"))
    for name, lr, marker in marks:
        if lr is not None:
            label = f"{name}: {lr:.1e}"
            axes.plot(lr, np.interp(lr, found.lr, smoothed), marker, color="C1", label=label)
    top = smoothed[: smoothed.argmin() + 1].max()
    axes.set_ylim(0.9 * min(found.loss), 1.1 * top)  # without the losses that diverged
    axes.set(xlabel="learning rate", ylabel="training loss", title="LR range test")
    axes.legend()
    write_whole(folder / "lr_find.png", to_png(figure, dpi=150))
