"""Callbacks for tests of several processes, which record what each one saw or cause faults."""

import hashlib
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from project.callbacks import pictures

FAULT_STEP = 20
RANK = 1  # of the process with the fault


class Trace(L.Callback):
    """Writes `trace_<world size>_<rank>.pt` to the folder of all runs.

    It holds a digest of each example that was seen, by kind of batch, the gradients of the first
    step, and the metrics of the sanity check.
    """

    def __init__(self) -> None:
        self.seen: dict[str, list[list[str]]] = defaultdict(list)
        self.gradients: dict[str, Tensor] = {}
        self.metrics: dict[str, float] = {}

    def _see(self, kind: str, images: Tensor) -> None:
        pixels = [image.contiguous().numpy().tobytes() for image in images]
        self.seen[kind].append([hashlib.sha256(pixel).hexdigest() for pixel in pixels])

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._see("train", batch[0])

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, *_: Any
    ) -> None:
        if trainer.sanity_checking:
            self._see("val", batch[0])

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, *_: Any
    ) -> None:
        self._see("test", batch[0])

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any
    ) -> None:
        if not trainer.global_step:
            self.gradients = {n: p.grad.clone() for n, p in pl_module.named_parameters()}

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        name = f"trace_{trainer.world_size}_{trainer.global_rank}.pt"
        trace = {"seen": dict(self.seen), "gradients": self.gradients, "metrics": self.metrics}
        torch.save(trace, Path(trainer.default_root_dir, name))

    on_test_end = on_fit_end


class Ending(L.Callback):
    """Writes `ending_<rank>.pt`: the predictions that are drawn at the end, and the weights."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        predict = pictures.predict_validation

        def keep(trainer: L.Trainer, model: L.LightningModule) -> Any:
            said = predict(trainer, model)
            folder = str(pictures.run_folder(trainer))
            ending = {"said": vars(said), "weights": model.state_dict(), "folder": folder}
            torch.save(ending, Path(trainer.default_root_dir, f"ending_{trainer.global_rank}.pt"))
            return said

        pictures.predict_validation = keep


class Fault(L.Callback):
    """Causes a fault in one process at a step, unless torchrun has restarted the process."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if (trainer.global_rank, trainer.global_step) == (RANK, FAULT_STEP) and not again:
            self.happen()

    def happen(self) -> None:
        raise NotImplementedError


class Kill(Fault):
    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hang(Fault):
    def happen(self) -> None:
        time.sleep(1000)


class Raise(Fault):
    def happen(self) -> None:
        raise ValueError("the disk of this machine is full")


class Crash(Fault):
    def happen(self) -> None:
        raise ZeroDivisionError("a mistake in the code of process 1")


class Slow(L.Callback):
    """Slows a run of a few steps down, so that there is time to interrupt it."""

    def on_train_batch_start(self, *_: Any) -> None:
        time.sleep(0.1)
