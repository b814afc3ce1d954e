"""The loggers of a run, which a resumed run goes on with."""

import csv
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from ..runs.files import check_regular, read_text, write_rows


def is_rank_zero() -> bool:
    """Whether this is a run's first process, by the environment and so before it has a group."""
    return getattr(rank_zero_only, "rank", 0) == 0


def tensorboards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def is_logged(trainer: L.Trainer) -> bool:
    """Whether the optimiser step under way is one that the run logs."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return bool(every) and (trainer.global_step + 1) % every == 0


class _ContinuingWriter(ExperimentWriter):
    def __init__(self, log_dir: str, first_step: int) -> None:
        self.first_step = first_step
        super().__init__(log_dir)

    def _check_log_dir_exists(self) -> None:
        """Where Lightning deletes the file of before, drop what the resumed run writes again."""
        check_regular(self.metrics_file_path)
        if Path(self.metrics_file_path).is_file():
            self._rewrite_with_new_header([], self.first_step)

    def _rewrite_with_new_header(self, fieldnames: list[str], end: float = math.inf) -> None:
        """Keep the rows of the steps before `end`; a kill leaves the old file or the new one."""
        path = Path(self.metrics_file_path)
        lines = read_text(path).splitlines(keepends=True)
        rows = csv.DictReader(line for line in lines if line.endswith("\n"))  # not cut by a kill
        self.metrics_keys = fieldnames or list(rows.fieldnames or [])
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
            self.metrics = []  # the run ends, and closing its loggers is no reason to try again
            with suppress(OSError):  # the folder may be gone
                os.truncate(path, size or 0)
            raise OSError(error.errno, error.strerror, str(path)) from error


class ContinuingCSVLogger(CSVLogger):
    """CSVLogger whose `metrics.csv` has each row once, also after a resume at `first_step`."""

    def __init__(self, save_dir: str, name: str, version: str, first_step: int) -> None:
        super().__init__(save_dir, name, version)
        self.first_step = first_step

    @property
    def experiment(self) -> ExperimentWriter:
        if self._experiment is None and is_rank_zero():
            self._experiment = _ContinuingWriter(self.log_dir, self.first_step)
        return super().experiment

    def finalize(self, status: str) -> None:
        with _keeping(status):
            super().finalize(status)


class RunTensorBoardLogger(TensorBoardLogger):
    """TensorBoardLogger whose errors name the file, in the thread that logs."""

    @property
    def experiment(self) -> Any:
        if self._experiment is None:
            from .events import write_in_this_thread  # 1 s to import

            write_in_this_thread()
        return super().experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        try:
            super().log_metrics(metrics, step)
        except ValueError as error:  # which Lightning makes of any error
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise

    def save(self) -> None:
        try:
            super().save()
        except OSError as error:  # of hparams.yaml it has no name
            name = error.filename or Path(self.log_dir, self.NAME_HPARAMS_FILE)
            raise OSError(error.errno, error.strerror, str(name)) from error

    def finalize(self, status: str) -> None:
        with _keeping(status):
            super().finalize(status)


@contextmanager
def _keeping(status: str) -> Iterator[None]:
    """Keep the error that has ended a run from being replaced by a later one of the same disk."""
    try:
        yield
    except OSError:
        if status == "success":
            raise


def run_loggers(run: Path, first_step: int) -> list[Logger]:
    """TensorBoard and `metrics.csv` in a run folder, from an optimiser step on."""
    place = (str(run.parent.parent), run.parent.name, run.name)
    return [
        RunTensorBoardLogger(*place, purge_step=first_step or None),
        ContinuingCSVLogger(*place, first_step=first_step),
    ]
