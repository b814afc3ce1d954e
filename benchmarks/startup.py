"""Time from the command line to the first training batch, and time of commands that do not train.

Each command is a process of its own, compared with one that only imports Lightning's command line.
Times are wall time; the CPU seconds beside them depend less on how busy the machine is.

python -m benchmarks.startup
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L

from benchmarks.timing import REPEATS, RESULTS, Row, interleave, report, versus
from project.runs.folder import CONFIG, RECORD

ROOT = Path(__file__).parents[1]
IMPORT = ["-c", "import lightning.pytorch.cli"]
PROJECT = ["-m", "project"]
FIT = [*PROJECT, "fit", "--model", "MLP", "--trainer.callbacks+", "benchmarks.startup.FirstBatch"]
GROUPS = ["runs/a", "runs/b"]
WITHOUT_TORCH = "import sys; sys.argv = ['project', *sys.argv[1:]]\n"
WITHOUT_TORCH += "from project.__main__ import console\n"
WITHOUT_TORCH += "import atexit; atexit.register(lambda: print('torch' in sys.modules))\n"
WITHOUT_TORCH += "console()"


class FirstBatch(L.Callback):
    """Ends the process at the end of its first training batch."""

    def on_train_batch_end(self, *_: Any) -> None:
        os._exit(0)


def start(args: list[str], folder: Path) -> tuple[float, float]:
    """Return the wall and CPU seconds that a process takes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *args], cwd=folder, env=environment, capture_output=True, text=True
    )
    wall_s = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s


def imports_torch(args: list[str], folder: Path) -> bool:
    """Return whether a command of the project has loaded torch by the time it ends."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TORCH, *args]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1] == "True"


def make_runs(folder: Path) -> None:
    """Write two groups of five finished runs, as `compare` reads them."""
    for group, accuracy in ((GROUPS[0], 0.8), (GROUPS[1], 0.9)):
        for seed in range(5):
            run = folder / group / f"version_{seed}"
            run.mkdir(parents=True)
            (run / CONFIG).write_text(f"monitor: val/acc\nname: {group}\n")
            record = {"name": group, "version": run.name, "seed": seed, "stopped_by": "max_epochs"}
            record |= {"config_sha256": group, "data_sha256": "", "tested": 0, "epochs": 1}
            record |= {"seconds": 1.0, "best_epoch": 0}
            record |= {"metrics": {"val/acc": accuracy + 0.01 * seed}, "examples": {"val": 1000}}
            (run / RECORD).write_text(json.dumps(record))


def measure(folder: Path, repeats: int) -> list[Row]:
    """Return rows of start-up times, and of whether commands that read files load torch."""
    make_runs(folder)
    commands = {  # with the largest acceptable share of the import's time
        "fit to the first batch, synthetic data, MLP": (FIT, 1.5),
        "the same with --preflight false": ([*FIT, "--preflight", "false"], 1.5),
        "--help": ([*PROJECT, "--help"], 1.25),
        "fit --help": ([*PROJECT, "fit", "--help"], None),
        "compare of 2 × 5 runs": ([*PROJECT, "compare", *GROUPS], 0.5),
        "seed_noise --help": ([*PROJECT, "seed_noise", "--help"], 0.5),
    }
    found = interleave(
        {name: partial(start, args, folder) for name, args in (("import", IMPORT),)}
        | {name: partial(start, args, folder) for name, (args, _) in commands.items()},
        repeats,
    )
    wall = {name: [wall_s for wall_s, _ in pairs] for name, pairs in found.items()}
    cpu = {name: median(cpu_s for _, cpu_s in pairs) for name, pairs in found.items()}
    rows = []
    for name, (args, target) in commands.items():
        facts: dict[str, Any] = {"cpu_ratio": cpu[name] / cpu["import"], "ours_cpu_s": cpu[name]}
        row = versus(name, wall[name], wall["import"], target, **facts)
        if target == 0.5:
            row["imports_torch"] = imports_torch(args[len(PROJECT) :], folder)
            row["met"] = row["met"] and not row["imports_torch"]
        rows.append(row)
    return rows


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), options.repeats)
    report("python -m benchmarks.startup", rows, options.out)


if __name__ == "__main__":
    main()
