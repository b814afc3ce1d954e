"""Writes down what came out of a run."""

import platform
import shlex
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from project.callbacks.checkpoints import Interrupted
from project.checkpoint import load_checkpoint
from project.data.stream import StreamDataModule
from project.direction import MODES, Mode
from project.run import (
    BEST,
    CONFIG,
    PREDICTIONS,
    RECORD,
    TEST_SET,
    config_sha256,
    git_state,
    package_versions,
    read_record,
    release_run,
    write_record,
)


class RunRecord(Callback):
    """Keeps `run.json` in the run folder: what ran where, how it ended and the best metrics.

    It is written when training starts and again when it ends, however it ends. Each checkpoint
    gets the config and the metrics of its moment. The end of training restores the best weights.
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

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        before = read_record(self.run) if (self.run / RECORD).is_file() else {}  # of a resumed run
        seconds = before.get("seconds") or 0.0
        self.start = time.monotonic() - seconds
        data = trainer.datamodule  # type: ignore[attr-defined]
        sets = getattr(data, "sets", {})
        self.record = {
            "name": self.config["name"],
            "version": self.run.name,
            "seed": self.config["seed_everything"],
            "command": shlex.join(["python", "-m", "project", *self.command]),
            **git_state(Path(__file__).parent),
            "config_sha256": config_sha256(self.config),
            "data_sha256": getattr(data, "sha256", None),
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
        if isinstance(data, StreamDataModule) and "test" in data.sets:  # cut off the others
            self.record[TEST_SET] = data.hash_of("test")
        self.record |= {TEST_SET: before[TEST_SET]} if TEST_SET in before else {}
        if trainer.is_global_zero:
            self.run.mkdir(parents=True, exist_ok=True)
            (self.run / PREDICTIONS).unlink(missing_ok=True)  # of the weights before this start
            resumes = len(list(self.run.glob("config*.yaml")))
            name = f"config.resume_{resumes}.yaml" if resumes else CONFIG  # of the first start
            config = {key: value for key, value in self.config.items() if key != "ckpt_path"}
            (self.run / name).write_text(yaml.safe_dump(config, sort_keys=False))
            write_record(self.run, self.record)

    def on_save_checkpoint(self, trainer: L.Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["config"] = self.config
        metrics = trainer.callback_metrics.items()
        checkpoint["metrics"] = {k: v.item() for k, v in metrics if k.startswith("val/")}

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if (best := self._take_best()) is not None:
            trainer.strategy.load_model_state_dict(best)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._finish(trainer, _reason(trainer))

    def on_exception(self, trainer: L.Trainer, _: Any, exception: BaseException) -> None:
        if self.record:
            name = type(exception).__name__
            self._finish(trainer, exception.name if isinstance(exception, Interrupted) else name)
            if isinstance(exception, Interrupted) and trainer.is_global_zero:
                resume = f"python -m project fit --run {shlex.quote(str(self.run))}"
                print(f"Saved after step {trainer.global_step}. To continue: {resume}")
        elif trainer.is_global_zero and not (self.run / RECORD).exists():
            # It failed before it began: leave no folder with nothing but an empty event file.
            for path in self.run.glob("events*"):
                path.unlink()
            release_run(self.run)

    def _finish(self, trainer: L.Trainer, stopped_by: str) -> None:
        self.record["seconds"] = round(time.monotonic() - self.start, 3)
        self.record |= {"epochs": trainer.current_epoch, "stopped_by": stopped_by}
        if self.record["best_epoch"] is None:
            self._take_best()
        if trainer.is_global_zero:
            write_record(self.run, self.record)

    def _take_best(self) -> dict[str, Any] | None:
        """Record the best epoch, and return its checkpoint."""
        if not (self.run / BEST).is_file():
            return None
        checkpoint = load_checkpoint(self.run / BEST)
        self.record |= {"best_epoch": checkpoint["epoch"], "metrics": checkpoint["metrics"]}
        return checkpoint


def find_record(trainer: L.Trainer) -> RunRecord | None:
    """The record that a run keeps of itself, if it does."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, RunRecord)), None)


def _reason(trainer: L.Trainer) -> str:
    stopping = trainer.early_stopping_callback
    if stopping is not None and stopping.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
        return "early_stopping"
    if trainer.max_epochs is not None and -1 < trainer.max_epochs <= trainer.current_epoch:
        return "max_epochs"
    return "max_steps" if 0 < trainer.max_steps <= trainer.global_step else "max_time"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.processor() or platform.machine()}"
