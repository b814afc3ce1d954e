"""The report on runs of one config that differ in their seed: `seed_noise.md`, `.json`, `.png`.

The report is made only from run folders.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.files import write_whole
from ..runs.folder import read_config
from ..runs.names import PROGRAM
from ..runs.record import Record
from ..runs.sets import REPORT, find_runs, finished, read_runs
from .statistics import detectable_effect, sampling_std, seeds_needed, t_interval
from .tables import Scale, table

COLUMNS = ("n", "mean", "95 % interval", "seed std")
SETS = {"val": "validation", "test": "test", "train": "training"}


@dataclass
class SeedNoiseReport:
    """The distribution of a metric over the seeds of one config."""

    name: str
    metric: str
    records: list[Record]
    left_out: list[str]
    variants: int = 1  # number of variants that were tried, this one included

    @classmethod
    def of(
        cls,
        spec: str | Path,
        metric: str | None = None,
        sha256: str | None = None,
        variants: int = 1,
    ) -> "SeedNoiseReport":
        """Return the report on the runs of one config.

        Args:
            spec: Folder of runs, or anything else that `find_runs` accepts.
            metric: Name of the metric; by default val/acc, or else the metric that the runs
                monitor.
            sha256: Hash of the config; it may be left out if there is only one.
            variants: Number of variants that were tried, this one included.

        Raises:
            ValueError: If fewer than two of the runs count, or if they are of several configs.
        """
        runs = find_runs(str(spec))
        configs = {r.config_sha256: r.run.name for r in read_runs(runs)[0]}
        if len(configs) > 1 and sha256 is None:
            such = " and ".join(sorted(configs.values())[:2])
            raise ValueError(
                f"{spec} holds runs of {len(configs)} configs, as {such}: name those of one"
            )
        records, left_out = finished(runs, metric, sha256)
        if records and metric is None:
            accurate = all("val/acc" in record.metrics for record in records)
            metric = "val/acc" if accurate else read_config(records[0].run)["monitor"]
            records, left_out = finished(runs, metric, sha256)
        if len(records) < 2:
            found = "; ".join([f"{len(records)} in {spec}", *left_out])
            if (metric or "").startswith("test/"):
                found += f"; `{PROGRAM} test --run FOLDER` adds it"
            raise ValueError(f"seed noise takes two finished runs or more: {found}")
        return cls(Path(spec).name, str(metric), records, left_out, variants)

    @cached_property
    def values(self) -> list[float]:
        return [record.metrics[self.metric] for record in self.records]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @cached_property
    def std(self) -> float:
        return float(np.std(self.values, ddof=1))

    @cached_property
    def ci95(self) -> list[float]:
        return [float(end) for end in t_interval(self.values)]

    @cached_property
    def detectable(self) -> float:
        """The smallest difference that two sets of this many runs detect with 80 % power."""
        return detectable_effect(len(self.values)) * self.std

    @property
    def sampling_std(self) -> float | None:
        """Standard deviation of an accuracy due to the choice of examples; None if unknown."""
        number = self._examples
        accuracy = self.metric.rsplit("/", 1)[-1] == "acc"
        return sampling_std(self.mean, number) if accuracy and number else None

    @property
    def _examples(self) -> int | None:
        return self.records[0].examples.get(self.metric.split("/")[0])

    def row(self) -> list[Any]:
        """Return the report's row for a table of several reports, with the columns `COLUMNS`."""
        scale = Scale(self.metric, self.std)
        mean, std = scale.value(self.mean), scale.difference(self.std)
        return [len(self.values), mean, scale.interval(*self.ci95), std]

    def json(self) -> dict[str, Any]:
        """Return the content of `seed_noise.json`."""
        keys = ("seed", "best_epoch", "epochs", "seconds", "metrics")
        return {
            "metric": self.metric,
            "seeds": [record.seed for record in self.records],
            "values": self.values,
            "mean": self.mean,
            "std": self.std,
            "min": min(self.values),
            "max": max(self.values),
            "ci95": self.ci95,
            "detectable_at_80": self.detectable,
            "sampling_std": self.sampling_std,
            "variants": self.variants,
            "config_sha256": self.records[0].config_sha256,
            "data_sha256": self.records[0].data_sha256,
            "runs": [
                {"run": str(r.run), **{key: getattr(r, key) for key in keys}} for r in self.records
            ],
            "left_out": self.left_out,
        }

    def __str__(self) -> str:
        scale, n = Scale(self.metric, self.std), len(self.values)
        title = f"{scale.number(self.mean)} ± {scale.value(self.std)}"
        parts = [f"# {self.name}: {self.metric} {title} ({n} seeds)", self._runs(), self._summary()]
        if self.std:
            effects = (0.5, 1, 2)
            sizes = ", ".join(scale.number(effect * self.std) for effect in effects)
            needed = ", ".join(str(seeds_needed(effect)) for effect in effects)
            parts.append(
                f"Seeds a side that show a difference of {sizes}{scale.points} (0.5, 1, 2 standard "
                f"deviations) at 80 % power: {needed}."
            )
        if self.metric.startswith("val/"):
            parts.append(
                "The best epochs were picked on the same validation images, which flatters all "
                "runs a little: validation picks, test reports."
            )
        if self.left_out:
            parts.append("\n".join(["Left out:", "", *(f"- {line}" for line in self.left_out)]))
        return "\n\n".join(parts)

    def _runs(self) -> str:
        names = list(dict.fromkeys(["val/loss", "val/acc", self.metric]))
        names = [name for name in names if all(name in r.metrics for r in self.records)]
        rows: list[list[Any]] = [["seed", "best epoch", *names, "seconds", "run"]]
        columns = {name: [r.metrics[name] for r in self.records] for name in names}
        scales = [Scale(name, float(np.std(v, ddof=1))) for name, v in columns.items()]
        for r in self.records:
            metrics = [scale.value(r.metrics[scale.metric]) for scale in scales]
            best = "" if r.best_epoch is None else r.best_epoch + 1
            rows.append([r.seed, best, *metrics, f"{r.seconds:.0f}", r.version])
        return table(rows)

    def _summary(self) -> str:
        scale, n = Scale(self.metric, self.std), len(self.values)
        low, high = min(self.values), max(self.values)
        rows = [
            [self.metric, f"over {n} seeds"],
            ["mean", scale.value(self.mean)],
            ["95 % interval of the mean (Student's t)", scale.interval(*self.ci95)],
            ["standard deviation (n − 1)", scale.difference(self.std)],
            ["range", f"{scale.interval(low, high)}, {scale.difference(high - low)}"],
        ]
        if self.sampling_std is not None:
            name = f"sampling std of {self._examples:,} {SETS[self.metric.split('/')[0]]} images"
            rows.append([name, scale.difference(self.sampling_std)])
        shown = f"smallest difference that {n} seeds a side show (80 % power)"
        rows.append([shown, scale.difference(self.detectable)])
        return table(rows)

    def save(self, folder: Path) -> None:
        """Write `seed_noise.md`, `seed_noise.json` and `seed_noise.png` into a folder."""
        from .curves import to_png  # takes 0.3 s to import
        from .seed_figures import draw_seeds

        path = folder / REPORT
        write_whole(path.with_suffix(".md"), f"{self}\n")
        write_whole(path, json.dumps(self.json(), indent=2) + "\n")
        write_whole(path.with_suffix(".png"), to_png(draw_seeds(self)))
