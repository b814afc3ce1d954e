"""Conclusions that may be drawn from comparing two groups of runs."""

from dataclasses import dataclass
from typing import Any

from ..runs.direction import recorded_mode
from .seed_report import SeedNoiseReport
from .statistics import Comparison, pooled_std, seeds_needed
from .tables import Scale

ALPHA = 0.05
MANY = 100  # seeds a side; nobody trains more to show a difference


@dataclass
class Result:
    """The comparison of a group of runs with the first one."""

    groups: tuple[SeedNoiseReport, SeedNoiseReport]
    found: Comparison
    p: float  # p-value, corrected for the number of comparisons
    comparisons: int

    @property
    def metric(self) -> str:
        return self.groups[0].metric

    @property
    def scale(self) -> Scale:
        return Scale(self.metric, (self.found.high - self.found.low) / 2)

    @property
    def verdict(self) -> str:
        """Return a sentence on what may be claimed."""
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
        needed = max(seeds_needed(effect), n[0] + 1)  # Welch's test may need more than the formula
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
        }

    def __str__(self) -> str:
        first, second = (group.name for group in self.groups)
        low, high = self.scale.number(self.found.low), self.scale.difference(self.found.high)
        alone = f" ({self.found.p:.2g} alone)" if self.comparisons > 1 else ""
        return (
            f"{second} against {first}: {self.verdict}.\n"
            f"  difference of the means: {low} to {high} (95 % interval), "
            f"{self.found.effect:+.1f} seed std, p = {self.p:.2g}{alone}"
        )
