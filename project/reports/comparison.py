"""What a comparison of two groups of runs allows to say."""

import csv
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runs.direction import recorded_mode
from ..runs.files import read_bytes
from ..runs.folder import PREDICTIONS
from .seed_report import SeedNoiseReport
from .statistics import Comparison, mcnemar, pooled_std, seeds_needed
from .tables import Scale

ALPHA = 0.05
MANY = 100  # seeds a side that nobody trains to see a difference


@dataclass
class Result:
    """The comparison of a group with the first one."""

    groups: tuple[SeedNoiseReport, SeedNoiseReport]
    found: Comparison
    p: float  # corrected for the number of comparisons
    comparisons: int

    @property
    def metric(self) -> str:
        return self.groups[0].metric

    @property
    def scale(self) -> Scale:
        return Scale(self.metric, (self.found.high - self.found.low) / 2)

    @property
    def verdict(self) -> str:
        """What may be claimed, in words."""
        found, scale = self.found, self.scale
        mode = recorded_mode(self.metric, (r for group in self.groups for r in group.records))
        names = [group.name for group in self.groups]
        worse, better = names if (found.difference > 0) == (mode != "min") else reversed(names)
        superior = "better" if mode else "higher (whether that is better is not recorded)"
        by = f"{scale.number(abs(found.difference))} ± {scale.difference(scale.std)}"
        if self.p < ALPHA:
            return f"{better} is {superior} than {worse} by {by}"
        if found.p < ALPHA:
            return (
                f"no difference can be claimed after {self.comparisons} comparisons: {better} "
                f"looks {superior} than {worse} by {by}, with p = {found.p:.2g} alone and "
                f"{self.p:.2g} corrected"
            )
        values = [group.values for group in self.groups]
        n, effect = sorted({len(v) for v in values}), abs(found.effect)
        measured = effect > 0 and seeds_needed(effect) <= MANY
        effect = effect if measured else 0.5
        needed = max(seeds_needed(effect), n[0] + 1)  # Welch's test may need more than its model
        shown = effect * pooled_std(*values)
        return (
            f"no difference can be seen at n = {' and '.join(map(str, n))}; {needed} seeds a side "
            f"would show {Scale(self.metric, shown).difference(shown)}"
            + (", the one measured" if measured else "")
        )

    def json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "n": [len(group.values) for group in self.groups],
            "mean": [group.mean for group in self.groups],
            "difference": float(self.found.difference),
            "ci95": [float(self.found.low), float(self.found.high)],
            "p": float(self.p),
            "verdict": self.verdict,
            "groups": [group.name for group in self.groups],
            "effect": float(self.found.effect),
            "p_alone": float(self.found.p),
            "mcnemar": disagreement(*self.groups),
        }

    def __str__(self) -> str:
        first, second = (group.name for group in self.groups)
        low, high = self.scale.number(self.found.low), self.scale.difference(self.found.high)
        alone = f" ({self.found.p:.2g} alone)" if self.comparisons > 1 else ""
        lines = [
            f"{second} against {first}: {self.verdict}.",
            f"  difference of the means: {low} to {high} (95 % interval), "
            f"{self.found.effect:+.1f} seed std, p = {self.p:.2g}{alone}",
        ]
        if seen := disagreement(*self.groups):
            lines.append(
                f"  of the same {seen['examples']:,} test images, {seen['only_second']:,} are "
                f"right with {second} alone and {seen['only_first']:,} with {first} alone: "
                f"p = {seen['p']:.2g} (McNemar, on the median run of each and not on the seeds)"
            )
        return "\n".join(lines)


def disagreement(a: SeedNoiseReport, b: SeedNoiseReport) -> dict[str, Any] | None:
    """McNemar's test on the predictions of each group's median run, where both are saved.

    Of one pair only: the pairs of all runs are of the same images, so that their p-values could
    not be combined, and which seed stands against which would be arbitrary.
    """
    rows = [_median_predictions(group) for group in (a, b)]
    if not rows[0] or not rows[1]:
        return None
    if [row[:2] for row in rows[0]] != [row[:2] for row in rows[1]]:
        raise ValueError(f"the predictions of {a.name} and {b.name} are of other images")
    right = np.array([[label == said for _, label, said, *_ in group] for group in rows])
    first, second = (int((right[i] & ~right[1 - i]).sum()) for i in (0, 1))
    counts = {"examples": len(rows[0]), "only_first": first, "only_second": second}
    return counts | {"p": mcnemar(first, second)}


def _median_predictions(group: SeedNoiseReport) -> list[list[str]]:
    """Index, label and prediction of each image, by the median of the runs that predicted."""
    files = [
        (value, path)
        for value, record in zip(group.values, group.records, strict=True)
        if (path := record.run / PREDICTIONS).is_file()
    ]
    if not files:
        return []
    _, path = sorted(files)[(len(files) - 1) // 2]
    try:
        text = read_bytes(path).decode("utf-8", "surrogateescape")
        rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    except csv.Error as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if any(len(row) < 3 for row in rows):
        raise ValueError(f"{path} is damaged: it has rows without a label and a prediction")
    return rows
