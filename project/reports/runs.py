"""Which runs count in a report.

All that are finished do, whatever started them: whoever picks runs finds what they look for.
"""

import glob
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from project.resume import FINISHED
from project.run import CONFIG, RECORD, read_record

REPORT = "seed_noise.json"
ENDED = (*FINISHED, "max_time")
Record = dict[str, Any]


def runs_in(folder: Path) -> list[Path]:
    """The run folders of one name, in the order of their versions."""
    runs = [path.parent for path in folder.glob(f"version_*/{RECORD}")]
    return sorted(runs, key=lambda run: (len(run.name), run.name))


def finished(
    runs: Iterable[Path], metric: str | None = None, sha256: str | None = None
) -> tuple[list[Record], list[str]]:
    """Records of the runs that count, by seed, and why the others do not.

    Args:
        runs: Run folders.
        metric: That the runs must have.
        sha256: Of the config that the runs must have.
    """
    counted: dict[int, Record] = {}
    left_out = []
    for run in runs:
        record = read_record(run) | {"run": str(run)}
        seed, stopped_by = record["seed"], record["stopped_by"]
        value = record["metrics"].get(metric) if metric else 0.0
        twin = counted.get(seed)
        first = next(iter(counted.values()), record)
        if sha256 not in (None, record["config_sha256"]):
            reason = "another config"
        elif stopped_by not in ENDED:
            reason = f"stopped by {stopped_by}" if stopped_by else "not finished"
        elif value is None or not math.isfinite(value):
            reason = f"no {metric}" if value is None else f"{metric} is {value}"
        elif record["data_sha256"] != first["data_sha256"]:
            reason = f"other data than {first['version']}"
        elif twin:
            reason = f"the same seed as {twin['version']}"
        else:
            counted[seed] = record
            continue
        left_out.append(f"{run} (seed {seed}): {reason}")
    return [counted[seed] for seed in sorted(counted)], left_out


def default_metric(records: Sequence[Record]) -> str:
    """Validation accuracy where the runs have it, else what they monitor."""
    if all("val/acc" in record["metrics"] for record in records):
        return "val/acc"
    return str(yaml.safe_load((Path(records[0]["run"]) / CONFIG).read_text())["monitor"])


@dataclass
class Group:
    """Runs of one config, by a name."""

    name: str
    records: list[Record]
    left_out: list[str]
    variants: int = 1  # of the sweep that it is of

    @classmethod
    def of(cls, spec: str, metric: str | None = None) -> "Group":
        """The runs that a word of the command line names.

        Raises:
            ValueError: If fewer than two of them count, or they are of several configs.
        """
        runs, report = find_runs(spec), Path(spec) / REPORT
        known = json.loads(report.read_text()) if report.is_file() else {}
        sha256 = known.get("config_sha256")
        configs = {read_record(run)["config_sha256"]: run.name for run in runs}
        if len(configs) > 1 and sha256 is None:
            such = " and ".join(sorted(configs.values())[:2])
            raise ValueError(
                f"{spec} holds runs of {len(configs)} configs, as {such}: name those of one"
            )
        records, left_out = finished(runs, metric, sha256)
        if len(records) < 2:
            found = "; ".join([f"{len(records)} in {spec}", *left_out])
            test = (
                "; `python -m project test --run FOLDER` adds it"
                if (metric or "")[:5] == "test/"
                else ""
            )
            raise ValueError(f"two finished runs a side are needed, or more: {found}{test}")
        return cls(spec.rstrip("/"), records, left_out, known.get("variants", 1))

    def values(self, metric: str) -> list[float]:
        return [record["metrics"][metric] for record in self.records]

    @cached_property
    def config(self) -> dict[str, Any]:
        path = Path(self.records[0]["run"]) / CONFIG
        config: dict[str, Any] = yaml.safe_load(path.read_text())
        return config


def find_runs(spec: str) -> list[Path]:
    """Run folders by their names, by the folder around them, or by globs, with commas between."""
    runs: list[Path] = []
    for part in spec.split(","):
        paths = [Path(path) for path in sorted(glob.glob(part))]
        found = [run for p in paths for run in ([p] if (p / RECORD).is_file() else runs_in(p))]
        if not found:
            raise ValueError(f"{part} is neither a run folder nor a folder of runs")
        runs += found
    return list(dict.fromkeys(runs))
