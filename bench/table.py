"""The table that every benchmark prints: what was asked, what was measured, is it enough."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


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
    cells = [("what", "asked", "measured", "ok")]
    cells += [(row.what, row.asked, row.measured, marks[row.ok]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def finish(rows: Sequence[Row], path: Path | None) -> int:
    """Print the table, write it as JSON where asked; the exit code: 1 when a bound is missed."""
    print(show(rows), flush=True)
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any(row.ok is False for row in rows))


def spread(seconds: Sequence[float]) -> str:
    """Median, smallest and largest of repeated times.

    >>> spread([2.0, 1.0, 4.0])
    '2.00 s [1.00 .. 4.00]'
    """
    return f"{statistics.median(seconds):.2f} s [{min(seconds):.2f} .. {max(seconds):.2f}]"
