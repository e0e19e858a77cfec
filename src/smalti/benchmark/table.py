"""The table that every benchmark prints: what was asked, what was measured, is it enough."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from smalti.dataclass import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement; `ok` is None where nothing is asked and the number is for information."""

    what: str
    asked: str
    measured: str
    ok: bool | None

    @classmethod
    def at_most(cls, what: str, bound: float, value: float, unit: str = "",
                more: str = "") -> Row:
        """A row that asks for a value of at most `bound`.

        >>> Row.at_most("compile", 30, 1.42, " s", "6 threads")
        Row(what='compile', asked='<= 30 s', measured='1.42 s (6 threads)', ok=True)
        """
        said = f"{value:.3g}{unit}" + (f" ({more})" if more else "")
        return cls(what, f"<= {bound:g}{unit}", said, value <= bound)


def show(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    marks = {True: "yes", False: "NO", None: ""}
    return columns([("what", "asked", "measured", "ok"),
                    *((row.what, row.asked, row.measured, marks[row.ok]) for row in rows)])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Cells, the first line of which is the heading, as a table in Markdown.

    >>> print(columns([("work", "ms"), ("decode", "2.5")]))
    | work   | ms  |
    |--------|-----|
    | decode | 2.5 |
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def duration(seconds: float) -> str:
    """Seconds with three digits, in the unit that suits them.

    >>> duration(2.5), duration(0.0314159), duration(12e-6)
    ('2.50 s', '31.4 ms', '12.0 us')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 0.9995:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds * 1e6)} us"


def _three_digits(value: float) -> str:
    return f"{value:.{max(0, 2 - max(0, len(str(int(value))) - 1))}f}"


def spread(seconds: Sequence[float]) -> str:
    """Median, smallest and largest of repeated times.

    >>> spread([2.0, 1.0, 4.0])
    '2.00 s [1.00 s .. 4.00 s]'
    """
    return (f"{duration(statistics.median(seconds))} [{duration(min(seconds))} .. "
            f"{duration(max(seconds))}]")
