"""The cost of the monitors in a step of the MLP, in one training that switches them on and off.

It is measured in CPU time on one thread, which other programs disturb less than wall time.

python -m benchmarks.monitors --pairs 100
"""

import argparse
import tempfile
import time
from collections import defaultdict
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L
import torch

from benchmarks.timing import RESULTS, save
from project.callbacks import FiniteCheck, StepMonitor
from project.data import SyntheticDataModule
from project.engine.loggers import run_loggers
from project.models import MLP

BLOCK = 50  # steps, one of which is logged
TARGET = 0.02
KINDS: tuple[type[FiniteCheck | StepMonitor], ...] = (FiniteCheck, StepMonitor)
SETS = {"both": KINDS, **{kind.__name__: (kind,) for kind in KINDS}}


class Turns(L.Callback):
    """Removes the callbacks and puts them back in alternate blocks, and times each step."""

    def __init__(self) -> None:
        self.names = cycle(SETS)
        self.name, self.on = next(self.names), False
        # Keys: the set of monitors, whether they were active, and whether the step was logged.
        self.seconds: dict[tuple[str, bool, bool], list[float]] = defaultdict(list)
        self.begin = 0.0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        logged = trainer.global_step % BLOCK == 0
        if trainer.global_step > BLOCK:  # the first block is a warm-up
            seconds = time.process_time() - self.begin
            self.seconds[self.name, self.on, logged].append(seconds)
        if logged:
            self._turn(trainer)
        self.begin = time.process_time()

    def _turn(self, trainer: L.Trainer) -> None:
        self.name = next(self.names) if self.on else self.name
        self.on = not self.on
        monitors = [kind() for kind in SETS[self.name]] if self.on else []
        for monitor in monitors:
            monitor.on_train_start(trainer, trainer.lightning_module)
        trainer.callbacks = [self, *monitors]  # type: ignore[attr-defined]

    def step_s(self, name: str, on: bool) -> float:
        """Return a block's mean time per step, from the medians of logged and other steps."""
        logged, plain = (median(self.seconds[name, on, kind]) for kind in (True, False))
        return (logged + (BLOCK - 1) * plain) / BLOCK


def measure(pairs: int, run: Path) -> list[dict[str, Any]]:
    """Measure how much more a step costs with each set of monitors."""
    torch.set_num_threads(1)
    turns = Turns()
    # 77 steps per epoch, so that epochs end in blocks of both kinds.
    data = SyntheticDataModule(64 * 77, 64, 0, image_size=16, batch_size=64)
    off = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"logger": run_loggers(run, 0), "callbacks": [turns], **dict.fromkeys(off, False)}
    options |= {"log_every_n_steps": BLOCK, "limit_val_batches": 0, "accelerator": "cpu"}
    steps = BLOCK * (2 * pairs * len(SETS) + 2)
    # As large as the MLP of 784 inputs, within 2 %.
    model = MLP(in_channels=3, image_size=16)
    L.Trainer(max_steps=steps, max_epochs=-1, **options).fit(model, data)  # type: ignore[arg-type]
    rows = []
    for name in SETS:
        with_them, without = turns.step_s(name, True), turns.step_s(name, False)
        ratio = with_them / without - 1
        print(f"{name:12} {ratio:+.2%} of a step of {1e6 * without:.0f} µs")
        row = {"name": f"{name}, share of a step", "ratio": ratio, "target": TARGET}
        rows.append(row | {"met": ratio <= TARGET, "step_us": 1e6 * without, "pairs": pairs})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        rows = measure(pairs, Path(name, "monitors", "version_0"))
    save(f"python -m benchmarks.monitors --pairs {pairs}", rows, RESULTS / "monitors.json")


if __name__ == "__main__":
    main()
