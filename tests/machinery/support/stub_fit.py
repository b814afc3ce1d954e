"""A stand-in that leaves the files of `python -m project fit` without training.

It takes the arguments of `fit`, --seconds for its duration, and --fail for the seed that fails.
"""

import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from project.runs.files import write_whole
from project.runs.folder import claim_run
from project.runs.lock import lock_run
from project.runs.record import read_record
from project.runs.settings import config_sha256

OPTIONS = ("seconds", "fail", "lr", "name", "seed_everything", "run")


def write_json(run: Path, record: dict[str, Any]) -> None:
    write_whole(run / "run.json", json.dumps(record))


def main(args: list[str]) -> None:
    split = [arg[2:].split("=", 1) if arg.startswith("--") else [arg] for arg in args]
    words = [word for arg in split for word in arg]
    given = {k: v for k, v in pairwise(words) if k in OPTIONS}
    if "--typo" in args:
        sys.exit("error: unknown option --typo")
    config: dict[str, Any] = {"monitor": "val/loss", "lr": given.get("lr")}
    config["trainer"] = {"default_root_dir": "runs", "devices": 1}
    if "--print_config" in args:
        print(yaml.safe_dump(config | {"run": None}))
        return
    if "--fast_dev_run" in args:
        return
    resumed = Path(given["run"]) if "run" in given else None
    run = resumed or claim_run(Path("runs", given["name"]))
    assert lock_run(run), "another process trains it"
    seed = read_record(run).seed if resumed else int(given["seed_everything"])
    record = {"name": run.parent.name, "version": run.name, "seed": seed, "pid": os.getpid()}
    record |= {"config_sha256": config_sha256(config), "data_sha256": "d", "best_epoch": 0}
    record |= {"threads": os.environ.get("OMP_NUM_THREADS"), "resumed": resumed is not None}
    record |= {"stopped_by": None, "metrics": {}, "seconds": 0.0, "epochs": None}
    record["began"] = time.time()
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    write_json(run, record)
    if given.get("fail") == str(seed):
        print("error: no luck today\n")
        sys.exit(1)

    def stop(signum: int, frame: object) -> None:
        (run / "checkpoints").mkdir(exist_ok=True)
        (run / "checkpoints/last.ckpt").touch()
        write_json(run, record | {"stopped_by": signal.Signals(signum).name})
        sys.exit(128 + signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if not resumed:
        time.sleep(float(given.get("seconds", 0)))
    value = 0.8 + 0.01 * seed + 10 * float(given.get("lr", 0))
    ended = {"stopped_by": "max_epochs", "epochs": 1, "seconds": 1.0, "ended_at": time.time()}
    write_json(run, record | ended | {"metrics": {"val/loss": 1 - value, "val/acc": value}})


if __name__ == "__main__":
    main(sys.argv[1:])
