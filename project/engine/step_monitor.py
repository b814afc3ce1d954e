"""The gradient norm and the speed of a run.

Rows go straight to the loggers, as those of the Task do: with the number of their step, and before
the checkpoint of that step is saved, so that a resumed run lacks none.
"""

import math
import time
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from .batch_size import batch_size_of
from .full_precision import to_float32
from .harmless import Harmless
from .internals import unscales_itself
from .loggers import is_logged


def unscaled(trainer: L.Trainer, value: Tensor) -> Tensor:
    """Return a loss, or a norm of its gradients, without the factor that fp16 gives it."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return value if scaler is None else value / scaler.scale(torch.ones_like(value))


def gradient_norm(trainer: L.Trainer, parameters: Iterable[Tensor]) -> Tensor:
    """Return the norm of all gradients together, over all devices, in float32 or better."""
    if isinstance(trainer.strategy, FSDPStrategy):  # each device has a part of each of them
        norm: Tensor = trainer.strategy.model.clip_grad_norm_(math.inf)  # type: ignore[union-attr, operator]
        return norm
    gradients = [p.grad for p in parameters if p.grad is not None]
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return get_total_norm(to_float32(values))


class StepMonitor(Harmless, Callback):
    """Logs the gradient norm (`grad_norm`) and the examples per second (`images_per_s`).

    Both are logged on the steps that the run logs. The norm is that of all gradients together,
    before they are clipped and without fp16's factor. The speed counts the examples of all
    processes since the previous logged step, without the time of validation and of saving; it is
    left out if the size of a batch can't be told. One callback does both: reading the norm has
    already waited for the device, which the speed needs, and Lightning's ThroughputMonitor would
    wait in each step.
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
        if unscales_itself(optimizer):
            norm = unscaled(trainer, norm)
        row = {"grad_norm": norm.item()}
        self._pause()
        if self._images:
            row["images_per_s"] = self._images * trainer.world_size / self._seconds
        self.on_train_start()
        self._run()
        for logger in trainer.loggers:
            logger.log_metrics(row, trainer.global_step)
