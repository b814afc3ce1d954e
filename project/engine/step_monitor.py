"""What a run shows of itself: its gradient norm, its speed, its weights, its settings.

Rows go straight to the loggers, as those of the Task do: with the number of their step, and
before the checkpoint of the moment, so that a resumed run lacks none.
"""

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from ..runs.settings import flatten
from .batch_size import batch_size_of
from .full_precision import to_float32
from .harmless import Harmless
from .loggers import is_logged, tensorboards
from .run_record import find_record
from .saving import BestCheckpoint


def unscaled(trainer: L.Trainer, value: Tensor) -> Tensor:
    """A loss, or a norm of its gradients, without the factor that fp16 training gives it."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return value if scaler is None else value / scaler.scale(torch.ones_like(value))


def gradient_norm(trainer: L.Trainer, parameters: Iterable[Tensor]) -> Tensor:
    """Norm of all gradients together, in float32 or better, of all devices that share them."""
    if isinstance(trainer.strategy, FSDPStrategy):  # each device has a part of each of them
        norm: Tensor = trainer.strategy.model.clip_grad_norm_(math.inf)  # type: ignore[union-attr, operator]
        return norm
    gradients = [p.grad for p in parameters if p.grad is not None]
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return get_total_norm(to_float32(values))


class StepMonitor(Harmless, Callback):
    """Writes `grad_norm` and `images_per_s` on the logged steps.

    The norm is that of all gradients together, before they are clipped and without fp16's factor.
    The images, or other examples, are those of all processes, by the time since the previous logged
    step without that of validation and of saving; there is no such row for batches whose size can't
    be told. Lightning's ThroughputMonitor waits for the device in each step; here
    reading the norm has just done so. It is one callback for both since an empty hook costs too.
    """

    def __init__(self) -> None:
        self._images, self._seconds = 0, 0.0
        self._since: float | None = None  # while the clock runs

    def on_train_start(self, *_: Any) -> None:
        self._images, self._seconds, self._since = 0, 0.0, None

    def _run(self, *_: Any, **__: Any) -> None:
        self._since = self._since or time.perf_counter()

    def _pause(self, *_: Any, **__: Any) -> None:
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    on_train_epoch_start = _run
    on_validation_start = on_train_epoch_end = on_save_checkpoint = _pause

    def on_train_batch_start(self, trainer: L.Trainer, _: Any, batch: Any, *__: Any) -> None:
        if self._since is None:
            self._run()
        self._images += batch_size_of(batch) or 0

    def on_before_optimizer_step(self, trainer: L.Trainer, _: Any, optimizer: Optimizer) -> None:
        if not self.given_up and is_logged(trainer):
            with self.harmless("grad_norm and images_per_s"):
                self._write(trainer, optimizer)

    def _write(self, trainer: L.Trainer, optimizer: Optimizer) -> None:
        norm = gradient_norm(trainer, (p for g in optimizer.param_groups for p in g["params"]))
        if getattr(optimizer, "_step_supports_amp_scaling", False):  # fused: it unscales by itself
            norm = unscaled(trainer, norm)
        row = {"grad_norm": norm.item()}
        self._pause()
        if self._images:
            row["images_per_s"] = self._images * trainer.world_size / self._seconds
        self.on_train_start()
        self._run()
        for logger in trainer.loggers:
            logger.log_metrics(row, trainer.global_step)


class TensorBoardRecord(Harmless, Callback):
    """Shows the configuration in TensorBoard, and beside the best metrics of the run at its end."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config  # in plain types

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        text = f"```yaml\n{yaml.safe_dump(self.config, sort_keys=False)}```"
        for logger in tensorboards(trainer) if trainer.is_global_zero else []:
            writer = logger.experiment
            if len(list(Path(logger.log_dir).glob("events.*"))) == 1:  # else resumed: it is there
                with self.harmless("the settings in TensorBoard"):
                    writer.add_text("config", text, trainer.global_step)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        saves = [c for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint)]
        if not trainer.is_global_zero or not saves or not Path(saves[0].best_model_path).is_file():
            return
        record = find_record(trainer)
        known: Any = {saves[0].monitor: saves[0].best_model_score}
        known = record.record.metrics if record and record.record else known
        metrics = {f"best/{name}": float(value) for name, value in known.items()}
        given = {name: value for name, value in flatten(self.config) if value is not None}
        # Those that are true or false as words: they would be shown as 1 and 0.
        settings = {k: str(v) if isinstance(v, bool) else v for k, v in given.items()}
        for logger in tensorboards(trainer):
            # At the step after the last, from which on a resumed run replaces what there is.
            with self.harmless("the settings and best metrics in TensorBoard"):
                logger.log_hyperparams(settings, metrics, trainer.global_step)
