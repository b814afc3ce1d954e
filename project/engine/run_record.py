"""Writes down what ran, how it ended and what it measured."""

import platform
import shlex
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from ..runs.direction import Mode
from ..runs.files import write_whole
from ..runs.folder import BEST, CONFIG, LAST, PREDICTIONS, RECORD
from ..runs.names import PROGRAM
from ..runs.provenance import git_state, package_versions
from ..runs.record import ENDED, Record, read_record, write_record
from ..runs.settings import config_sha256
from .checkpoint_io import load_checkpoint
from .datamodule import StreamDataModule
from .endings import ended_by
from .protocols import class_names_of
from .signals import Interrupted, Stopped


class RunRecord(Callback):
    """Keeps `run.json` in the run folder: what ran where, how it ended and the best metrics.

    Rank 0 writes it when training starts and again when it ends, however it ends. Each checkpoint
    gets the config and the metrics of its moment.

    Args:
        run: Path of the run folder.
        config: Configuration, in plain types.
        command: Arguments of the command line.
        modes: Better direction of metrics, by name.
    """

    def __init__(
        self,
        run: Path,
        config: dict[str, Any],
        command: list[str],
        modes: dict[str, Mode] | None = None,
    ) -> None:
        self.run, self.config = run, config
        self.command = shlex.join([*PROGRAM.split(), *command])
        self.modes = modes or {}
        self.record: Record | None = None  # on rank 0, from the start of training on
        self.start = 0.0  # by the monotonic clock; earlier by what a resumed run has taken

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.run = Path(trainer.strategy.broadcast(str(self.run)))  # which rank 0 has claimed

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        previous = read_record(self.run) if (self.run / RECORD).is_file() else None
        self.start = time.monotonic() - (previous.seconds if previous else 0.0)
        self.record = self._begin(trainer)
        if previous:
            self.record = replace(
                self.record,
                command=previous.command or self.command,
                seconds=previous.seconds,
                tested=previous.tested,
                test_sha256=previous.test_sha256 or self.record.test_sha256,
                resumes=[*previous.resumes, self.command],
            )
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / PREDICTIONS).unlink(missing_ok=True)  # of the weights before this start
        self._write_config()
        write_record(self.record)

    def _begin(self, trainer: L.Trainer) -> Record:
        """Return the record of a run that starts now."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        streams = isinstance(data, StreamDataModule)
        sets = data.sets if streams else {}
        return Record(
            run=self.run,
            name=self.config["name"],
            version=self.run.name,
            seed=self.config["seed_everything"],
            command=self.command,
            **git_state(Path(__file__).parent),
            config_sha256=config_sha256(self.config),
            data_sha256=data.sha256 if streams else None,
            classes=class_names_of(data) or [],
            examples={name: len(sets[name][2]) for name in ("train", "val") if name in sets},
            versions=package_versions(),
            device=_device_name(trainer.strategy.root_device),
            precision=str(trainer.precision),
            world_size=trainer.world_size,
            seconds=0.0,
            epochs=None,
            best_epoch=None,
            stopped_by=None,
            metrics={},
            modes=dict(self.modes),
            # A test set that was cut off the other examples is there from the start.
            test_sha256=data.hash_of("test") if "test" in sets else None,
        )

    def _write_config(self) -> None:
        resumes = len(list(self.run.glob("config*.yaml")))
        name = f"config.resume_{resumes}.yaml" if resumes else CONFIG
        config = {key: value for key, value in self.config.items() if key != "ckpt_path"}
        write_whole(self.run / name, yaml.safe_dump(config, sort_keys=False))

    def on_save_checkpoint(self, trainer: L.Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["config"] = self.config
        metrics = trainer.callback_metrics.items()
        checkpoint["metrics"] = {k: v.item() for k, v in metrics if k.startswith("val/")}

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.record:
            self._end(self.record, trainer, ended_by(trainer) or "no training batches", ended=True)

    def on_exception(self, trainer: L.Trainer, _: Any, exception: BaseException) -> None:
        if not self.record:  # it failed before it began, or this is another rank
            return
        if not isinstance(exception, Stopped):
            with suppress(OSError):  # what can't be written now is often why the run ends
                self._end(self.record, trainer, type(exception).__name__)
            return
        saved = (self.run / LAST).is_file()
        if not saved and trainer.global_step == 0:
            for name in (RECORD, CONFIG):  # nothing has been trained: there is no run
                (self.run / name).unlink(missing_ok=True)
            return
        self._end(self.record, trainer, exception.name)
        if saved:
            resume = f"{PROGRAM} fit --run {shlex.quote(str(self.run))}"
            now = isinstance(exception, Interrupted)
            said = f"Saved after step {trainer.global_step}. " if now else ""
            print(f"{said}To continue: {resume}")

    def _end(
        self, record: Record, trainer: L.Trainer, stopped_by: str, ended: bool = False
    ) -> None:
        best = load_checkpoint(self.run / BEST) if (self.run / BEST).is_file() else None
        self.record = replace(
            record,
            seconds=round(time.monotonic() - self.start, 3),
            epochs=trainer.current_epoch,
            stopped_by=stopped_by,
            best_epoch=best["epoch"] if best else None,
            metrics=best["metrics"] if best else {},
            ended=ended and stopped_by not in ENDED,  # ended by a callback, and by no error
        )
        write_record(self.record)


def find_record(trainer: L.Trainer) -> RunRecord | None:
    """Return the callback that keeps the record of a run, if there is one."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, RunRecord)), None)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.processor() or platform.machine()}"
