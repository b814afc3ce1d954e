"""What one GPU can measure within ten minutes: ResNet-18 in each precision and memory format, our
`fit` against the leanest loop, the loader, and a short training. A CPU runs a tiny form of it.

python -m benchmarks.gpu
python -m benchmarks.gpu --tiny
"""

import argparse
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import RESULTS, Row, interleave, report, silent, versus
from project.commands.cli import main as project
from project.data import Augment, Compose, Normalize, TensorLoader
from project.models import ResNet18
from project.runs.folder import RECORD
from project.runs.record import read_record

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARM_UP = 10  # steps in which cuDNN chooses its kernels
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)  # of CIFAR-10
MFLOP = 3340  # per image and step at width 64: forward and backward

Precision = Literal["fp32", "tf32", "bf16-mixed", "16-mixed"]
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass
class Size:
    """How much is measured.

    Args:
        width: Channels of the first stage of ResNet-18.
        batch_size: Examples per step.
        steps: Steps timed in each round.
        repeats: Number of rounds.
        epochs: Epochs of the short training.
        minutes: Time after which no new part is started.
        compiled: Whether compiled variants are measured too.
    """

    width: int = 64
    batch_size: int = 512
    steps: int = 20
    repeats: int = 7
    epochs: int = 5
    minutes: float = 8.0
    compiled: bool = True


TINY = Size(width=16, batch_size=8, steps=2, repeats=1, epochs=1, compiled=False)


def synchronize() -> None:
    """Wait until the device has finished its work."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def allow_tf32(allow: bool) -> None:
    """Choose between float32 and TF32, for matrix products and for convolutions."""
    torch.set_float32_matmul_precision("high" if allow else "highest")
    with warnings.catch_warnings():  # Lightning reads the old switches, which must not be mixed
        warnings.simplefilter("ignore")
        torch.backends.cudnn.allow_tf32 = allow


class LeanLoop:
    """The fastest hand-written training: all data on the device, fused SGD, nothing read back.

    Args:
        size: Width and batch size.
        precision: Precision of the forward and backward pass.
        channels_last: Whether images and weights are stored with channels last.
        compiled: Whether `torch.compile` is used.
    """

    def __init__(
        self, size: Size, precision: Precision, channels_last: bool = True, compiled: bool = False
    ) -> None:
        self.size, self.precision = size, precision
        self.dtype = DTYPES.get(precision)
        form = torch.channels_last if channels_last else torch.contiguous_format
        model = ResNet18(width=size.width)
        model.memory_format = form
        self.model = model.to(DEVICE).to(memory_format=form)
        if compiled:
            self.model.compile()
        options = {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
        self.optimizer = torch.optim.SGD(self.model.parameters(), fused=True, **options)
        self.scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "16-mixed")
        number = 4 * size.batch_size
        self.images = torch.randint(0, 256, (number, 3, 32, 32), dtype=torch.uint8, device=DEVICE)
        self.labels = torch.randint(0, 10, (number,), device=DEVICE)

    def step(self) -> None:
        """Take one optimiser step on images drawn at random from those on the device."""
        batch = torch.randint(0, len(self.labels), (self.size.batch_size,), device=DEVICE)
        images = self.images.index_select(0, batch).float().mul_(4 / 255).sub_(2)
        with torch.autocast(DEVICE.type, self.dtype, enabled=self.dtype is not None):
            loss = F.cross_entropy(self.model(images), self.labels[batch])
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def step_s(self) -> float:
        """Return the mean time of a number of steps."""
        allow_tf32(self.precision == "tf32")
        synchronize()
        begin = time.perf_counter()
        for _ in range(self.size.steps):
            self.step()
        synchronize()
        return (time.perf_counter() - begin) / self.size.steps

    def warm_up_s(self) -> float:
        """Return the time of the first steps, in which kernels are chosen and compiled."""
        allow_tf32(self.precision == "tf32")
        begin = time.perf_counter()
        for _ in range(WARM_UP):
            self.step()
        synchronize()
        return time.perf_counter() - begin


def throughput_rows(size: Size) -> list[Row]:
    """Compare each variant of the leanest loop with plain float32 with channels first."""
    variants: dict[str, LeanLoop] = {}
    for precision in ("fp32", "tf32", "bf16-mixed", "16-mixed"):
        for last in (False, True):
            name = f"{precision}, channels {'last' if last else 'first'}"
            variants[name] = LeanLoop(size, precision, last)  # type: ignore[arg-type]
    if size.compiled:
        for precision in ("fp32", "bf16-mixed"):
            compiled = LeanLoop(size, precision, compiled=True)  # type: ignore[arg-type]
            variants[f"{precision}, channels last, compiled"] = compiled
    warm_up = {name: loop.warm_up_s() for name, loop in variants.items()}
    found = interleave({name: loop.step_s for name, loop in variants.items()}, size.repeats)
    first = found["fp32, channels first"]
    rows = []
    for name, step_s in found.items():
        row = versus(f"step, {name}, against fp32", step_s, first, None, warm_up_s=warm_up[name])
        speed = size.batch_size / row["ours_s"]
        # The cost grows with the square of the width.
        tflops = speed * MFLOP * (size.width / 64) ** 2 / 1e6
        rows.append(row | {"images_per_s": speed, "tflop_per_s": tflops})
    return rows


class Throughput(L.Callback):
    """Times all steps after the first few, and waits for the device only before and after them."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.steps = 0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        last = int(trainer.num_training_batches) - 1
        if trainer.current_epoch == 0 and batch_idx in (WARM_UP, last):
            synchronize()
            self.marks.append(time.perf_counter())
            self.steps = last - WARM_UP


class Compile(L.Callback):
    """Compiles the model in place while it trains, so that no key of a checkpoint changes."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        pl_module.compile()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module._compiled_call_impl = None  # the pictures use another batch size


def fit_step_s(size: Size, precision: str, compiled: bool, folder: Path) -> float:
    """Return the mean time of a step of our `fit`, with everything on but the pre-flight."""
    allow_tf32(False)
    images = (WARM_UP + size.steps + 1) * size.batch_size
    args = ["fit", "--config", "cifar", "--model.width", str(size.width)]
    args += ["--data", "SyntheticDataModule", "--data.batch_size", str(size.batch_size)]
    args += ["--data.train_size", str(images), "--data.val_size", "16", "--data.test_size", "0"]
    args += ["--data.augment.crop", "4", "--data.augment.flip", "true"]
    args += ["--trainer.precision", precision, "--trainer.max_epochs", "1", "--preflight", "false"]
    args += ["--trainer.benchmark", "true", "--trainer.default_root_dir", str(folder)]
    args += ["--trainer.enable_model_summary", "false"]
    args += ["--trainer.callbacks+", "benchmarks.gpu.Throughput"]
    if compiled:
        args += ["--trainer.callbacks+", "benchmarks.gpu.Compile"]
    with silent():
        cli = project(args)
    # By name: if this file is run as a script, the command line imports a second copy of the class.
    callbacks = cli.trainer.callbacks  # type: ignore[attr-defined]
    (found,) = (c for c in callbacks if type(c).__name__ == "Throughput")
    return (found.marks[1] - found.marks[0]) / found.steps


def fit_rows(size: Size, compiled: bool) -> list[Row]:
    """Compare a step of our `fit` with the leanest loop, on the same device and precision."""
    chosen = [("32-true", "fp32"), ("bf16-mixed", "bf16-mixed"), ("16-mixed", "16-mixed")]
    if compiled:  # few enough models: torch gives up after compiling 8 of one kind
        chosen = chosen[1:2]
        torch.compiler.reset()
    rows = []
    for ours, theirs in chosen:
        loop = LeanLoop(size, theirs, compiled=compiled)  # type: ignore[arg-type]
        loop.warm_up_s()
        with tempfile.TemporaryDirectory() as name:
            fit = partial(fit_step_s, size, ours, compiled, Path(name))
            found = interleave({"ours": fit, "leanest": loop.step_s}, min(2, size.repeats))
        what = f"step of fit, {theirs}{', compiled' if compiled else ''}, against the leanest loop"
        row = versus(what, found["ours"], found["leanest"], 1.02)
        rows.append(row | {"images_per_s": size.batch_size / row["ours_s"]})
    return rows


def loader_row(size: Size) -> Row:
    """Compare a loader's batch, augmented and copied to the device, with one made there."""
    number = 8 * size.batch_size
    images = torch.randint(0, 256, (number, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (number,))
    normalize = Normalize(MEAN, STD)
    transform = Compose([Augment(crop=4, padding="zeros", flip=True), normalize])
    loader = TensorLoader(images, labels, size.batch_size, shuffle=True, transform=transform)
    there, labels_there = images.to(DEVICE), labels.to(DEVICE)
    scale, shift = (t.to(DEVICE) for t in normalize.layer.buffers())

    def copied() -> Iterator[Tensor]:
        for batch, targets in loader:
            targets.to(DEVICE)
            yield batch.to(DEVICE)

    def made_there() -> Iterator[Tensor]:
        for batch in torch.randperm(number, device=DEVICE).split(size.batch_size):
            rows = torch.arange(len(batch), device=DEVICE)
            top, left = torch.randint(0, 9, (2, len(batch)), device=DEVICE)
            shifts = F.pad(there[batch], [4] * 4).unfold(2, 32, 1).unfold(3, 32, 1)
            chosen = shifts[rows, :, top, left]
            mirrored = torch.rand(len(batch), 1, 1, 1, device=DEVICE) < 0.5
            chosen = torch.where(mirrored, chosen.flip(-1), chosen)
            labels_there[batch]
            yield chosen.float().mul_(scale).add_(shift)

    def batch_s(batches: Callable[[], Iterator[Tensor]]) -> float:
        synchronize()
        begin = time.perf_counter()
        count = sum(1 for _ in batches())
        synchronize()
        return (time.perf_counter() - begin) / count

    found = interleave(
        {"ours": partial(batch_s, copied), "there": partial(batch_s, made_there)}, size.repeats
    )
    return versus(
        "a batch of TensorLoader, copied to the device, against one made there",
        found["ours"],
        found["there"],
        None,
    )


def training_row(size: Size, root: Path | None) -> Row:
    """Measure a short training with everything that a run does: total seconds, and its results."""
    tiny = size.width < 64
    config = ["--config", "synthetic" if root is None else "cifar"]
    args = ["fit", *config, "--trainer.max_epochs", str(size.epochs)]
    args += [] if root is None else ["--data.root", str(root.resolve())]
    args += ["--data.train_size", "64", "--data.val_size", "32"] if tiny else []
    args += ["--preflight", "false"] if tiny else ["--config", "presets/bf16"]
    with tempfile.TemporaryDirectory() as name:
        begin = time.perf_counter()
        with silent():
            cli = project([*args, "--trainer.default_root_dir", name])
        seconds = time.perf_counter() - begin
        assert (cli.run_folder / RECORD).is_file()
        record = read_record(cli.run_folder)
    what = f"seconds of fit {' '.join(config)}, {size.epochs} epochs"
    row: Row = {"name": what, "ratio": seconds, "target": None, "met": None}
    return row | {"metrics": record.metrics, "device": record.device}


@dataclass
class Session:
    """Runs parts while there is time, and writes the rows of each as soon as it is done."""

    size: Size
    out: Path
    command: str
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)

    def run(self, part: Callable[[], list[Row]], name: str) -> None:
        if time.monotonic() - self.begin > 60 * self.size.minutes:
            self.skipped.append(name)
            return
        try:
            self.rows += part()
        except RuntimeError as error:  # such as too little memory: the others continue
            self.skipped.append(f"{name}: {str(error).splitlines()[0]}")
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
        report(self.command, self.rows, self.out, skipped=self.skipped, size=vars(self.size))


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, help="folder of CIFAR-10; default: synthetic images")
    parser.add_argument("--tiny", action="store_true", help="run a tiny form on a CPU, to try it")
    parser.add_argument("--out", type=Path, help="default: results/gpu.json, or none if tiny")
    options = parser.parse_args(args)
    if DEVICE.type == "cpu" and not options.tiny:
        parser.error("no GPU was found: --tiny runs on a CPU")
    size = TINY if options.tiny else Size()
    out = options.out or (Path(os.devnull) if options.tiny else RESULTS / "gpu.json")
    logging.getLogger("lightning").setLevel(logging.ERROR)  # else each fit prints its devices
    torch.backends.cudnn.benchmark = True
    session = Session(size, out, "python -m benchmarks.gpu" + " --tiny" * options.tiny)
    session.run(lambda: [loader_row(size)], "loader")
    session.run(lambda: [training_row(size, options.root)], "training")
    session.run(lambda: throughput_rows(size), "throughput")
    session.run(lambda: fit_rows(size, compiled=False), "fit")
    if size.compiled:
        session.run(lambda: fit_rows(size, compiled=True), "compiled fit")
    used = time.monotonic() - session.begin
    speed = [row["images_per_s"] for row in session.rows if "images_per_s" in row]
    best = f", at most {max(speed):,.0f} images/s" if speed else ""
    print(f"\n{used:.0f} s{best}{''.join(f', left out: {name}' for name in session.skipped)}")


if __name__ == "__main__":
    main()
