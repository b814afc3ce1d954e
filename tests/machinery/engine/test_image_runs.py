"""Runs on folders of images: what a test reads, and an image that breaks in the middle of a run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from project.commands.cli import main
from project.data import ImageFolderDataModule
from project.engine.saving import LastCheckpoint

FIT = ["fit", "--config=synthetic", "--data=ImageFolderDataModule", "--data.image_size=16"]
FIT += ["--data.batch_size=4", "--model=MLP", "--trainer.max_epochs=3", "--preflight=false"]
FIT += ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
FIT += ["--trainer.enable_model_summary=false", "--data.root=photos"]


def write(path: Path, seed: int, low: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(low, 256, size=(16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_parts() -> None:
    for part, count in (("train", 12), ("val", 4), ("test", 5)):
        for k in range(count):
            for label, name in enumerate(("cat", "dog")):
                write(Path("photos", part, name, f"{k}.png"), seed=100 * label + k)


@pytest.mark.parametrize("command", ["test", "predict"])
def test_a_test_reads_the_test_images_alone(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Mean and std are those of the training, whatever the training images are now."""
    write_parts()
    trained = main(FIT).datamodule.statistics
    main(["test", "--run=runs/synthetic/version_0"])  # from now on the run knows its test images
    shutil.rmtree("photos/train")
    for name in ("cat", "dog"):
        write(Path("photos/train", name, "bright.png"), 1, low=200)
    loaded: list[str] = []
    load = ImageFolderDataModule.load

    def spy(data: ImageFolderDataModule, split: Any) -> Any:
        loaded.append(split)
        return load(data, split)

    monkeypatch.setattr(ImageFolderDataModule, "load", spy)
    data = main([command, "--run=runs/synthetic/version_0"]).datamodule
    assert data.statistics == trained
    assert loaded == ["test"]
    other = ImageFolderDataModule(Path("photos"), 16)
    other.setup("fit")
    assert other.statistics != trained


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_image_that_breaks_in_mid_run_is_one_sentence_and_resumed(
    exit_code: Callable[[list[str]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    num_workers: int,
) -> None:
    write_parts()
    args = [*FIT, "--data.memory_budget=0", f"--data.num_workers={num_workers}"]
    main([*args, "--name=twin"])
    broken, whole = Path("photos/train/dog/3.png"), Path("photos/train/dog/3.png").read_bytes()
    save = LastCheckpoint._save

    def save_and_break(callback: LastCheckpoint, trainer: Any) -> None:
        save(callback, trainer)
        broken.write_bytes(whole[: len(whole) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(LastCheckpoint, "_save", save_and_break)
        capsys.readouterr()
        assert exit_code([*args, "--name=broken"]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    run = Path("runs/broken/version_0")
    assert said.startswith("error: photos/train/dog/3.png can't be read as an image (")
    again = f"resume the run with python -m project fit --run {run}"
    assert said.endswith(f"): put it back as it was, then {again}")

    assert exit_code(["fit", f"--run={run}"]) == 1  # which looks at all of them before it begins
    assert "remove or replace 1 of 24 files: photos/train/dog/3.png" in capsys.readouterr().err
    broken.write_bytes(whole)
    assert exit_code(["fit", f"--run={run}"]) == 0
    states = [
        torch.load(Path("runs", name, "version_0/checkpoints/last.ckpt"), weights_only=True)
        for name in ("twin", "broken")
    ]
    for key, value in states[0]["state_dict"].items():
        assert torch.equal(value, states[1]["state_dict"][key])


def test_an_image_that_breaks_before_anything_is_saved(
    exit_code: Callable[[list[str]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_parts()
    setup = ImageFolderDataModule.setup

    def setup_and_break(data: ImageFolderDataModule, stage: str) -> None:
        setup(data, stage)
        _ = data.statistics
        for path in sorted(Path("photos/train").glob("*/*.png")):
            path.unlink()

    monkeypatch.setattr(ImageFolderDataModule, "setup", setup_and_break)
    assert exit_code([*FIT, "--data.memory_budget=0"]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert said.startswith("error: photos/train/")
    assert said.endswith(
        " can't be read as an image (No such file or directory): put it back as it was or remove "
        "it, and start again; nothing was saved so far"
    )
