"""A disk that fills or a run folder that vanishes ends a run with one sentence and whole files."""

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from project.commands.cli import main
from project.engine.checkpoint_io import load_checkpoint
from project.engine.loggers import RunTensorBoardLogger
from project.runs import files

ROOT = Path(__file__).parents[3]
FIT = ["fit", "--config=synthetic", "--model=MLP", "--data.image_size=8", "--data.train_size=40"]
FIT += ["--data.val_size=20", "--data.batch_size=4", "--preflight=false"]
FIT += ["--trainer.log_every_n_steps=1", "--trainer.enable_progress_bar=false"]
FIT += ["--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
RUN = Path("runs/synthetic/version_0")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MB and yield its folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def look_whole(run: Path) -> None:
    """Check that nothing in a run folder is half-written or left over."""
    paths = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in paths if "partial" in path.name or ".ckpt." in path.name]
    for path in paths:
        if path.name == "run.json":
            assert json.loads(path.read_text())["seed"] == 0
        elif path.suffix == ".ckpt":
            load_checkpoint(path)
        elif path.name == "metrics.csv":
            rows = list(csv.reader(path.read_text().splitlines()))
            assert len({len(row) for row in rows}) <= 1
            assert path.read_text()[-1:] in ("", "\n")
        elif path.name.startswith("events"):
            list(EventFileLoader(str(path)).Load())
        elif path.name == "config.yaml":
            assert path.read_text().rstrip()


@pytest.mark.parametrize("free_kb", [0, 12, 100])
def test_a_disk_that_fills_is_one_sentence(free_kb: int, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        file.write(bytes(shutil.disk_usage(small_disk).free - 4096 * (free_kb // 4)))
    command = [sys.executable, "-m", "project", *FIT, f"--trainer.default_root_dir={small_disk}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    full = subprocess.run(
        [*command, "--trainer.max_epochs=300"], capture_output=True, text=True, env=environment
    )
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    (error,) = [line for line in full.stderr.splitlines() if line.startswith("error: ")]
    assert "No space left on device" in error
    assert str(small_disk) in error, "the file is named"
    look_whole(small_disk)


class Removing(Callback):
    """Removes the run folder, or fills the disk of one of its files, within an epoch."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 13:
            shutil.rmtree(RUN)


def test_a_run_folder_that_goes_is_one_sentence(
    exit_code: Callable[[list[str]], int], capfd: pytest.CaptureFixture[str]
) -> None:
    options = [f"--trainer.callbacks={__name__}.Removing", "--trainer.max_epochs=5"]
    assert exit_code([*FIT, *options]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "No such file or directory" in error
    assert str(RUN) in error
    look_whole(Path("runs"))


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.csv"])
def test_each_file_is_named_if_it_cannot_be_written(
    name: str,
    exit_code: Callable[[list[str]], int],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true = os.fsync

    def full(descriptor: int) -> None:
        if f".{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        true(descriptor)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the names of open files are not known here")
    monkeypatch.setattr(files.os, "fsync", full)
    assert exit_code([*FIT, "--trainer.max_epochs=1"]) == 1
    said = capfd.readouterr().err
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert error.endswith(f"No space left on device: '{RUN / name}'")
    look_whole(Path("runs"))


def test_events_are_written_in_the_thread_that_logs(tmp_path: Path) -> None:
    logger = RunTensorBoardLogger(str(tmp_path), "name", "version_0")
    for step in range(100):
        logger.log_metrics({"x": float(step)}, step)
    logger.save()
    (path,) = (tmp_path / "name" / "version_0").glob("events*")
    found = [event.step for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    assert found == list(range(100))
    size = path.stat().st_size
    shutil.rmtree(tmp_path / "name")
    logger.log_metrics({"x": 0.0}, 100)
    with pytest.raises(FileNotFoundError, match=path.name):
        logger.save()
    logger.finalize("failed")  # which says nothing more
    assert size > 0


def test_a_run_on_a_whole_disk_is_as_before() -> None:
    main([*FIT, "--trainer.max_epochs=1"])
    look_whole(RUN)
