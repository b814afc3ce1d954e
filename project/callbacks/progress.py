"""The progress bar: images per second, and the metrics that matter."""

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from rich.progress import ProgressColumn, Task
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
