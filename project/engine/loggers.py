"""The loggers of a run, which a resumed run continues, and what is shown in any logger."""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import lightning as L
import numpy as np
from lightning.pytorch.loggers import (
    CometLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
)
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from PIL import Image

from ..runs.files import check_regular, read_text, write_rows
from .internals import process_rank
from .output_internals import RowLogger, RowWriter

LoggerName = Literal["tensorboard", "csv"]


def is_rank_zero() -> bool:
    """Return whether this is a run's first process; that is known before it meets the others."""
    return process_rank() == 0


def tensorboards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """Return the TensorBoard loggers of a run."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def is_logged(trainer: L.Trainer) -> bool:
    """Return whether the current optimiser step is one that the run logs."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return bool(every) and (trainer.global_step + 1) % every == 0


class _ContinuingWriter(RowWriter):
    def __init__(self, log_dir: str, first_step: int) -> None:
        self.first_step = first_step
        super().__init__(log_dir)

    def begin(self) -> None:
        """Drop the rows that the resumed run writes again; Lightning would delete the file."""
        check_regular(self.metrics_file_path)
        if Path(self.metrics_file_path).is_file():
            self.rewrite([], self.first_step)

    def rewrite(self, names: list[str], end: float = math.inf) -> None:
        """Keep the rows of the steps before `end`; a kill leaves the old file or the new one."""
        path = Path(self.metrics_file_path)
        lines = read_text(path).splitlines(keepends=True)
        rows = csv.DictReader(line for line in lines if line.endswith("\n"))  # not cut by a kill
        self.metrics_keys = names or list(rows.fieldnames or [])
        kept: list[list[Any]] = [self.metrics_keys]
        try:
            for row in rows:
                if int(row["step"]) < end:
                    kept.append([row.get(key) for key in self.metrics_keys])
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise ValueError(f"{path} is damaged: it has rows without a step") from error
        write_rows(path, kept)

    def save(self) -> None:
        """Write the new rows, all of them or none."""
        path = Path(self.metrics_file_path)
        size = path.stat().st_size if path.is_file() else None
        try:
            super().save()
        except OSError as error:
            self.metrics = []  # the run ends, and closing its loggers must not try again
            with suppress(OSError):  # the folder may be gone
                os.truncate(path, size or 0)
            raise OSError(error.errno, error.strerror, str(path)) from error


class ContinuingCSVLogger(RowLogger):
    """CSVLogger whose `metrics.csv` has each row once, even after a resume at `first_step`."""

    def __init__(self, save_dir: str, name: str, version: str, first_step: int) -> None:
        super().__init__(save_dir, name, version)
        self.first_step = first_step

    def make_writer(self) -> ExperimentWriter:
        return _ContinuingWriter(self.log_dir, self.first_step)

    def finalize(self, status: str) -> None:
        with _keeping(status):
            super().finalize(status)


class RunTensorBoardLogger(TensorBoardLogger):
    """TensorBoardLogger whose errors name the file, in the thread that logs."""

    @property
    def experiment(self) -> Any:
        from .events import write_in_this_thread  # 1 s to import

        write_in_this_thread()
        return super().experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        try:
            super().log_metrics(metrics, step)
        except ValueError as error:  # Lightning turns any error into one
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise

    def save(self) -> None:
        try:
            super().save()
        except OSError as error:  # it does not name hparams.yaml
            name = error.filename or Path(self.log_dir, self.NAME_HPARAMS_FILE)
            raise OSError(error.errno, error.strerror, str(name)) from error

    def finalize(self, status: str) -> None:
        with _keeping(status):
            super().finalize(status)


@contextmanager
def _keeping(status: str) -> Iterator[None]:
    """Keep a later error of the same disk from replacing the one that has ended the run."""
    try:
        yield
    except OSError:
        if status == "success":
            raise


def run_loggers(
    run: Path, first_step: int, names: Iterable[LoggerName] = ("tensorboard", "csv")
) -> list[Logger]:
    """Return the named loggers of a run folder.

    Args:
        run: Path of the run folder.
        first_step: Optimiser step that the run starts from; later rows are written again.
        names: Names of the loggers.
    """
    place = (str(run.parent.parent), run.parent.name, run.name)
    made: dict[LoggerName, Logger] = {
        "tensorboard": RunTensorBoardLogger(*place, purge_step=first_step or None),
        "csv": ContinuingCSVLogger(*place, first_step=first_step),
    }
    return [logger for name, logger in made.items() if name in names]


@runtime_checkable
class LogsImages(Protocol):
    """A logger that takes a list of images under one name, such as WandbLogger."""

    def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
        """Log the images."""


def log_figure(logger: Logger, name: str, png: bytes, step: int) -> None:
    """Show a figure in a logger that takes images; any other one goes without.

    Args:
        logger: Logger of a run.
        name: Name of the figure, such as `val/predictions`.
        png: Content of a PNG file.
        step: Number of the optimiser step.
    """
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_image(name, np.asarray(image), step, dataformats="HWC")
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_image(logger.run_id, image, key=name, step=step)
    elif isinstance(logger, CometLogger):
        logger.experiment.log_image(image, name=name, step=step)
    elif isinstance(logger, LogsImages):
        logger.log_image(name, [image], step)
