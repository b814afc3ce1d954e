"""What the project uses of the insides of Lightning's loggers, TensorBoard's and the progress bar.

Nothing public does the same. The versions are Lightning 2.6.6 and TensorBoard 2.21.0; the test of
the same name in `test_internals.py` fails if an inside has changed.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from rich.console import RenderableType
from rich.progress import Progress

from .internals import process_rank


class RowWriter(ExperimentWriter):
    """The writer of metrics.csv. Lightning's deletes what an earlier run has left there."""

    def begin(self) -> None:
        """Take over the folder, in place of emptying it."""
        raise NotImplementedError

    def rewrite(self, names: list[str]) -> None:
        """Write the file again, with other columns."""
        raise NotImplementedError

    def _check_log_dir_exists(self) -> None:
        self.begin()

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self.rewrite(fieldnames)


class RowLogger(CSVLogger):
    """CSVLogger with a writer of another class."""

    def make_writer(self) -> ExperimentWriter:
        """Return a writer; this is called on rank 0, when the first row is logged."""
        raise NotImplementedError

    @property
    def experiment(self) -> ExperimentWriter:
        if self._experiment is None and process_rank() == 0:
            self._experiment = self.make_writer()
        return super().experiment


def event_path(records: Any) -> Path:
    """Return the path of TensorBoard's event file from its writer of records."""
    return Path(os.fsdecode(records._writer.filename))


def replace_event_writer(kind: Callable[[Any, int, float], Any]) -> None:
    """Let TensorBoard write all event files of this process by another class."""
    from tensorboard.summary.writer import event_file_writer  # 1 s to import

    event_file_writer._AsyncWriter = kind


class ArrangedBar(RichProgressBar):
    """Lightning's rich bar, which a subclass can arrange each time that one is drawn."""

    def arrange(self, trainer: L.Trainer, bar: Progress) -> None:
        """Change a new bar."""

    def describe(self, epoch: int) -> str:
        """Return the title of the training bar, of an epoch counted from 0."""
        return super()._get_train_description(epoch)

    def metric_texts(self) -> Iterable[RenderableType]:
        """Return the metrics, one text each."""
        return self._metric_component._generate_metrics_texts() if self._metric_component else ()

    def _init_progress(self, trainer: L.Trainer) -> None:
        before = self.progress
        super()._init_progress(trainer)
        if self.progress is not None and self.progress is not before:
            self.arrange(trainer, self.progress)

    def _get_train_description(self, current_epoch: int) -> str:
        return self.describe(current_epoch)
