"""The report on several values of a setting, each with several seeds: a table and a figure."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from ..runs.direction import Mode, recorded_mode
from ..runs.files import write_whole
from .comparison import ALPHA
from .seed_report import COLUMNS, SeedNoiseReport
from .statistics import holm, pooled_std, welch
from .tables import table


@dataclass
class SweepReport:
    """The reports on the variants of a config, sorted by their means.

    The best comes first, or the highest if no run records which direction is better.
    """

    name: str
    reports: list[SeedNoiseReport]

    def __post_init__(self) -> None:
        if len({report.records[0].data_sha256 for report in self.reports}) > 1:
            raise ValueError(
                f"the variants of {self.name} have other training or validation images: only runs "
                "on the same images can be compared"
            )
        sign = 1 if self.mode == "min" else -1
        self.reports = sorted(self.reports, key=lambda report: sign * report.mean)

    @property
    def metric(self) -> str:
        return self.reports[0].metric

    @property
    def mode(self) -> Mode | None:
        records = (record for report in self.reports for record in report.records)
        return recorded_mode(self.metric, records)

    def label(self, report: SeedNoiseReport) -> str:
        """Return the swept values, taken from the name of a report."""
        return report.name.removeprefix(f"{self.name}-")

    @cached_property
    def p_values(self) -> list[float]:
        """The p-value of each variant against the best one.

        The values are corrected for all pairs, since the best one was chosen by the same data.
        """
        pairs = list(combinations([report.values for report in self.reports], 2))
        p = [welch(a, b).p if pooled_std(a, b) > 0 else 1.0 for a, b in pairs]
        return [float(value) for value in holm(p)[: len(self.reports) - 1]]

    def __str__(self) -> str:
        first = "best" if self.mode else "highest"
        rows: list[list[Any]] = [[self.metric, *COLUMNS, "epochs", f"p against the {first}"]]
        for report, p in zip(self.reports, [None, *self.p_values], strict=True):
            epochs = f"{mean(record.epochs or 0 for record in report.records):.1f}"
            rows.append(
                [self.label(report), *report.row(), epochs, "" if p is None else f"{p:.2g}"]
            )
        best, *others = map(self.label, self.reports)
        close = [name for name, p in zip(others, self.p_values, strict=True) if p >= ALPHA]
        verdict = (
            f"{best} has the {first} mean, and can't be told from {', '.join(close)} with these "
            "seeds."
            if close
            else f"{best} is {'better' if self.mode else 'higher'} than all others."
        )
        if not self.mode:
            verdict += f" No run records whether a lower or a higher {self.metric} is better."
        note = (
            f"p-values are corrected for all pairs (Holm). The best of {len(self.reports)} looks "
            "better than it is: train it with new seeds, or test it, before its mean is quoted."
        )
        return "\n\n".join([f"# {self.name}: {self.metric}", table(rows), verdict, note])

    def save(self, root: Path) -> Path:
        """Write `<name>-<settings>.md`, `.json` and `.png` next to the folders of the variants."""
        from .curves import to_png  # takes 0.3 s to import
        from .seed_figures import draw_sweep

        settings = re.findall(r"(?:^|-)([A-Za-z_]\w*)=", self.label(self.reports[0]))
        path = root / f"{self.name}-{'-'.join(settings)}.md"
        write_whole(path, f"{self}\n")
        rows = [{"name": report.name, **report.json()} for report in self.reports]
        result = {"metric": self.metric, "p": [None, *self.p_values], "variants": rows}
        write_whole(path.with_suffix(".json"), json.dumps(result, indent=2) + "\n")
        write_whole(path.with_suffix(".png"), to_png(draw_sweep(self)))
        return path
