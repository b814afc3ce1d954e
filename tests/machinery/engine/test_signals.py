"""A signal at any moment ends a command in seconds, with its code and one true sentence."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_resume_processes import LAST, MLP, RUN, Process, saved_since, stop

from project.runs.folder import absent, claim_run, release_run

ROOM = Path("runs/synthetic")


def maps(process: Process) -> str:
    """Return what is loaded into a process."""
    return Path(f"/proc/{process.process.pid}/maps").read_text()


# What can be seen of a process when it has come to that point, and what it is sent then.
MOMENTS: dict[str, tuple[Callable[[Process, Path], bool], int]] = {
    "the import of torch": (lambda process, _: "libtorch_cpu" in maps(process), signal.SIGINT),
    "setup": (lambda _, folder: any(folder.rglob(".lock")), signal.SIGTERM),
    "pre-flight": (lambda process, _: "Pre-flight" in process.log.read_text(), signal.SIGUSR1),
}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
@pytest.mark.parametrize("moment", MOMENTS)
def test_before_training_it_leaves_nothing(moment: str, tmp_path: Path) -> None:
    reached, signum = MOMENTS[moment]
    process = Process(MLP, tmp_path)
    process.until(lambda: reached(process, tmp_path))
    code, output = process.send(signum).end(20)
    assert code == 128 + signum, output
    assert "Traceback" not in output
    assert output.endswith(f"Stopped by {signal.Signals(signum).name}.\n")
    assert "Saving" not in output
    assert {path.name for path in tmp_path.iterdir()} <= {"log.txt"}


@pytest.mark.slow
def test_after_training_it_does_not_wait(tmp_path: Path) -> None:
    """In the last pictures, of which there are many more than a second's."""
    args = [*MLP, "--preflight", "false", "--trainer.max_epochs", "1"]
    code = (
        "import sys, time, project.callbacks.pictures as p\n"
        "p.PredictionGrid._draw = lambda *_: (print('drawing', flush=True), time.sleep(60))\n"
        "sys.argv = ['project', *sys.argv[1:]]\n"
        "from project.__main__ import console; console()\n"
    )
    process = Process(args, tmp_path, code)
    process.until(lambda: "drawing" in process.log.read_text())
    code_, output = process.send(signal.SIGTERM).end(10)
    assert (code_, "Traceback" in output, "Saving" in output) == (143, False, False), output
    assert f"To continue: python -m project fit --run {RUN}" in output


@pytest.mark.slow
def test_the_processes_that_read_images_leave_signals_to_the_run(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 8, 8, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        path = tmp_path / f"images/train/{'ab'[i % 2]}/{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    args = ["fit", "--config", "image_folder", "--name", "synthetic", "--data.root", "images"]
    args += ["--data.image_size", "8", "--data.memory_budget", "0", "--data.num_workers", "2"]
    args += ["--data.batch_size", "8", "--model", "MLP", "--trainer.max_epochs", "500"]
    args += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    args += ["--preflight", "false"]
    process = Process(args, tmp_path).until(saved_since(tmp_path / LAST))
    stop(process, signal.SIGTERM, 20)


def test_runs_that_start_while_others_are_released(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(150):
                around = absent(tmp_path / ROOM)
                release_run(claim_run(tmp_path / ROOM), around)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_folders_of_the_user_stay(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    around = absent(tmp_path / ROOM)
    release_run(claim_run(tmp_path / ROOM), around)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert not list((tmp_path / "runs").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="can't make a run folder|Not a directory"):
        claim_run(tmp_path / "file")
    os.symlink("nowhere", tmp_path / "dangling")
    with pytest.raises(OSError, match="can't make a run folder"):
        claim_run(tmp_path / "dangling")
