"""What Lightning does not save of a run in progress: frozen layers, and the newest metrics."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from .internals import (
    BatchNorm,
    step_all_schedules,
    step_plateau_schedules,
    training_modes,
)
from .pieces import pieces
from .storable import storable

KEY = "live"  # in the checkpoint


class LiveState(Callback):
    """Saves which parameters and layers are frozen, and the newest value of each metric.

    Hooks that froze something at the start of the run or of the epoch are not called again if it is
    resumed within that epoch, nor are metrics computed again. The state is restored together with
    the random state, in the first hook that an uninterrupted run would call next.
    """

    def __init__(self) -> None:
        self._pending: dict[str, Any] | None = None

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        modes = {name: module.training for name, module in pl_module.named_modules()}
        if trainer.validating:  # the modes of the training that follows
            modes |= training_modes(trainer)
        norms = {n: m for n, m in pl_module.named_modules() if isinstance(m, BatchNorm)}
        checkpoint[KEY] = {
            "frozen": [n for n, p in pl_module.named_parameters() if not p.requires_grad],
            "evaluating": [name for name, training in modes.items() if not training],
            "untracked": [name for name, norm in norms.items() if not norm.track_running_stats],
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "metrics": {k: v.detach().cpu() for k, v in trainer.callback_metrics.items()},
            "pieces": pieces(storable(checkpoint, "checkpoint")),
        }

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._pending = checkpoint.get(KEY)

    def _restore(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if self._pending is None:
            return
        state, self._pending = self._pending, None
        for name, parameter in pl_module.named_parameters():
            parameter.requires_grad_(name not in state["frozen"])
        modes = {n: n not in state["evaluating"] for n, _ in pl_module.named_modules()}
        if trainer.validating:  # Lightning has switched to evaluation, and will switch back
            training_modes(trainer).update(modes)
        for name, module in pl_module.named_modules():
            if not trainer.validating:
                module.training = modes[name]
            if isinstance(module, BatchNorm):
                module.track_running_stats = name not in state["untracked"]
        trainer.accumulate_grad_batches = state["accumulate_grad_batches"]
        device = trainer.strategy.root_device
        known = {name: torch.as_tensor(v).to(device) for name, v in state["metrics"].items()}
        trainer.callback_metrics.update(known)

    on_train_batch_start = _restore  # type: ignore[assignment]

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        resumed = self._pending is not None
        self._restore(trainer, pl_module)
        if resumed and _has_plateau_metrics(trainer):
            step_plateau_schedules(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._restore(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if _has_plateau_metrics(trainer):
            step_all_schedules(trainer)


def _has_plateau_metrics(trainer: L.Trainer) -> bool:
    followed = {c.monitor for c in trainer.lr_scheduler_configs if c.reduce_on_plateau}
    return followed <= trainer.callback_metrics.keys()
