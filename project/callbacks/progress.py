"""The progress bar: images per second, and the metrics that matter."""

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

REFRESH_HZ = 5  # Lightning's default is 100


class ImagesPerSecondColumn(ProgressColumn):
    """Training images per second over all processes."""

    max_refresh = 0.5  # seconds

    def __init__(self, trainer: L.Trainer) -> None:
        super().__init__()
        self.trainer = trainer

    def render(self, task: Task) -> Text:
        batch_size = getattr(self.trainer.train_dataloader, "batch_size", None)
        if not self.trainer.training or task.speed is None or batch_size is None:
            return Text()
        return Text(f"{task.speed * batch_size:,.0f} images/s", style="dim")


class ProgressBar(RichProgressBar):
    """Lightning's rich progress bar, with images per second and the metrics below each other."""

    def __init__(self) -> None:
        theme = RichProgressBarTheme(metrics_text_delimiter="\n")
        super().__init__(refresh_rate=REFRESH_HZ, theme=theme)
        self._drawn = 0.0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any
    ) -> None:
        # Lightning collects the metrics at each step, drawn or not: a twentieth of an MLP's step.
        now = time.monotonic()
        if now - self._drawn > 1 / REFRESH_HZ or trainer.is_last_batch:
            self._drawn = now
            super().on_train_batch_end(trainer, pl_module, *args)

    def configure_columns(self, trainer: L.Trainer) -> list[Any]:
        return [*super().configure_columns(trainer)[:-1], ImagesPerSecondColumn(trainer)]

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = {**getattr(pl_module, "written", {}), **super().get_metrics(trainer, pl_module)}
        return {name: value for name, value in metrics.items() if name != "v_num"}


def shows_progress(trainer: L.Trainer) -> bool:
    """Whether a run draws progress bars, and somebody sees them."""
    bar = trainer.progress_bar_callback is not None
    return bar and trainer.is_global_zero and Console().is_terminal


class StepBar(Callback):
    """Steps and loss of a training that is no run. The bar is gone when that ends."""

    DELAY_S = 1.0  # nothing is drawn for what ends sooner

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("steps, loss {task.fields[loss]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), transient=True)
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
