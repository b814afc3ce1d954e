"""Train at both ends of the range that lr_find gives, and at learning rates from 0.001 to 0.1.

python -m benchmarks.lr_range --fashion_mnist data --images my_photos --seeds 3
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.timing import silent
from project.callbacks import CurvesMonitor, PredictionGrid
from project.commands.cli import main as command

GRID = (1e-3, 1e-2, 3e-2, 1e-1)
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
FIT = ["--trainer.enable_model_summary", "false", "--preflight", "false"]
FIT += ["--early_stopping", "null", "--trainer.logger", "false"]


@dataclass
class Task:
    """The options of both commands, those of lr_find only, and the epochs of the short runs."""

    args: list[str]
    sweep: list[str]
    epochs: int


def tasks(fashion_mnist: Path | None, images: Path | None) -> dict[str, Task]:
    """Return the tasks whose data are available."""
    found = {}
    if fashion_mnist:
        mlp = ["--config", "fashion_mnist", "--data.root", str(fashion_mnist)]
        found["FashionMNIST, MLP"] = Task(mlp, [], 2)
    if images:
        folder = ["--config", "image_folder", "--data.root", str(images), "--model.width", "16"]
        small = ["--data.image_size", "32", "--data.batch_size", "32"]
        found["images, ResNet18"] = Task([*folder, *small], [], 8)
    stripes = ["--config", "synthetic", "--data.image_size", "16"]
    found["stripes, ResNet18"] = Task(stripes, ["--num_steps", "200"], 5)
    return found


def loss_at(lr: float, args: list[str], epochs: int, folder: str) -> float:
    """Return the best validation loss of a short run."""
    options = ["--model.optimizer.lr", str(lr), "--trainer.max_epochs", str(epochs)]
    options += ["--trainer.default_root_dir", folder]
    trained = command(["fit", *args, *QUIET, *FIT, *options]).trainer
    (best,) = trained.validate(trained.lightning_module, trained.datamodule, verbose=False)  # type: ignore[attr-defined]
    return best["val/loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fashion_mnist", type=Path, help="folder of FashionMNIST")
    parser.add_argument("--images", type=Path, help="folder with a few images of each class")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for kind in (PredictionGrid, CurvesMonitor):
        kind._draw = lambda *_: None  # type: ignore[method-assign]
    print("task                seed  range               loss at its ends  best of the grid, at")
    for name, task in tasks(options.fashion_mnist, options.images).items():
        for seed in map(str, range(options.seeds)):
            with tempfile.TemporaryDirectory() as folder, silent():
                args = [*task.args, "--seed_everything", seed]
                sweep = [*QUIET, *task.sweep, "--trainer.default_root_dir", folder]
                found = command(["lr_find", *args, *sweep]).lr_range
                ends = [loss_at(lr, args, task.epochs, folder) for lr in found.usable or ()]
                best, lr = min((loss_at(lr, args, task.epochs, folder), lr) for lr in GRID)
            usable = "{:.1e} to {:.1e}".format(*found.usable) if found.usable else "none given"
            losses = " and ".join(f"{loss:.3f}" for loss in ends)
            print(f"{name:18}  {seed:4}  {usable:18}  {losses:16}  {best:.3f}, {lr:g}", flush=True)


if __name__ == "__main__":
    main()
