"""The processes that read images: the same batches, and an end in a sentence if one is lost."""

import csv
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from project.commands.cli import main
from project.commands.fit_trainer import run_callbacks
from project.engine import image_files, workers
from project.engine.checkpoint_io import load_checkpoint
from project.engine.failures import user_error
from project.engine.workers import Worker, WorkerError, lost_reader, read_batches

BATCHES = [[3, 1, 4], [1, 5], [9, 2, 6], [5], [3]]


class Acting(Dataset[Tensor]):
    """Images that hold their index; one of them makes the process that reads it do something."""

    def __init__(self, act: Callable[[], Any], at: int, size: int = 8) -> None:
        self.act, self.at, self.size = act, at, size

    def __getitem__(self, index: int) -> Tensor:
        if index == self.at:
            self.act()
        return torch.full((3, self.size, self.size), index, dtype=torch.uint8)


def read(act: Callable[[], Any], at: int = -1, num_workers: int = 2) -> list[list[int]]:
    batches = read_batches(Acting(act, at), BATCHES, num_workers, seed=0)
    return [batch[:, 0, 0, 0].tolist() for batch in batches]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the time limit to half a second without a sign of life."""
    monkeypatch.setattr(workers, "SLICE_S", 0.1)
    monkeypatch.setattr(workers, "SLICES", 5)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 9])
def test_batches_come_in_their_order(num_workers: int) -> None:
    assert read(lambda: None, num_workers=num_workers) == BATCHES


def test_what_is_not_wanted_any_more_is_not_read() -> None:
    batches = read_batches(Acting(lambda: None, 0, size=500), BATCHES, 2, seed=0)
    assert next(batches).shape == (3, 3, 500, 500)
    del batches  # and the fixture sees that the processes are gone


def test_a_killed_process_is_named_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"was killed by signal 9 .* as the system does when mem"):
        read(lambda: os.kill(os.getpid(), signal.SIGKILL), at=9)
    assert time.monotonic() - start < 20


def test_a_process_that_leaves_is_named() -> None:
    with pytest.raises(WorkerError, match=r"ended with exit code 3: set --data.num_workers"):
        read(lambda: os._exit(3), at=2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("act", [stop, lambda: time.sleep(1000)])
def test_a_process_that_hangs_is_named(act: Callable[[], Any]) -> None:
    with pytest.raises(WorkerError, match=r"has read none for .* s: it was stopped, or the disk"):
        read(act, at=6)


@pytest.mark.usefixtures("quick")
def test_a_process_that_is_stopped_while_it_sends_is_named() -> None:
    worker = Worker(Acting(lambda: None, -1, size=1000), [[0, 1, 2]], seed=0)
    try:
        time.sleep(1)  # it has filled its socket, and waits
        os.kill(int(worker._process.pid or 0), signal.SIGSTOP)
        with pytest.raises(WorkerError, match="has read none"):
            worker.receive()
    finally:
        worker.end()


def test_the_bound_is_below_a_minute() -> None:
    assert 30 <= workers.SLICE_S * workers.SLICES < 55


@pytest.mark.usefixtures("quick")
def test_a_slow_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SIGN_EVERY_S", 0.0)

    class Slow(Acting):
        def __getitem__(self, index: int) -> Tensor:
            time.sleep(0.2)
            return super().__getitem__(index)

    (batch,) = read_batches(Slow(stop, -1), [list(range(8))], 1, seed=0)  # 1.6 s
    assert batch[:, 0, 0, 0].tolist() == list(range(8))


def test_errors_are_those_of_the_dataset() -> None:
    class Local(Exception):
        """Which can't be pickled."""

    def fail(error: Exception) -> Any:
        def act() -> None:
            raise error

        return act

    with pytest.raises(ValueError, match=r"^a\.png can't be read$") as bad:
        read(fail(ValueError("a.png can't be read")), at=2)
    assert "in __getitem__" in str(bad.value.__cause__)
    with pytest.raises(ConnectionResetError, match="network drive"):
        read(fail(ConnectionResetError("network drive")), at=2)
    with pytest.raises(RuntimeError, match="Local: what"):
        read(fail(Local("what")), at=2)


def test_signals_that_stop_a_run_do_not_stop_its_readers() -> None:
    def signalled() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)

    assert read(signalled, at=5) == BATCHES


PARENT = """
import time, torch
from project.engine.workers import read_batches

class Images(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return torch.zeros(3, 300, 300, dtype=torch.uint8)

if __name__ == "__main__":
    from multiprocessing import active_children
    batches = read_batches(Images(), [[0, 1]] * 50, 2, 0)
    next(batches)
    print(*(child.pid for child in active_children()), flush=True)
    time.sleep(100)
"""


def test_no_process_outlives_a_parent_that_is_killed() -> None:
    Path("parent.py").write_text(PARENT)
    command = [sys.executable, "parent.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


# In a run


COMMON = ["--data.image_size=16", "--data.batch_size=4", "--data.memory_budget=0"]
COMMON += ["--model=MLP", "--model.hidden_sizes=[8]", "--model.lr_scheduler=ConstantLR"]
COMMON += ["--trainer.max_epochs=2", "--trainer.enable_progress_bar=false", "--preflight=false"]
COMMON += ["--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]
FIT = ["fit", "--config=synthetic", "--data=ImageFolderDataModule", *COMMON, "--data.root=data"]


@pytest.fixture
def images() -> list[Path]:
    """Write a folder of 40 images, `data`, that is read from disk in each epoch."""
    paths = [Path("data", name, f"{k}.png") for name in ("cat", "dog") for k in range(20)]
    for k, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(k).integers(256, size=(16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return paths


def assert_same_end(a: Path, b: Path) -> None:
    states = [load_checkpoint(run / "checkpoints" / "last.ckpt") for run in (a, b)]
    assert states[0]["global_step"] == states[1]["global_step"] > 0
    for name, tensor in states[0]["state_dict"].items():
        assert torch.equal(tensor, states[1]["state_dict"][name]), name
    rows = [list(csv.DictReader((run / "metrics.csv").read_text().splitlines())) for run in (a, b)]
    for row in (*rows[0], *rows[1]):
        del row["images_per_s"]
    assert rows[0] == rows[1]


def act_once(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], at: int) -> None:
    """Do something in the process that reads, before a batch of the command."""
    read_batch = workers._read_batch

    def acting(*args: Any) -> Any:
        done = Path("read").read_text() if Path("read").exists() else ""
        Path("read").write_text(done + ".")
        if len(done) == at:
            act()
        return read_batch(*args)

    monkeypatch.setattr(workers, "_read_batch", acting)


# A batch for the sanity check, then 8 for an epoch and 1 for its validation.
@pytest.mark.parametrize(("at", "step"), [(1, 0), (4, 3), (8, 7), (9, 8), (10, 8), (15, 13)])
def test_a_run_whose_reader_is_killed_resumes_exactly(
    images: list[Path],
    at: int,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    act_once(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL), at)
    assert exit_code([*FIT, "--data.num_workers=1", "--name=killed"]) == 1
    out, err = capsys.readouterr()
    assert "error: a process that reads images was killed by signal 9" in err
    assert "Traceback" not in err
    run = Path("runs/killed/version_0")
    assert (run / "checkpoints" / "last.ckpt").is_file() == (step > 0)
    if step:
        again = "To continue: python -m project fit --run runs/killed/version_0"
        assert f"Saved after step {step}. {again}" in out
        last = load_checkpoint(run / "checkpoints" / "last.ckpt")
        assert last["global_step"] == step
        main(["fit", f"--run={run}"])
        main([*FIT, "--data.num_workers=0", "--name=twin"])
        assert_same_end(run, Path("runs/twin/version_0"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_image_within_a_run_is_one_sentence(
    images: list[Path],
    num_workers: int,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    read_image = image_files.read_image
    broken = False

    def read(path: Path, *args: Any) -> Tensor:
        if broken and path == images[7]:
            raise OSError("broken data stream")
        return read_image(path, *args)

    class Breaks(Callback):
        """Damages an image at the start of the second epoch."""

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            nonlocal broken
            broken = trainer.current_epoch == 1

    monkeypatch.setattr(image_files, "read_image", read)
    monkeypatch.setattr(
        "project.commands.fit_trainer.run_callbacks", lambda *a: [Breaks(), *run_callbacks(*a)]
    )
    args = [*FIT, f"--data.num_workers={num_workers}", "--data.val_size=0.5", "--name=damaged"]
    assert exit_code(args) == 1
    err = capsys.readouterr().err
    error = err.splitlines()[-1]
    assert error.startswith(f"error: {images[7]} can't be read as an image (broken data stream)")
    assert error.endswith("resume the run with python -m project fit --run runs/damaged/version_0")
    assert "Traceback" not in err
    monkeypatch.setattr(image_files, "read_image", read_image)
    main(["fit", "--run=runs/damaged/version_0"])


def test_a_bug_in_a_dataset_keeps_its_traceback() -> None:
    def bug() -> None:
        [][1]

    with pytest.raises(IndexError) as caught:
        read(bug, at=2)
    blamed = user_error(caught.value)
    assert blamed
    assert blamed[1][::2] == (__file__, "bug")
    assert user_error(ValueError("refused")) is None


def test_a_lost_process_of_torch_s_own_loader_is_one_sentence() -> None:
    def die() -> None:
        time.sleep(1)  # the batches before are received, which torch asks the process for
        os.kill(os.getpid(), signal.SIGKILL)

    data = Acting(die, 2)
    loader = DataLoader(data, batch_sampler=[[0], [1], [2]], num_workers=1)
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    assert lost_reader(caught.value).startswith("a process of a DataLoader was lost (")
    assert "--shm-size" in lost_reader(caught.value)
    assert not lost_reader(RuntimeError("another one"))


def test_memory_that_processes_share_may_be_full(images: list[Path]) -> None:
    """In a mount namespace of its own, where /dev/shm has not a byte left."""
    enter = ["unshare", "--mount"]
    mounted = "mount -t tmpfs -o size=4k none /dev/shm"
    try:
        subprocess.run([*enter, "sh", "-c", mounted], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace of its own: {error}")
    command = [sys.executable, "-m", "project", *FIT, "--data.num_workers=2"]
    script = f"{mounted} && (cat /dev/zero >/dev/shm/full; true) && exec {shlex.join(command)}"
    done = subprocess.run([*enter, "sh", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("runs/synthetic/version_0/run.json").read_text())["epochs"] == 2
