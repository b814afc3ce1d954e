"""Adding X takes one file and one line of a list: each row is tried once, in a copy of the project.

The rows are those of the table in the README, in its order.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
SMALL = ["--data.train_size", "48", "--data.val_size", "16", "--data.test_size", "8"]
SMALL += ["--data.batch_size", "16", "--data.image_size", "8", "--trainer.max_epochs", "2"]
SMALL += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
SMALL += ["--trainer.enable_model_summary", "false"]

PICTURE = "project.callbacks.weights_picture"
FILES = {  # what is written
    "project/models/pooled.py": '''
from typing import Any

from torch import Tensor, nn

from project.engine.task import Task


class Pooled(Task):
    """A linear function of the mean of each channel.

    Args:
        in_channels: Channels of an image; the command line takes it from the data.
        num_classes: Number of outputs; from the data as well.
        kwargs: Options of every network.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.linear = nn.Linear(in_channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.mean((2, 3)))  # (N, C, H, W) -> (N, num_classes)
''',
    "project/data/colours.py": '''
import torch
from torch import Tensor

from project.data import AugmentedImageDataModule
from project.engine.datamodule import Split


class ColoursDataModule(AugmentedImageDataModule):
    """Images of one colour each, red, green or blue, with noise."""

    in_channels, image_size, class_names = 3, 8, ["red", "green", "blue"]

    def load(self, split: Split) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        generator = torch.Generator().manual_seed(len(split))
        labels = torch.arange(96) % 3
        images = torch.randint(128, (96, 3, 8, 8), generator=generator, dtype=torch.uint8)
        images[torch.arange(96), labels] += 100
        return images, labels
''',
    "project/data/invert.py": '''
from typing import Any

from torch import Tensor

from project.data import BatchTransform


class Invert(BatchTransform):
    """Inverts some images.

    Args:
        share: Share of the images, from 0 to 1.
    """

    num_uniforms = 1

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def __call__(self, inputs: Any, targets: Any, u: Tensor) -> tuple[Any, Any]:
        return inputs.where((u >= self.share).view(-1, 1, 1, 1), -inputs), targets
''',
    "project/callbacks/weights_picture.py": '''
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from project.callbacks.pictures import run_folder
from project.reports.curves import save_figure


class WeightsPicture(Callback):
    """Draws the weights of the first layer."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        figure = Figure()
        figure.add_subplot().imshow(next(pl_module.parameters()).detach().flatten(1))
        save_figure(figure, run_folder(trainer) / "weights.png")
''',
    "project/preflight/few_examples.py": '''
from typing import Any

from .check import Check, Verdict


class FewExamplesCheck(Check):
    """Refuses a run on fewer than two training batches."""

    def look(self, trainer: Any, model: Any, batch: Any) -> Verdict:
        batches = trainer.num_training_batches
        return self.verdict("" if batches > 1 else "there is one batch", batches=batches)
''',
    "project/commands/count.py": '''
import sys
from collections.abc import Sequence
from pathlib import Path

from ..runs.sets import runs_in
from .table import OptionParser


def main(args: Sequence[str] | None = None) -> None:
    """Print the number of runs in a folder."""
    parser = OptionParser("count", "Count runs.")
    parser.add_argument("folder", type=Path)
    print(len(runs_in(parser.parse_args(args).folder)))
''',
}

LINES = {  # what is added to a list, and after which line
    "project/models/__init__.py": [
        ("from project.models.mlp import MLP", "from project.models.pooled import Pooled"),
    ],
    "project/data/__init__.py": [
        ("from project.data.cifar10 ", "from project.data.colours import ColoursDataModule"),
    ],
    "project/callbacks/__init__.py": [
        ("from project.callbacks.pictures ", f"from {PICTURE} import WeightsPicture"),
        ("    pictures: ", "    weights: WeightsPicture | None = by_default(WeightsPicture)"),
    ],
    "project/preflight/checks.py": [
        ("from .init_loss ", "from .few_examples import FewExamplesCheck"),
        ("    EvaluationCheck,", "    FewExamplesCheck,"),
    ],
    "project/commands/table.py": [
        ('    "runs": ', '    "count": "Count runs.",'),
    ],
    "project/commands/options.py": [
        ("    name: str", '    greeting: str = "hi"'),
    ],
    "project/models/objectives.py": [],
}
HINGE = '''

class Hinge(Objective):
    """Each wrong class should score lower than the right one by at least 1."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        right = outputs.gather(1, targets[:, None])
        return (1 + outputs - right).clamp(min=0).sum(1) - 1
'''


def add_line(path: Path, after: str, line: str) -> None:
    lines = path.read_text("utf-8").splitlines()
    (place,) = [i for i, other in enumerate(lines) if other.startswith(after)]
    path.write_text("\n".join([*lines[: place + 1], line, *lines[place + 1 :], ""]), "utf-8")


def run(folder: Path, *args: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "project", *args]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project, with everything added to it."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("project", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        (folder / name).write_text(text.lstrip(), "utf-8")
    for name, lines in LINES.items():
        for after, line in lines:
            add_line(folder / name, after, line)
    objectives = folder / "project/models/objectives.py"
    objectives.write_text(objectives.read_text("utf-8") + HINGE, "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(copied: Path) -> Path:
    """The folder of a run with the network, objective, metric, data, transform, picture and logger
    that were added."""
    args = ["--model", "Pooled", "--model.objective", "Hinge", "--data", "ColoursDataModule"]
    args += ["--model.metrics.f1", "MulticlassF1Score", "--model.metrics.f1.average", "macro"]
    args += ["--data.transforms+", "project.data.invert.Invert", "--data.transforms.share", "0.2"]
    args += ["--trainer.logger+", "CSVLogger", "--trainer.logger.save_dir", "elsewhere"]
    args += ["--greeting", "hello", "--name", "added", *SMALL[:4], *SMALL[6:8], *SMALL[10:]]
    run(copied, "fit", *args)
    return copied / "runs/added/version_0"


def test_a_network_an_objective_a_metric_and_data(trained: Path) -> None:
    config = (trained / "config.yaml").read_text("utf-8")
    for name in ("models.Pooled", "objectives.Hinge", "ColoursDataModule", "MulticlassF1Score"):
        assert name in config, name
    record = json.loads((trained / "run.json").read_text("utf-8"))
    assert {"val/loss", "val/f1"} <= record["metrics"].keys()
    assert record["modes"]["val/f1"] == "max"
    assert record["classes"] == ["red", "green", "blue"]


def test_a_transform(copied: Path, trained: Path) -> None:
    assert "invert.Invert" in (trained / "config.yaml").read_text("utf-8")


def test_a_picture(trained: Path) -> None:
    assert (trained / "weights.png").read_bytes().startswith(b"\x89PNG")
    assert (trained / "predictions.png").is_file()


def test_a_logger(copied: Path, trained: Path) -> None:
    (rows,) = (copied / "elsewhere").rglob("metrics.csv")
    header = rows.read_text("utf-8").splitlines()[0]
    assert "val/f1" in header
    assert (trained / "metrics.csv").is_file()


def test_an_option(copied: Path, trained: Path) -> None:
    assert "greeting: hello" in (trained / "config.yaml").read_text("utf-8")
    assert "--greeting" in run(copied, "fit", "--help")


def test_a_check(copied: Path) -> None:
    said = run(copied, "check", "--config", "synthetic", *SMALL[:10], *SMALL[12:])
    assert "passed  FewExamplesCheck" in said


def test_a_command(copied: Path, trained: Path) -> None:
    assert run(copied, "count", str(trained.parent)).strip() == "1"
    assert "Count runs." in run(copied, "--help")
