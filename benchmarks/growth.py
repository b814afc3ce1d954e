"""What must not grow: the time per image with the number of images, the time of a step or a row
with the length of the run, and the memory beyond what a run needs.

python -m benchmarks.growth
"""

import argparse
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.timing import RESULTS, Clock, Row, interleave, report, seconds, silent, versus
from project.commands.cli import main as project
from project.data import ImageDataModule
from project.engine.datamodule import Split
from project.engine.loggers import run_loggers
from project.models import MLP, ResNet18
from project.runs.sets import read_metrics

ROOT = Path(__file__).parents[1]
MB = 2**20
ROWS = {"train/loss_step": 1.0, "train/acc_step": 0.5, "lr": 0.1, "epoch": 0.0}


class TinyImages(ImageDataModule):
    """Images of grey noise, 4×4 pixels, so that millions fit into memory."""

    in_channels, image_size = 1, 4
    class_names = [str(i) for i in range(10)]

    def __init__(self, size: int, batch_size: int) -> None:
        super().__init__(batch_size, val_size=0)
        self.size = size

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        g = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (self.size, 1, 4, 4), generator=g, dtype=torch.uint8)
        return images, torch.arange(self.size) % 10


def epoch_s(size: int, batch_size: int) -> tuple[float, float]:
    """Return the seconds of the set-up, with statistics and hash, and of a fit's second epoch."""
    data, clock = TinyImages(size, batch_size), Clock()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = dict.fromkeys(off, False)
    model = MLP(hidden_sizes=(16,), image_size=4)
    L.Trainer(max_epochs=2, callbacks=[clock], accelerator="cpu", **options).fit(model, data)
    other = TinyImages(size, batch_size)
    setup_s = seconds(lambda: (other.setup("fit"), other.statistics, other.sha256))
    return setup_s, clock.epochs_s[1]


def size_rows(largest: int, repeats: int) -> list[Row]:
    """Compare the time per image with four times fewer; still fewer would fit into the caches."""
    few = largest // 4
    batch_size = max(8, min(4096, few // 8))
    runs = {str(size): partial(epoch_s, size, batch_size) for size in (few, largest)}
    found = interleave(runs, repeats, warm_up=0)
    rows = []
    for k, name in enumerate(("set-up", "epoch")):
        small, large = ([pair[k] for pair in found[str(size)]] for size in (few, largest))
        per_image = ([1e6 * s / size for s in v] for v, size in ((large, largest), (small, few)))
        row = versus(f"{name}, time per image, {largest:,} against {few:,} images", *per_image, 1.1)
        rows.append({k.replace("_s", "_us"): v for k, v in row.items()})
    return rows


def length_rows(epochs: int) -> list[Row]:
    """Compare a step and an epoch, with rows and checkpoints, late in a run and early in it."""
    args = ["fit", "--config", "synthetic", "--model", "MLP", "--data.image_size", "8"]
    args += ["--data.train_size", "640", "--trainer.max_epochs", str(epochs)]
    args += ["--trainer.callbacks+", "benchmarks.timing.Clock", "--preflight", "false"]
    with tempfile.TemporaryDirectory() as name, silent():
        cli = project([*args, "--trainer.default_root_dir", name])
    (clock,) = (c for c in cli.trainer.callbacks if isinstance(c, Clock))  # type: ignore[attr-defined]
    rows = []
    steps = [step for epoch in clock.steps[1:] for step in np.diff(epoch).tolist()]
    for what, values in (
        ("step", steps),
        ("epoch, with rows and both checkpoints", clock.epochs_s[1:]),
    ):
        part = len(values) // 5  # the first fifth of the run against the last
        row = versus(
            f"{what}, late in a run of {epochs} epochs", values[-part:], values[:part], 1.05
        )
        rows.append(row | {"epochs": epochs, "values": part})
    return rows


def log_s(run: Path, rows: int, more: int) -> tuple[float, float]:
    """Return the seconds per row to append to a `metrics.csv`, and to read the whole file."""
    (csv,) = (logger for logger in run_loggers(run, 0) if "CSV" in type(logger).__name__)
    for step in range(rows):
        csv.log_metrics(ROWS, step)
    csv.save()
    begin = time.perf_counter()
    for step in range(rows, rows + more):
        csv.log_metrics(ROWS, step)
        csv.save()
    return (time.perf_counter() - begin) / more, seconds(lambda: read_metrics(run)) / (rows + more)


def log_rows(rows: int, repeats: int) -> list[Row]:
    """Compare writing and reading a row of `metrics.csv` with a hundred times fewer rows."""
    few, more = max(1, rows // 100), 100
    with tempfile.TemporaryDirectory() as name:

        def run(number: int) -> tuple[float, float]:
            return log_s(Path(tempfile.mkdtemp(dir=name), "version_0"), number, more)

        found = interleave({str(number): partial(run, number) for number in (few, rows)}, repeats)
    table = []
    for k, what in enumerate(("written", "read, of all")):
        small, large = ([pair[k] for pair in found[str(number)]] for number in (few, rows))
        name = f"a row of metrics.csv {what}, {rows:,} rows against {few:,}"
        table.append(versus(name, large, small, 1.2))
    return table


def activations(model: ResNet18, images: Tensor, labels: Tensor) -> int:
    """Return the bytes a step keeps for its backward pass: each storage once, no parameters."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.cross_entropy(model(images), labels)
        for tensor in (*model.parameters(), *model.buffers()):
            kept.pop(tensor.untyped_storage().data_ptr(), None)
        total = sum(kept.values())
    assert loss.requires_grad
    return total


def write_cifar(root: Path, images: int) -> None:
    """Write noise in CIFAR-10's binary form: a fifth of the images in each training file."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows = rng.integers(0, 256, (images // 5, 3073), np.uint8)
        rows[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def peak_bytes() -> int:
    """Return this process's peak memory; on Linux, `ru_maxrss` would start with its parent's."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return 1024 * int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def peak(*args: str) -> None:
    """Run a command of the project, and print the peak memory of this process."""
    with silent():
        project(list(args))
    print(peak_bytes())


def run_bytes(images: int, width: int, batch_size: int) -> int:
    """Return a CIFAR-10 run's peak memory: two epochs of three steps, two validation batches."""
    with tempfile.TemporaryDirectory() as name:
        write_cifar(Path(name, "data"), images)
        args = ["fit", "--config", "cifar", "--data.root", str(Path(name, "data"))]
        args += ["--model.width", str(width), "--data.batch_size", str(batch_size)]
        args += ["--data.val_size", str(images // 10), "--trainer.limit_train_batches", "3"]
        args += ["--trainer.limit_val_batches", "2", "--trainer.max_epochs", "2"]
        args += ["--preflight", "false"]
        child = f"from benchmarks.growth import peak; peak(*{args!r})"
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", child]
        done = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def memory_row(images: int, width: int, batch_size: int) -> Row:
    """Divide a run's peak memory, less that of the smallest run, by the memory it must use."""
    model = ResNet18(width=width)
    weights = sum(p.nbytes for p in model.parameters())
    batch = torch.rand(batch_size, 3, 32, 32), torch.zeros(batch_size, dtype=torch.int64)
    need = {"data": images * 3 * 32 * 32, "weights": weights, "gradients": weights}
    need |= {"momentum": weights, "activations": activations(model, *batch)}
    # Both include what is loaded on the way (TensorBoard, Matplotlib, kernels).
    smallest, whole = run_bytes(100, 1, 4), run_bytes(images, width, batch_size)
    ratio = (whole - smallest) / sum(need.values())
    row = {"name": f"peak memory, ResNet-18 of width {width}, batch {batch_size}", "ratio": ratio}
    row |= {"target": 1.2, "met": ratio <= 1.2}
    sizes = {"smallest": smallest, "peak": whole} | need
    return row | {f"{name}_mb": value / MB for name, value in sizes.items()}


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3, help="repeats of sizes and rows")
    parser.add_argument("--images", type=int, default=4_000_000, help="largest number of images")
    parser.add_argument("--epochs", type=int, default=200, help="epochs of the long run")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the long metrics.csv")
    parser.add_argument("--cifar", type=int, default=50_000, help="images of the memory run")
    parser.add_argument("--width", type=int, default=64, help="width of the memory run")
    parser.add_argument("--batch_size", type=int, default=128, help="batch of the memory run")
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    options = parser.parse_args(args)
    logging.getLogger("lightning").setLevel(logging.ERROR)  # else each fit prints its devices
    rows = size_rows(options.images, options.repeats)
    rows += length_rows(options.epochs)
    rows += log_rows(options.rows, options.repeats)
    rows.append(memory_row(options.cifar, options.width, options.batch_size))
    report("python -m benchmarks.growth", rows, options.out)


if __name__ == "__main__":
    main()
