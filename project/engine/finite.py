"""The check that the numbers of a run stay finite, and that no others are saved."""

import math
import shlex
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torch.nn.utils import get_total_norm

from .loggers import is_logged
from .saving import LastCheckpoint
from .step_monitor import unscaled

MAX_PENDING = 1000  # losses that wait on the device if a run logs no step


class FiniteCheck(Callback):
    """Stops a run at the first training loss that is NaN or infinite, and saves no such weights.

    On a CPU each loss is checked before its optimiser step. Elsewhere the losses stay on the device
    until the next logged step, end of an epoch or save, because reading one makes the host wait.
    """

    def __init__(self) -> None:
        # Losses that are not checked yet, with the step, epoch and batch of each.
        self._pending: list[tuple[Tensor, tuple[int, int, int]]] = []
        self._finite: deque[float] = deque(maxlen=3)
        self._each_step = self._alone = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._each_step = trainer.strategy.root_device.type == "cpu"
        self._alone = trainer.world_size == 1
        self._pending.clear()

    def on_before_backward(self, trainer: L.Trainer, _: Any, loss: Tensor) -> None:
        loss = unscaled(trainer, loss.detach())
        # At once if neither a device nor another rank has to be waited for.
        if self._each_step and self._alone and math.isfinite(value := loss.item()):
            self._finite.append(value)
            return
        batch = trainer.fit_loop.epoch_loop.batch_idx
        self._pending.append((loss, (trainer.global_step, trainer.current_epoch, batch)))

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # The gradients are there to tell where the fault is, and no optimiser has stepped yet.
        if self._pending and (self._each_step or len(self._pending) >= MAX_PENDING):
            self._look(trainer)

    def on_before_optimizer_step(self, trainer: L.Trainer, *_: Any) -> None:
        if self._pending and is_logged(trainer):
            self._look(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        self._look(trainer)
        weights = (v for v in checkpoint["state_dict"].values() if isinstance(v, Tensor))
        if trainer.strategy.reduce_boolean_decision(not all_finite(weights), all=False):
            step = trainer.global_step
            what = f"the weights are not finite after {step} steps, though each loss so far was"
            raise self._error(trainer, what)

    def _look(self, trainer: L.Trainer) -> None:
        if not self._pending:
            return
        losses, places = zip(*self._pending, strict=True)
        self._pending.clear()
        # The mean is not finite if the loss of any rank is not, so that all stop at the same step.
        means: Any = trainer.strategy.reduce(torch.stack(losses).float().flatten())
        for loss, (step, epoch, batch) in zip(means.tolist(), places, strict=True):
            if not math.isfinite(loss):
                place = f"step {step} (epoch {epoch + 1}, batch {batch})"
                raise self._error(trainer, f"the training loss is {loss} at {place}")
            self._finite.append(loss)

    def _error(self, trainer: L.Trainer, what: str) -> ValueError:
        factor = trainer.accumulate_grad_batches  # by which Lightning has divided them
        losses = ", ".join(f"{loss * factor:.4g}" for loss in self._finite) or "none"
        rates = {f"{group['lr']:g}" for optim in trainer.optimizers for group in optim.param_groups}
        causes = [f"the learning rate is too high ({', '.join(rates)} at present)"]
        if str(trainer.precision).startswith("16"):
            causes += ["a value above 65504, the largest of fp16 (use bf16-mixed, or 32-true)"]
        causes += ["log(0), sqrt(0) or a division by 0", "images that are not finite"]
        return ValueError(
            f"{what}.\n"
            f"Last finite losses: {losses}\n"
            f"Not finite now: {_not_finite(trainer.lightning_module)}\n"
            f"Likely causes: {'; '.join(causes)}\n"
            f"Last good checkpoint: {_newest_checkpoint(trainer)}"
        )


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no value is NaN or infinite. The device is read once."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return math.isfinite(get_total_norm(floats, math.inf).item())  # the largest value


def _not_finite(model: L.LightningModule) -> str:
    """Say how many tensors have values or gradients that are not finite, and name the first."""
    values = {name: p.detach() for name, p in model.named_parameters()}
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    parts = []
    for kind, named in (("values", values | dict(model.named_buffers())), ("gradients", gradients)):
        bad = [name for name, tensor in named.items() if not all_finite([tensor])]
        first = f" ({', '.join(bad[:3])}{', …' if len(bad) > 3 else ''})" if bad else ""
        parts.append(f"the {kind} of {len(bad)} of {len(named)} tensors{first}")
    return ", ".join(parts)


def _newest_checkpoint(trainer: L.Trainer) -> str:
    found = [trainer.ckpt_path]
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, LastCheckpoint):
            found.append(callback.path)
        elif isinstance(callback, ModelCheckpoint):
            found += [callback.last_model_path, callback.best_model_path]
    files = [Path(path) for path in found if path and Path(path).is_file()]
    if not files:
        return "none"
    newest = max(files, key=lambda path: path.stat().st_mtime)
    return f"{newest}, from which --init_from {shlex.quote(str(newest))} starts a new run"
