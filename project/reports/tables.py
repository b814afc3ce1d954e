"""How numbers and tables are written: to the digits that the noise between seeds leaves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scale:
    """How values of a metric are written: accuracies in percent, to two digits of the noise."""

    metric: str
    std: float

    def number(self, value: float) -> str:
        std = self.std * self.factor
        digits = min(max(1 - math.floor(math.log10(std)), 0), 6) if std > 1e-9 else 2
        return f"{value * self.factor:.{digits}f}"

    @property
    def factor(self) -> int:
        return 100 if self.metric.rsplit("/", 1)[-1] == "acc" else 1

    @property
    def percent(self) -> str:
        return " %" if self.factor == 100 else ""

    @property
    def points(self) -> str:
        return " points" if self.factor == 100 else ""

    def difference(self, value: float) -> str:
        return self.number(value) + self.points

    def value(self, value: float) -> str:
        return self.number(value) + self.percent

    def interval(self, low: float, high: float) -> str:
        return f"{self.number(low)} to {self.value(high)}"


def table(rows: Sequence[Sequence[Any]]) -> str:
    """Rows, the first of them the header, as Markdown that reads well as text too."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(map(str.ljust, row, widths)) for row in cells)
    return "\n".join(f"| {line} |" for line in lines)
