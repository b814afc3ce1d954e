"""Run folders written by hand."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

OLDEST: dict[str, Any] = {  # what every version has written
    **{"name": "a", "version": "version_0", "seed": 3, "config_sha256": "c", "data_sha256": None},
    **{"seconds": 2, "epochs": None, "best_epoch": None, "stopped_by": None, "metrics": {}},
}


def write_runs(folder: Path, values: Sequence[float], **more: Any) -> None:
    """Write a finished run for each validation accuracy, with seeds from 0 or from `first_seed` on.

    All other arguments are written into each record.
    """
    first = more.pop("first_seed", 0)
    metrics = more.pop("metrics", {})
    for seed, value in enumerate(values, start=first):
        run = folder / f"version_{seed}"
        run.mkdir(parents=True)
        record = {"name": folder.name, "version": run.name, "seed": seed, "best_epoch": 1}
        record |= {"config_sha256": "c", "data_sha256": "d", "seconds": 7.4, "epochs": 3}
        record |= {"stopped_by": "max_epochs", "examples": {"val": 2000}}
        record |= {"metrics": {"val/loss": 1 - value, "val/acc": value, **metrics}, **more}
        (run / "run.json").write_text(json.dumps(record))
        config = {"monitor": "val/loss", "data": {"init_args": {"val_size": 2000}}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        with (run / "metrics.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["epoch", "step", "train/loss", "val/acc"])
            for epoch in range(3):
                writer.writerow([epoch, 10 * epoch + 9, "", value - 0.1 + epoch / 20])
                writer.writerow([epoch, 10 * epoch + 9, 0.5, ""])
