"""Numbers and tables as text, with as many digits as the noise between seeds justifies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

KEPT = 3  # number of columns always shown: run, monitored metric or sorted column, status
LONG = 32  # characters to which the name of a run is shortened to make room for another column
NARROWEST = 8  # fewest characters of a shortened column


@dataclass(frozen=True)
class Scale:
    """Formats values of a metric: accuracies in percent, and all to two digits of the noise."""

    metric: str
    std: float

    def number(self, value: float) -> str:
        std = self.std * self.factor
        digits = min(max(1 - math.floor(math.log10(std)), 0), 6) if std > 1e-9 else 2
        return f"{value * self.factor:.{digits}f}"

    @property
    def factor(self) -> int:
        return 100 if "acc" in self.metric.split("/") else 1

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
    """Return rows, the first of which is the header, as Markdown that is also readable as text."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(map(str.ljust, row, widths)) for row in cells)
    return "\n".join(f"| {line} |" for line in lines)


def fit(cells: list[list[str]], wanted: Sequence[str], width: int) -> list[list[str]]:
    """Return the wanted columns that fit into `width` characters; the first ones always stay.

    If the columns are still too wide, the widest column is shortened first.
    """
    widths = {column[0]: max(map(len, column)) for column in zip(*cells, strict=True)}
    least = widths | {"run": min(widths["run"], LONG)}
    kept: list[str] = []
    for name in dict.fromkeys(wanted):
        if len(kept) < KEPT or 1 + sum(least[k] + 3 for k in [*kept, name]) <= width:
            kept.append(name)
    room = {name: widths[name] for name in kept}
    while 1 + sum(size + 3 for size in room.values()) > width and max(room.values()) > NARROWEST:
        room[max(room, key=room.__getitem__)] -= 1
    shown = [(cells[0].index(name), room[name]) for name in cells[0] if name in kept]
    return [[shorten(row[i], size) for i, size in shown] for row in cells]


def shorten(text: str, size: int) -> str:
    """Return a text with its middle cut out if it is longer than `size` characters."""
    if len(text) <= size:
        return text
    end = (size - 1) // 2
    return f"{text[: size - 1 - end]}…{text[len(text) - end :]}"
