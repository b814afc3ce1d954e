"""Compare a training that is killed with kill -9 with its uninterrupted twin, and time a save.

python -m benchmarks.resume --kills 20
"""

import argparse
import io
import json
import os
import random
import sys
import tempfile
import time
from functools import partial, partialmethod
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from typing import Any

import lightning as L
import torch
from torch.optim import SGD

from benchmarks.timing import RESULTS, save
from project.callbacks import RNGState
from project.data import SyntheticDataModule
from project.engine.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from project.models import MLP, ResNet18, Task
from project.runs.folder import LAST, RECORD

ROOT = Path(__file__).parents[1]
RUN, TRACE = Path("runs/synthetic/version_0"), Path("trace.txt")
FIT = ["fit", "--config", "synthetic", "--model", "MLP", "--data.image_size", "16"]
FIT += ["--trainer.max_epochs", "200", "--trainer.log_every_n_steps", "5"]
RESUME = [*FIT, "--ckpt_path", "last", "--checkpoint.every_n_steps", "5"]
RESUME += ["--trainer.callbacks+", "benchmarks.resume.Trace"]


class Trace(L.Callback):
    """Writes the progress of the run to a file, for the process that kills it."""

    def _write(self, phase: str, trainer: L.Trainer, *_: Any) -> None:
        with TRACE.open("r+" if TRACE.exists() else "w") as file:
            file.write(f"{trainer.current_epoch} {trainer.global_step} {phase}".ljust(40))

    on_train_start = partialmethod(_write, "start")
    on_train_batch_start = partialmethod(_write, "training step")
    on_train_batch_end = partialmethod(_write, "between steps")
    on_validation_start = partialmethod(_write, "validation")
    on_save_checkpoint = partialmethod(_write, "saving")


def start(args: list[str], folder: Path) -> Popen[bytes]:
    # One thread: with a network this small, two would wait for each other on a busy machine.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "project", *args]
    return Popen(command, cwd=folder, env=environment, stdout=DEVNULL, stderr=DEVNULL)


def kill_once(folder: Path, wait_s: float) -> dict[str, Any]:
    """Start or resume, kill -9 some time after training has begun, and load what was saved."""
    trace, last = folder / TRACE, folder / RUN / LAST
    trace.unlink(missing_ok=True)
    process = start(RESUME, folder)
    while not (trace.exists() and trace.stat().st_size) and process.poll() is None:
        time.sleep(0.001)
    time.sleep(wait_s)
    process.kill()
    assert process.wait() < 0, "the run ended by itself"
    epoch, step, phase = trace.read_text().split(maxsplit=2)
    saved = load_checkpoint(last)["global_step"] if last.exists() else 0
    return {"epoch": int(epoch), "step": int(step), "phase": phase.strip(), "saved_step": saved}


def difference(a: Any, b: Any) -> float:
    """Return the largest difference between the numbers of two nested dicts or lists."""
    if isinstance(a, dict):
        return difference([*a, *a.values()], [*b, *b.values()])
    if isinstance(a, list | tuple):
        return max(map(difference, a, b), default=0.0) if len(a) == len(b) else float("inf")
    if isinstance(a, torch.Tensor):
        return float((a.double() - b.double()).abs().nan_to_num(float("inf")).max())
    return abs(a - b) if isinstance(a, int | float) else 0.0 if a == b else float("inf")


def end(run: Path) -> list[Any]:
    """Return everything that must not depend on interruptions: states, metrics and record."""
    last, record = load_checkpoint(run / LAST), json.loads((run / RECORD).read_text())
    assert record["stopped_by"] == "max_epochs"
    states = [last[key] for key in ("state_dict", "optimizer_states", "lr_schedulers")]
    states += [last["callbacks"]["RNGState"], last["SyntheticDataModule"]]
    return [*states, record["metrics"], (run / "metrics.csv").read_text()]


def kills(number: int, root: Path) -> dict[str, Any]:
    """Return where each kill fell, and the largest difference from the twin at the end."""
    twin, killed = (Path(tempfile.mkdtemp(dir=root)) for _ in range(2))
    start(FIT, twin).wait()
    rng, rows = random.Random(0), []
    print("kill  epoch   step  phase          last saved step")
    for k in range(1, number + 1):
        rows.append(kill_once(killed, 1.5 * rng.random()))
        print(f"{k:4} " + "{epoch:6} {step:6}  {phase:13} {saved_step:16}".format(**rows[-1]))
    start(RESUME, killed).wait()
    largest = difference(end(twin / RUN), end(killed / RUN))
    print(f"largest difference to the twin after {number} kill -9: {largest}")
    row = {"name": f"largest difference after {number} kill -9", "ratio": largest, "target": 0.0}
    return row | {"met": largest == 0, "kills": rows}


def save_cost(model: Task, image_size: int, root: Path) -> dict[str, Any]:
    """Measure a checkpoint's size and median time, and the RNG and loader state's share of both."""
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    data = SyntheticDataModule(image_size=image_size, batch_size=8)
    rng, options = RNGState(), {"plugins": [AtomicCheckpointIO()], **dict.fromkeys(off, False)}
    trainer = L.Trainer(max_steps=1, callbacks=[rng], **options)  # type: ignore[arg-type]
    trainer.fit(model, data)
    path, seconds = root / "save.ckpt", []
    for _ in range(21):
        begin = time.perf_counter()
        trainer.save_checkpoint(path, weights_only=False)
        middle = time.perf_counter()
        torch.save([rng.state_dict(), data.state_dict()], part := io.BytesIO())
        seconds.append([middle - begin, time.perf_counter() - middle])
    save_s, part_s = (median(column) for column in zip(*seconds, strict=True))
    size, part_size = path.stat().st_size, part.tell()
    print(f"{type(model).__name__}: {size / 1e6:.2f} MB in {1e3 * save_s:.1f} ms, of which RNG and")
    print(f"  loader state {part_size / size:.2%} and {part_s / save_s:.2%}")
    row = {"name": f"RNG and loader state in a save of {type(model).__name__}", "target": 0.1}
    row |= {"ratio": part_s / save_s, "met": part_s / save_s <= 0.1, "save_s": save_s}
    return row | {"bytes": size, "size_ratio": part_size / size}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    number = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as name:
        mlp = MLP(in_channels=3, image_size=16)  # as large as that of 784 inputs, within 2 %
        resnet = ResNet18(width=64, optimizer=partial(SGD, lr=0.1, momentum=0.9))
        root = Path(name)
        rows = [kills(number, root), save_cost(mlp, 16, root), save_cost(resnet, 32, root)]
    save(f"python -m benchmarks.resume --kills {number}", rows, RESULTS / "resume.json")


if __name__ == "__main__":
    main()
