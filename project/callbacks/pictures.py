"""Pictures of a run: its curves while it trains, and its predictions for the validation images."""

import importlib
import math
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from project.callbacks.prediction_figures import (
    ClassPredictions,
    OtherPredictions,
    Predictions,
    draw_confusion,
    draw_grid,
    draw_hardest,
    hardest,
    short_names,
    spread,
)
from project.engine.harmless import Harmless
from project.engine.image_datamodule import ImageDataModule
from project.engine.loggers import log_figure
from project.engine.objective import Objective
from project.engine.protocols import objective_of
from project.engine.restore_best import find_restored
from project.engine.run_record import find_record
from project.engine.saving import BestCheckpoint
from project.engine.targets import kind
from project.engine.validation_pass import evaluate, evaluating, outputs_of
from project.reports.curves import CURVES, draw_curves, save_figure

FIRST_AFTER_S = 10.0  # seconds until the first drawing; a short run needs none before its end
COST_FACTOR = 100  # a drawing is followed by a pause of this many times its duration


class PredictionGrid(Harmless, Callback):
    """Draws `predictions.png`, `confusion.png` and `hardest.png` of the validation examples.

    They are written to the run folder and to each logger that accepts images, as `val/predictions`,
    `val/confusion` and `val/hardest`. The examples are evaluated in a separate pass, which does not
    change the run. Nothing is drawn without the validation examples of an `ImageDataModule`, and
    the confusion matrix is drawn only if there are classes. An error causes a warning and loses the
    pictures, but does not end the run.

    Args:
        every_n_epochs: Number of epochs between drawings; 0 draws only at the end. The drawings at
            the end are of the best epoch, if RestoreBest restores it.
    """

    def __init__(self, every_n_epochs: int = 0) -> None:
        if every_n_epochs < 0:
            raise ValueError(f"every_n_epochs {every_n_epochs} must not be negative")
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._draw(trainer, pl_module, f"after {trainer.current_epoch + 1} epochs")

    # At `on_fit_end`, Lightning would already have moved the model off its device.
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        end = find_restored(trainer)
        self._draw(trainer, pl_module, end.weights if end else "last weights")

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule, title: str) -> None:
        if not trainer.strategy.reduce_boolean_decision(not self.given_up):
            return  # all ranks return here, since they evaluate together
        run = run_folder(trainer)  # called on all ranks, since they may have to ask rank 0
        with self.harmless("pictures of predictions"):
            said = predict_validation(trainer, pl_module)
            if said is not None and trainer.is_global_zero:
                self._save(trainer, run, said, title)

    def _save(self, trainer: L.Trainer, run: Path, said: Predictions, title: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        figures = {
            "predictions": draw_grid(said, data, title),
            "hardest": draw_hardest(said, data, title),
        }
        if isinstance(said, ClassPredictions):
            figures["confusion"] = draw_confusion(said, data.class_names, title)
        for name, figure in figures.items():
            png = save_figure(figure, run / f"{name}.png")
            for logger in trainer.loggers:
                log_figure(logger, f"val/{name}", png, trainer.global_step - 1)  # like the metrics


class CurvesMonitor(Harmless, Callback):
    """Draws `curves.png` in the run folder from its `metrics.csv` while the run is training.

    After the first drawing, it takes at most 1 % of the run's time. In a notebook, the newest
    curves are also shown below the cell.
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
        if getattr(shell, "kernel", None) is None:  # not a notebook
            return
        ipython = importlib.import_module("IPython.display")
        image = ipython.Image(png)
        if self._shown is None:
            self._shown = ipython.display(image, display_id=True)
        else:
            self._shown.update(image)


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of the run record, or else the one that Lightning's first logger uses."""
    record = find_record(trainer)
    return record.run if record else Path(trainer.log_dir or trainer.default_root_dir)


def monitored(trainer: L.Trainer) -> str:
    """Return the metric that the best checkpoint is chosen by, or else val/loss."""
    names = (c.monitor for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint))
    return next(filter(None, names), "val/loss")


def predict_validation(trainer: L.Trainer, model: L.LightningModule) -> Predictions | None:
    """Evaluate a network on the run's validation images; all ranks call this together.

    Returns:
        The predictions, or None if there are no validation images.

    Raises:
        ValueError: If the network's objective is unknown.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    num_batches = int(sum(trainer.num_val_batches))
    if not isinstance(data, ImageDataModule) or "val" not in data.sets or num_batches == 0:
        return None
    _, targets, indices = data.sets["val"]
    objective = objective_of(model, targets)
    if objective is None:
        raise ValueError(
            "they show one class for each image, unless the model has an objective, and the "
            f"targets are {kind(targets)}"
        )
    seen = evaluate(trainer, model, objective, num_batches)
    losses, classes, probabilities = seen.losses, seen.classes, seen.probabilities
    if classes is not None and probabilities is not None and isinstance(targets, Tensor):
        labels = objective.labels(targets[indices[: len(losses)]])
        return ClassPredictions(labels, classes, probabilities, losses)
    shown = sorted({*spread(losses), *hardest(losses)})
    return OtherPredictions(losses, _captions(trainer, model, objective, shown))


@torch.no_grad()
def _captions(
    trainer: L.Trainer, model: L.LightningModule, objective: Objective, shown: list[int]
) -> dict[int, tuple[str, bool | None]]:
    """Return the captions of some validation images, by index, and whether they are right."""
    data: ImageDataModule = trainer.datamodule  # type: ignore[attr-defined]
    with evaluating(model):
        outputs, targets = outputs_of(trainer, model, data.pick("val", shown))
    right = objective.correct(outputs, targets)
    texts = objective.captions(outputs, targets, short_names(data.class_names))
    signs = [None] * len(shown) if right is None else right.tolist()
    return dict(zip(shown, zip(texts, signs, strict=True), strict=True))
