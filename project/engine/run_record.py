"""Writes down what came out of a run."""

import platform
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from ..runs.direction import MODES, Mode
from ..runs.files import write_whole
from ..runs.folder import (
    BEST,
    CONFIG,
    ENDED,
    LAST,
    PREDICTIONS,
    RECORD,
    TEST_SET,
    config_sha256,
    git_state,
    package_versions,
    read_record,
    write_record,
)
from ..runs.names import PROGRAM
from .checkpoint_io import load_checkpoint
from .datamodule import StreamDataModule
from .endings import ended_by
from .signals import Interrupted, Stopped


class RunRecord(Callback):
    """Keeps `run.json` in the run folder: what ran where, how it ended and the best metrics.

    It is written by rank 0 when training starts and again when it ends, however it ends. Each
    checkpoint gets the config and the metrics of its moment.
    """

    def __init__(
        self,
        run: Path,
        config: dict[str, Any],
        command: list[str],
        modes: dict[str, Mode] | None = None,
    ) -> None:
        self.run, self.config = run, config  # in plain types
        self.modes = modes or {}  # directions of metrics
        self.command = command  # the arguments of the command line
        self.record: dict[str, Any] = {}
        self.start = 0.0  # earlier by the seconds before the run was resumed

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.run = Path(trainer.strategy.broadcast(str(self.run)))  # which rank 0 has claimed

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self._begin(trainer)

    def _begin(self, trainer: L.Trainer) -> None:
        before = read_record(self.run) if (self.run / RECORD).is_file() else {}  # of a resumed run
        seconds = before.get("seconds") or 0.0
        command = shlex.join([*PROGRAM.split(), *self.command])
        self.start = time.monotonic() - seconds
        data = trainer.datamodule  # type: ignore[attr-defined]
        streams = isinstance(data, StreamDataModule)
        sets = data.sets if streams else {}
        self.record = {
            "name": self.config["name"],
            "version": self.run.name,
            "seed": self.config["seed_everything"],
            "command": before.get("command", command),  # of the first start
            **git_state(Path(__file__).parent),
            "config_sha256": config_sha256(self.config),
            "data_sha256": data.sha256 if streams else None,
            "classes": getattr(data, "class_names", None),
            "examples": {name: len(sets[name][2]) for name in ("train", "val") if name in sets},
            "versions": package_versions(),
            "device": _device_name(trainer.strategy.root_device),
            "precision": str(trainer.precision),
            "world_size": trainer.world_size,
            "seconds": seconds,
            **dict.fromkeys(("epochs", "best_epoch", "stopped_by")),
            "metrics": {},
            MODES: self.modes,
            "tested": before.get("tested", 0),
        }
        if "test" in sets:  # cut off the others
            self.record[TEST_SET] = data.hash_of("test")
        self.record |= {TEST_SET: before[TEST_SET]} if TEST_SET in before else {}
        if before:
            self.record["resumes"] = [*before.get("resumes", []), command]
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / PREDICTIONS).unlink(missing_ok=True)  # of the weights before this start
        resumes = len(list(self.run.glob("config*.yaml")))
        name = f"config.resume_{resumes}.yaml" if resumes else CONFIG  # of the first start
        config = {key: value for key, value in self.config.items() if key != "ckpt_path"}
        write_whole(self.run / name, yaml.safe_dump(config, sort_keys=False))
        write_record(self.run, self.record)

    def on_save_checkpoint(self, trainer: L.Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["config"] = self.config
        metrics = trainer.callback_metrics.items()
        checkpoint["metrics"] = {k: v.item() for k, v in metrics if k.startswith("val/")}

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.record:
            self._finish(trainer, ended_by(trainer) or "no training batches", ended=True)

    def on_exception(self, trainer: L.Trainer, _: Any, exception: BaseException) -> None:
        if not self.record:  # it failed before it began
            return
        if not isinstance(exception, Stopped):
            with suppress(OSError):  # what can't be written now is often why the run ends
                self._finish(trainer, type(exception).__name__)
            return
        saved = (self.run / LAST).is_file()
        if not saved and trainer.global_step == 0:
            self._forget(trainer)
            return
        self._finish(trainer, exception.name)
        if saved and trainer.is_global_zero:
            resume = f"{PROGRAM} fit --run {shlex.quote(str(self.run))}"
            now = isinstance(exception, Interrupted)
            said = f"Saved after step {trainer.global_step}. " if now else ""
            print(f"{said}To continue: {resume}")

    def _forget(self, trainer: L.Trainer) -> None:
        """Remove what is known of a run that was stopped before its first step."""
        for name in (RECORD, CONFIG) if trainer.is_global_zero else ():
            (self.run / name).unlink(missing_ok=True)

    def _finish(self, trainer: L.Trainer, stopped_by: str, ended: bool = False) -> None:
        self.record["seconds"] = round(time.monotonic() - self.start, 3)
        self.record |= {"epochs": trainer.current_epoch, "stopped_by": stopped_by}
        if ended and stopped_by not in ENDED:  # a callback of its own that ended it, and no error
            self.record["ended"] = True
        if self.record["best_epoch"] is None and (self.run / BEST).is_file():
            self.take(load_checkpoint(self.run / BEST))
        write_record(self.run, self.record)

    def take(self, best: dict[str, Any]) -> None:
        """Record the epoch and the metrics of the best checkpoint."""
        self.record |= {"best_epoch": best["epoch"], "metrics": best["metrics"]}


def find_record(trainer: L.Trainer) -> RunRecord | None:
    """The record that a run keeps of itself, if it does."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, RunRecord)), None)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.processor() or platform.machine()}"
