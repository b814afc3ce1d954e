"""Pictures of a run: its curves while it goes on, and what its model says of the validation set."""

import importlib
import io
import math
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch import Tensor

from project.callbacks.prediction_figures import (
    Predictions,
    draw_confusion,
    draw_grid,
    draw_hardest,
)
from project.engine.harmless import Harmless
from project.engine.image_datamodule import ImageDataModule
from project.engine.loggers import tensorboards
from project.engine.restore_best import find_restored
from project.engine.run_record import find_record
from project.engine.saving import BestCheckpoint
from project.engine.targets import are_classes, kind
from project.reports.curves import CURVES, draw_curves, save_figure

FIRST_AFTER_S = 10.0  # a short run needs no curves before its end
COST_FACTOR = 100  # times the cost of a drawing pass before the next one


class PredictionGrid(Harmless, Callback):
    """Draws `predictions.png`, `confusion.png` and `hardest.png` of the validation examples.

    They are in the run folder and in TensorBoard, as `val/predictions`, `val/confusion` and
    `val/hardest`. The examples are evaluated in a pass of its own, which leaves the run as it was.
    Nothing is drawn without the validation examples of an `ImageDataModule`. Targets other than one
    class for each image, outputs other than logits and any error cost a warning, and the pictures.

    Args:
        every_n_epochs: Epochs between the drawings; 0 draws at the end alone. At the end they are
            of the best epoch, if RestoreBest restores it.
    """

    def __init__(self, every_n_epochs: int = 0) -> None:
        if every_n_epochs < 0:
            raise ValueError(f"every_n_epochs {every_n_epochs} must not be negative")
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._draw(trainer, pl_module, f"after {trainer.current_epoch + 1} epochs")

    # Not at `on_fit_end`, when Lightning has moved the model off its device.
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        end = find_restored(trainer)
        self._draw(trainer, pl_module, end.weights if end else "last weights")

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule, title: str) -> None:
        if not trainer.strategy.reduce_boolean_decision(not self.given_up):
            return  # on all ranks, since they evaluate together
        run = run_folder(trainer)  # for which all of them may have to ask rank 0
        with self.harmless("pictures of predictions"):
            said = predict_validation(trainer, pl_module)
            if said is not None and trainer.is_global_zero:
                self._save(trainer, run, said, title)

    def _save(self, trainer: L.Trainer, run: Path, said: Predictions, title: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        figures = {
            "predictions": draw_grid(said, data, title),
            "confusion": draw_confusion(said, data.class_names, title),
            "hardest": draw_hardest(said, data, title),
        }
        for name, figure in figures.items():
            png = save_figure(figure, run / f"{name}.png")
            pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
            step = trainer.global_step - 1  # of the epoch's metrics
            for logger in tensorboards(trainer):
                logger.experiment.add_image(f"val/{name}", pixels, step, dataformats="HWC")


class CurvesMonitor(Harmless, Callback):
    """Draws `curves.png` in the run folder while the run goes on, from its `metrics.csv`.

    After the first drawing, it takes no more than 1 % of the run's time. In a notebook the newest
    curves are shown below the cell as well.
    """

    def __init__(self) -> None:
        self._due = math.inf
        self._run = Path()
        self._shown: Any = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._run = run_folder(trainer)
        self._due = time.monotonic() + FIRST_AFTER_S

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if time.monotonic() >= self._due:
            self._draw(trainer, pl_module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, pl_module)

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero or self.given_up:
            return
        start = time.monotonic()
        with self.harmless("curves.png"):
            for logger in trainer.loggers:
                if isinstance(logger, CSVLogger):
                    logger.save()
            if (self._run / "metrics.csv").is_file():
                figure = draw_curves(self._run, monitored(trainer))
                self._show(save_figure(figure, self._run / CURVES))
        now = time.monotonic()
        self._due = now + COST_FACTOR * (now - start)

    def _show(self, png: bytes) -> None:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if getattr(shell, "kernel", None) is None:  # no notebook
            return
        ipython = importlib.import_module("IPython.display")
        image = ipython.Image(png)
        if self._shown is None:
            self._shown = ipython.display(image, display_id=True)
        else:
            self._shown.update(image)


def run_folder(trainer: L.Trainer) -> Path:
    """The folder of the run record, or where Lightning's first logger writes."""
    record = find_record(trainer)
    return record.run if record else Path(trainer.log_dir or trainer.default_root_dir)


def monitored(trainer: L.Trainer) -> str:
    """The metric of the best checkpoint, or val/loss."""
    names = (c.monitor for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint))
    return next(filter(None, names), "val/loss")


def predict_validation(trainer: L.Trainer, model: L.LightningModule) -> Predictions | None:
    """Evaluate a model, which stays as it is, on the run's validation batches; all ranks call this
    at the same time, each for its share.

    Raises:
        ValueError: If targets or outputs are not those of a classification.
        RuntimeError: If another rank has failed, on all the others.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    num_batches = int(sum(trainer.num_val_batches))
    if not isinstance(data, ImageDataModule) or "val" not in data.sets or num_batches == 0:
        return None
    said, failure = torch.zeros(0), None
    try:
        said = _share(trainer, model, data, num_batches)
    except Exception as error:  # of the user's model, perhaps on this rank alone
        failure = error
    if not trainer.strategy.reduce_boolean_decision(failure is None):
        raise failure or RuntimeError("another process of the run has failed")
    classes, probabilities, losses = trainer.strategy.reduce(said, reduce_op="sum").cpu().unbind(1)
    labels = data.sets["val"][1][data.sets["val"][2]][: len(said)]
    return Predictions(labels, classes.long(), probabilities, losses)


@torch.no_grad()
def _share(
    trainer: L.Trainer, model: L.LightningModule, data: ImageDataModule, num_batches: int
) -> Tensor:
    """Class, probability and loss of each example, float32 (N, 3); zeros for those of others."""
    loader: Any = data.val_dataloader()  # another one than the trainer's, which has a position
    _, labels, indices = data.sets["val"]
    if not are_classes(labels):
        raise ValueError(f"they show one class for each image, and the targets are {kind(labels)}")
    size = min(len(indices), num_batches * loader.batch_size)
    said = torch.zeros(size, 3, dtype=torch.float32, device=model.device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for k, batch in enumerate(islice(loader, num_batches)):
            batch = trainer.precision_plugin.convert_input(batch)
            images, targets = trainer.strategy.batch_to_device(batch)
            with trainer.precision_plugin.forward_context():
                logits = model(images)
            if not isinstance(logits, Tensor) or logits.ndim != 2:
                raise ValueError(
                    f"they need logits (N, classes), and the model gives {kind(logits)}"
                )
            logits = logits.float()
            probabilities, classes = logits.softmax(1).max(1)
            losses = F.cross_entropy(logits, targets, reduction="none")
            own = slice(trainer.global_rank, None, trainer.world_size)
            share = said[k * loader.batch_size :][: loader.batch_size]
            share[own] = torch.stack((classes, probabilities, losses), 1)
    finally:
        for module, mode in modes:
            module.training = mode
    return said
