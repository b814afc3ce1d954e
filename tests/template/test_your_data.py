"""Every command of docs/your_data.md is run, in order, on a folder of real images."""

import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from project.data import Augment, ImageDataModule, ImageFolderDataModule

PAGE = (Path(__file__).parents[2] / "docs" / "your_data.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
LINES = [line for kind, block in BLOCKS if not kind for line in block.strip().splitlines()]
COMMANDS = [shlex.split(line)[3:] for line in LINES]
TRAINS = ("fit", "seed_noise")
FAST = ["--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"]
FAST += ["--trainer.accelerator", "cpu", "--trainer.enable_model_summary", "false"]
FAST += ["--preflight", "false"]  # which `check` does
SMALL = ["--model.width", "4", "--data.image_size", "16"]


@pytest.fixture
def photos(tmp_path: Path, cifar_images: Path) -> Path:
    """Write photos as on the page: a folder per class, one of them rare, and others to predict."""
    for name, count in (("cat", 60), ("dog", 60), ("frog", 15)):
        (tmp_path / "my_photos" / name).mkdir(parents=True)
        for path in sorted((cifar_images / "train" / name).iterdir())[:count]:
            (tmp_path / "my_photos" / name / path.name).symlink_to(path)
    (tmp_path / "photos").symlink_to(cifar_images / "test" / "dog")
    return tmp_path


def quick(args: list[str]) -> list[str]:
    """Return options that make a command of the page fast; later options win."""
    few = ["--seeds", "2", "--jobs", "2"] if args[0] == "seed_noise" else []
    few += FAST if args[0] in TRAINS else []
    few += ["--num_steps", "20"] if args[0] == "lr_find" else []
    return few + (SMALL if "--config" in args else [])


@pytest.mark.slow
def test_every_command_runs(
    photos: Path, exit_code: Callable[[list[str]], int], caplog: pytest.LogCaptureFixture
) -> None:
    assert all(line.startswith("python -m project ") for line in LINES)
    assert len(COMMANDS) >= 8
    with caplog.at_level("INFO"):
        failed = [shlex.join(args) for args in COMMANDS if exit_code([*args, *quick(args)])]
    assert failed == []
    run = photos / "runs/image_folder/version_0"
    for name in ("predictions.csv", "images.csv", "images.png", "model.onnx", "checkpoints"):
        assert (run / name).exists(), name
    for line in ("Unequal classes: ", "To train on all of them equally often: "):
        assert line in PAGE
        assert line in caplog.text


def test_options_of_the_page_exist() -> None:
    known = {f"augment.{field.name}" for field in dataclasses.fields(Augment)}
    for module in (ImageFolderDataModule, ImageDataModule):
        known |= set(inspect.signature(module.__init__).parameters)
    named = set(re.findall(r"--data\.([\w.]+\w)", PAGE))
    assert len(named) >= 8
    assert named <= known


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 110
