"""Time of our `fit`, with everything on, against hand-written training loops.

The time of an epoch includes its validation, rows and checkpoints; that of the whole fit also
includes what a run does once: parsing, data, pre-flight, pictures. Neither includes imports: see
`benchmarks.startup`.

python -m benchmarks.training --root data
"""

import argparse
import logging
import os
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import (
    REPEATS,
    RESULTS,
    Clock,
    Row,
    faster,
    interleave,
    report,
    silent,
    versus,
)
from project.commands.cli import main as project
from project.data import FashionMNISTDataModule, SyntheticDataModule
from project.models import MLP, ResNet18

CONFIG = {"batch_size": 64, "lr": 2e-3, "weight_decay": 1e-2}  # as in configs/fashion_mnist.yaml
CLOCK = ["--trainer.callbacks+", "benchmarks.timing.Clock"]
Split = tuple[Tensor, Tensor]


@dataclass
class Timed:
    """The times of one training, in seconds.

    Args:
        whole: Time from the call to its return.
        epochs: Time of each epoch.
        steps: Time of each step, except the last one of an epoch.
        before: Time from the call to the first epoch.
    """

    whole: float
    epochs: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    before: float = 0.0


def our_fit(args: list[str], folder: Path) -> Timed:
    """Run the command with its progress bar drawn as on a terminal, but discarded."""
    os.environ["FORCE_COLOR"] = "1"  # rich draws no bar without a terminal
    command = ["fit", *args, *CLOCK, "--trainer.default_root_dir", str(folder)]
    begin = time.perf_counter()
    with silent():
        cli = project(command)
    whole = time.perf_counter() - begin
    (clock,) = (c for c in cli.trainer.callbacks if isinstance(c, Clock))  # type: ignore[attr-defined]
    return Timed(whole, clock.epochs_s, clock.steps_s, clock.epochs[0] - begin)


def fashion_mnist(root: Path, sizes: tuple[int, int]) -> dict[str, Split]:
    """Return normalised images, float32 (N, 1, 28, 28), and labels, of training and validation."""
    data = FashionMNISTDataModule(root, train_size=sizes[0], val_size=sizes[1])
    data.setup("fit")
    (mean,), (std,) = data.statistics
    sets = ((name, data.sets[name]) for name in ("train", "val"))  # type: ignore[index]
    return {
        name: ((images[chosen].float() / 255 - mean) / std, labels[chosen])
        for name, (images, labels, chosen) in sets
    }


def dataloader_loop(root: Path, sizes: tuple[int, int], epochs: int, folder: Path) -> Timed:
    """Train as most tutorials do: DataLoader, AdamW, `.item()` in each step, its own checkpoint."""
    begin = time.perf_counter()
    sets = fashion_mnist(root, sizes)
    train = DataLoader(TensorDataset(*sets["train"]), CONFIG["batch_size"], shuffle=True)
    val = DataLoader(TensorDataset(*sets["val"]), 4 * CONFIG["batch_size"])
    model = MLP().layers
    decay = CONFIG["weight_decay"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["lr"], weight_decay=decay)
    marks, history = [time.perf_counter()], []
    for epoch in range(epochs):
        model.train()
        loss_sum, correct = 0.0, 0
        for images, labels in train:
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(labels)
            correct += (logits.argmax(1) == labels).sum().item()
        model.eval()
        val_loss, val_correct = 0.0, 0
        with torch.no_grad():
            for images, labels in val:
                logits = model(images)
                val_loss += F.cross_entropy(logits, labels, reduction="sum").item()
                val_correct += (logits.argmax(1) == labels).sum().item()
        history.append((loss_sum / sizes[0], correct / sizes[0], val_loss, val_correct))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, folder / "checkpoint.pt")
        marks.append(time.perf_counter())
    return Timed(marks[-1] - begin, [b - a for a, b in pairwise(marks)], [], marks[0] - begin)


def bare_trainer(root: Path, sizes: tuple[int, int], epochs: int) -> Timed:
    """Measure Lightning itself: the same model and data, with everything optional turned off."""
    clock = Clock()
    data = FashionMNISTDataModule(
        root, batch_size=int(CONFIG["batch_size"]), train_size=sizes[0], val_size=sizes[1]
    )
    options = {"lr": CONFIG["lr"], "weight_decay": CONFIG["weight_decay"], "fused": True}
    model = MLP(optimizer=partial(torch.optim.AdamW, **options))
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    begin = time.perf_counter()
    L.Trainer(
        max_epochs=epochs,
        callbacks=[clock],
        num_sanity_val_steps=0,
        **dict.fromkeys(off, False),
    ).fit(model, data)
    whole = time.perf_counter() - begin
    return Timed(whole, clock.epochs_s, clock.steps_s, clock.epochs[0] - begin)


def leanest_loop(root: Path, sizes: tuple[int, int], epochs: int) -> Timed:
    """Reach the same result with nothing optional: no loader, no checkpoint, one number."""
    begin = time.perf_counter()
    sets = fashion_mnist(root, sizes)
    (images, labels), (val_images, val_labels) = sets["train"], sets["val"]
    model = MLP().layers
    decay = CONFIG["weight_decay"]
    options = {"lr": CONFIG["lr"], "weight_decay": decay, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    marks, history = [time.perf_counter()], []
    for _ in range(epochs):
        model.train()
        total = torch.zeros(())
        for batch in torch.randperm(len(labels)).split(CONFIG["batch_size"]):
            loss = F.cross_entropy(model(images.index_select(0, batch)), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach() * len(batch)
        model.eval()
        with torch.no_grad():
            logits = model(val_images)
            val_loss = F.cross_entropy(logits, val_labels).item()
            accuracy = (logits.argmax(1) == val_labels).float().mean().item()
        history.append((total.item() / len(labels), val_loss, accuracy))
        marks.append(time.perf_counter())
    return Timed(marks[-1] - begin, [b - a for a, b in pairwise(marks)], [], marks[0] - begin)


def mlp_rows(root: Path, sizes: tuple[int, int], epochs: int, repeats: int) -> list[Row]:
    """Measure the MLP on FashionMNIST, batch 64: an epoch, and the whole fit."""
    args = ["--config", "fashion_mnist", "--data.root", str(root.resolve())]
    args += ["--data.train_size", str(sizes[0]), "--data.val_size", str(sizes[1])]
    args += ["--trainer.max_epochs", str(epochs), "--early_stopping.patience", "1000"]
    args += ["--seed_everything", "0"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {
            "ours": partial(our_fit, args, folder),
            "DataLoader": partial(dataloader_loop, root, sizes, epochs, folder),
            "leanest": partial(leanest_loop, root, sizes, epochs),
            "bare": partial(bare_trainer, root, sizes, epochs),
        }
        timed: dict[str, list[Timed]] = interleave(runs, repeats)
    epoch = {name: [median(t.epochs[1:]) for t in found] for name, found in timed.items()}
    whole = {name: [t.whole for t in found] for name, found in timed.items()}
    before = {f"before_{k}_s": median(t.before for t in found) for k, found in timed.items()}
    after = median(t.whole - t.before - sum(t.epochs) for t in timed["ours"])
    images = {"images": sizes, "epochs": epochs}
    return [
        versus("MLP, epoch, DataLoader loop", epoch["ours"], epoch["DataLoader"], 0.9, **images),
        versus("MLP, epoch, leanest loop", epoch["ours"], epoch["leanest"], 1.4, **images),
        versus("MLP, epoch, bare L.Trainer", epoch["ours"], epoch["bare"], None, **images),
        versus(
            f"MLP, whole fit of {epochs} epochs, DataLoader loop",
            whole["ours"],
            whole["DataLoader"],
            None,
            **images,
            **before,
            after_ours_s=after,
        ),
    ]


def resnet_loop(width: int, batch_size: int, steps: int, precision: str) -> Timed:
    """Train ResNet-18 on tensor batches with fused SGD only; it sets channels last itself."""
    data = SyntheticDataModule(train_size=(steps + 1) * batch_size, val_size=0, test_size=0)
    data.setup("fit")
    images, labels, _ = data.sets["train"]
    assert isinstance(images, Tensor)
    model: nn.Module = ResNet18(width=width)
    options = {"lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "fused": True}
    optimizer = torch.optim.SGD(model.parameters(), **options)
    marks = []
    for batch in torch.randperm(len(labels)).split(batch_size):
        marks.append(time.perf_counter())
        x = images.index_select(0, batch).float().mul_(4 / 255).sub_(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = F.cross_entropy(model(x), labels[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return Timed(marks[-1] - marks[0], [], [b - a for a, b in pairwise(marks)])


def resnet_rows(width: int, batch_size: int, steps: int, repeats: int) -> list[Row]:
    """Measure a step of ResNet-18 in each precision, and the gain of bfloat16."""
    args = ["--config", "cifar", "--model.width", str(width), "--data", "SyntheticDataModule"]
    args += ["--data.batch_size", str(batch_size), "--data.val_size", "1", "--data.test_size", "0"]
    args += ["--data.train_size", str((steps + 1) * batch_size), "--trainer.max_epochs", "1"]
    args += ["--model.lr_scheduler", "null", "--preflight", "false"]
    args += ["--trainer.enable_model_summary", "false"]
    with tempfile.TemporaryDirectory() as name:
        runs: dict[str, Any] = {}
        for precision in ("32-true", "bf16-mixed"):
            chosen = [*args, "--trainer.precision", precision]
            runs[f"ours {precision}"] = partial(our_fit, chosen, Path(name))
            loop = partial(resnet_loop, width, batch_size, steps, precision)
            runs[f"leanest {precision}"] = loop
        timed: dict[str, list[Timed]] = interleave(runs, repeats)
    # The first step of a process or a shape also chooses kernels.
    step = {name: [median(t.steps[1:]) for t in found] for name, found in timed.items()}
    amx = torch.cpu._is_amx_tile_supported()
    facts = {"width": width, "batch_size": batch_size, "steps": steps - 1}
    rows = [
        versus(
            f"ResNet-18, step, {precision}, leanest loop",
            step[f"ours {precision}"],
            step[f"leanest {precision}"],
            1.02,
            **facts,
        )
        for precision in ("32-true", "bf16-mixed")
    ]
    gain = "ResNet-18, step, bf16-mixed against 32-true" + ("" if amx else " (this CPU has no AMX)")
    target = 4.0 if amx else None
    ours, theirs = step["ours bf16-mixed"], step["ours 32-true"]
    return [*rows, faster(gain, ours, theirs, target, **facts)]


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of FashionMNIST")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--sizes", type=int, nargs=2, default=(5000, 2000), help="sizes of the MLP's sets"
    )
    parser.add_argument("--epochs", type=int, default=8, help="the MLP's; first untimed")
    parser.add_argument("--width", type=int, default=64, help="ResNet-18's; 0 skips it")
    parser.add_argument("--batch_size", type=int, default=128, help="ResNet-18's batch size")
    parser.add_argument("--steps", type=int, default=5, help="ResNet-18's; first untimed")
    parser.add_argument("--out", type=Path, default=RESULTS / "training.json")
    options = parser.parse_args(args)
    # Lightning sets it, at 0.1 ms per AdamW step, which a hand-written loop would not pay.
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    logging.getLogger("lightning").setLevel(logging.ERROR)  # else each fit prints its devices
    sizes = (options.sizes[0], options.sizes[1])
    rows = mlp_rows(options.root, sizes, options.epochs, options.repeats)
    if options.width:
        shape = (options.width, options.batch_size, options.steps)
        rows += resnet_rows(*shape, options.repeats)
    report("python -m benchmarks.training", rows, options.out)


if __name__ == "__main__":
    main()
