"""The progress bars of a training run, and the table of the network's layers."""

import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, RichModelSummary
from lightning.pytorch.utilities.model_summary.model_summary import get_human_readable_count
from rich import get_console
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import (
    Task as ProgressTask,
)
from rich.table import Table
from rich.text import Text

from .output_internals import ArrangedBar
from .protocols import HasBatchSize
from .task import Task

REFRESH_HZ = 5  # redraws a second; Lightning's default is 100


class ImagesPerSecondColumn(ProgressColumn):
    """Training images per second over all processes."""

    max_refresh = 0.5  # seconds between two updates

    def __init__(self, trainer: L.Trainer) -> None:
        super().__init__()
        self.trainer = trainer

    def render(self, task: ProgressTask) -> Text:
        loader = self.trainer.train_dataloader
        size = loader.batch_size if isinstance(loader, HasBatchSize) else None
        if not self.trainer.training or task.speed is None or size is None:
            return Text()
        return Text(f"{task.speed * size:,.0f} images/s", style="dim")


class _Stderr:
    """Whatever `sys.stderr` is at the moment, since rich replaces it while a bar is drawn."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _log_above_the_bar() -> None:
    """Let messages in a terminal appear above the bar, where they do not break it up."""
    for name in ("", "lightning.pytorch", "lightning.fabric"):
        for handler in logging.getLogger(name).handlers:
            if not isinstance(handler, logging.StreamHandler) or not sys.stderr.isatty():
                continue
            if handler.stream is sys.__stderr__:
                handler.setStream(_Stderr())


class ProgressBar(ArrangedBar):
    """Lightning's rich progress bar, with images per second and with the metrics in lines below."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=REFRESH_HZ)

    def arrange(self, trainer: L.Trainer, bar: Progress) -> None:
        _log_above_the_bar()
        bar.columns = bar.columns[:-1]  # without Lightning's column of metrics

        def renderables() -> Iterator[RenderableType]:
            yield bar.make_tasks_table(bar.tasks)
            if trainer.state.fn == "fit" and not trainer.sanity_checking:
                yield Columns(self.metric_texts(), padding=(0, 2))

        bar.get_renderables = renderables  # type: ignore[method-assign]

    def describe(self, epoch: int) -> str:
        epochs = self.trainer.max_epochs
        last = f" of {epochs}" if epochs is not None and epochs > 0 else ""
        return f"Epoch {epoch + 1}{last}"

    def configure_columns(self, trainer: L.Trainer) -> list[Any]:
        return [*super().configure_columns(trainer)[:-1], ImagesPerSecondColumn(trainer)]

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        written = pl_module.written if isinstance(pl_module, Task) else {}
        metrics = {**written, **super().get_metrics(trainer, pl_module)}
        return {name: value for name, value in metrics.items() if name != "v_num"}


class LayerTable(RichModelSummary):
    """Prints the layers that have parameters, and how many parameters each has."""

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        shown = {name: cells for name, cells in summary_data if name.strip() and name != "Mode"}
        if not total_flops:
            shown.pop("FLOPs", None)
        table = Table()
        for name in shown:
            table.add_column(name, justify="left" if name in ("Name", "Type") else "right")
        for row, number in zip(zip(*shown.values(), strict=True), shown["Params"], strict=True):
            if number.strip() != "0":
                table.add_row(*row)
        get_console().print(table)
        frozen = total_parameters - trainable_parameters
        parts = [f"{get_human_readable_count(total_parameters)} parameters"]
        parts += [f"{get_human_readable_count(frozen)} of them frozen"] if frozen else []
        parts += [f"{get_human_readable_count(total_flops)} FLOPs"] if total_flops else []
        get_console().print(", ".join([*parts, f"{model_size:.3g} MB"]))


def shows_progress(trainer: L.Trainer) -> bool:
    """Return whether a run draws progress bars in a terminal."""
    bar = trainer.progress_bar_callback is not None
    return bar and trainer.is_global_zero and Console().is_terminal


class StepBar(Callback):
    """Shows the steps and the loss of a short training that is not a run; the bar then vanishes."""

    DELAY_S = 1.0  # seconds before the bar is drawn; a shorter training draws nothing

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("steps, loss {task.fields[loss]}"))
        # A console of its own: the shared one keeps how the terminal was when it was made.
        self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(), transient=True)
        self._task = self._bar.add_task("", total=trainer.max_steps, loss="")
        self._begin = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *args: Any
    ) -> None:
        if time.monotonic() - self._begin > self.DELAY_S:
            self._bar.start()
        loss = f"{outputs['loss'].item():.3g}" if outputs else ""
        self._bar.update(self._task, completed=trainer.global_step, loss=loss)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._bar.stop()

    def on_exception(self, trainer: L.Trainer, *args: Any) -> None:
        self._bar.stop()
