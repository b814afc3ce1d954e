"""A run that is interrupted, anywhere and any number of times, ends as if it never was."""

import csv
import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from project.commands.cli import main
from project.engine.saving import Interrupted
from project.models import Task

COMMON = ["--data.train_size", "104", "--data.val_size", "24", "--data.test_size", "0"]
COMMON += ["--data.image_size", "8", "--data.batch_size", "8", "--data.augment", '{"crop": 2}']
COMMON += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
COMMON += ["--trainer.enable_model_summary", "false", "--trainer.max_epochs", "3"]
COMMON += ["--preflight", "false"]  # a rehearsal has steps too
COMMON += ["--trainer.log_every_n_steps", "5", "--early_stopping.patience", "2"]
MLP = ["fit", "--config", "synthetic", "--model", "MLP", *COMMON]  # 13 steps an epoch, dropout
RESNET = ["fit", "--config", "synthetic", "--model.width", "4", *COMMON]


class Killer:
    """Sends this process a signal at given moments: ("train" or "val", index over the run)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moments: list[tuple[str, int]] = []
        self.counts = {"train": 0, "val": 0}
        self.signum = signal.SIGTERM
        killer = self

        def on_train_batch_start(self: Task, *_: Any) -> None:
            killer.tick("train")

        def validation_step(self: Task, *args: Any) -> None:
            if not self.trainer.sanity_checking:
                killer.tick("val")
            step(self, *args)

        step = Task.validation_step
        monkeypatch.setattr(Task, "on_train_batch_start", on_train_batch_start)
        monkeypatch.setattr(Task, "validation_step", validation_step)

    def tick(self, kind: str) -> None:
        if (kind, self.counts[kind]) in self.moments:
            self.moments.remove((kind, self.counts[kind]))
            os.kill(os.getpid(), self.signum)
        self.counts[kind] += 1


def same(a: Any, b: Any, where: str = "") -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    else:
        assert a == b or (a != a and b != b), f"{where}: {a} {b}"


def curves(run: Path) -> list[list[str]]:
    """Return the cells of `metrics.csv` except the speeds, which differ between any two runs."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    kept = [i for i, name in enumerate(rows[0]) if name != "images_per_s"]
    return [[row[i] for i in kept] for row in rows]


def compare(straight: Path, resumed: Path) -> None:
    """Compare weights, optimiser, schedule, loops, callbacks, random state, metrics and record."""
    for name in ("last", "best"):
        one, other = (
            torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True)
            for run in (straight, resumed)
        )
        for checkpoint in (one, other):
            states = checkpoint["callbacks"]
            (best,) = [states.pop(key) for key in list(states) if key.startswith("BestCheckpoint")]
            checkpoint["best_score"] = best["best_model_score"]
            del checkpoint["config"]
            # Lightning's count of validation batches includes those of a validation begun twice.
            progress = checkpoint["loops"]["fit_loop"]
            for key in [key for key in progress if "val_loop" in key]:
                del progress[key]
        same(one, other, name)
    assert curves(straight) == curves(resumed)
    records = [json.loads((run / "run.json").read_text()) for run in (straight, resumed)]
    for key in ("metrics", "best_epoch", "epochs", "stopped_by"):
        assert records[0][key] == records[1][key]


def run_with_interruptions(
    killer: Killer, args: list[str], moments: list[tuple[str, int]], between: Callable[[], None]
) -> int:
    """Repeat a command line until the run is finished; return how often it was interrupted."""
    killer.counts, killer.moments = {"train": 0, "val": 0}, list(moments)
    for attempt in range(20):
        try:
            main([*args, "--ckpt_path", "last"])
        except Interrupted:
            between()
            continue
        return attempt
    raise AssertionError("never finished")


def disturb() -> None:
    """Change the random state of the process that resumes, which must not leak into the run."""
    torch.manual_seed(random.randrange(1000))
    np.random.seed(7)
    torch.randn(3)


VARIANTS = {
    "default": (MLP, []),
    "resnet-onecycle": (RESNET, []),
    "fast-net": (
        RESNET,
        ["--model", "FastNet", "--data.image_size", "9", "--data.augment.flip", "alternating"],
    ),
    "bf16": (MLP, ["--trainer.precision", "bf16-mixed"]),
    "cosine-warmup": (
        MLP,
        ["--model.lr_scheduler", "CosineAnnealingLR", "--model.warmup_steps", "9"],
    ),
    "plateau": (
        MLP,
        ["--model.lr_scheduler", "ReduceLROnPlateau", "--model.lr_scheduler.patience", "0"],
    ),
    "step": (MLP, ["--model.lr_scheduler", "StepLR", "--model.lr_scheduler.step_size", "1"]),
    "accumulate": (MLP, ["--trainer.accumulate_grad_batches", "3"]),
    "val-in-epoch": (MLP, ["--trainer.val_check_interval", "5"]),
    "val-every-2": (MLP, ["--trainer.check_val_every_n_epoch", "2", "--trainer.max_epochs", "4"]),
    "clip": (RESNET, ["--trainer.gradient_clip_val", "0.1"]),
    "log-every-step": (MLP, ["--trainer.log_every_n_steps", "1"]),
    "plateau-val-in-epoch": (
        MLP,
        ["--model.lr_scheduler", "ReduceLROnPlateau", "--trainer.val_check_interval", "5"],
    ),
    "max-steps": (MLP, ["--trainer.max_steps", "33", "--trainer.max_epochs", "null"]),
    "averaged": (MLP, ["--trainer.callbacks", "EMAWeightAveraging"]),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_equals_uninterrupted(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args, options = VARIANTS[variant]
    killer = Killer(monkeypatch)
    straight = [*args, *options, "--trainer.default_root_dir", "straight"]
    main(straight)
    moments = [("train", 3), ("train", 11), ("train", 12), ("train", 13), ("val", 0), ("val", 1)]
    moments += [("train", 25), ("train", 26), ("train", 30), ("train", 38)]
    resumed = [*args, *options, "--trainer.default_root_dir", "resumed"]
    times = run_with_interruptions(killer, resumed, moments, disturb)
    assert times >= 6
    compare(Path("straight/synthetic/version_0"), Path("resumed/synthetic/version_0"))
    assert not Path("resumed/synthetic/version_1").exists()
