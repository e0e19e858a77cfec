"""The kernels of a program as text: a summary that fits a screen, and a list of all of them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from smalti.dataclass import dataclass

LONGEST = 10
"""Kernels that the summary lists one by one; more do not fit a screen beside the other tables."""
COLUMNS = 100
"""Width of the text where no terminal tells its own."""
COLUMNS_MIN = 60
"""The tables need this much: numbers take 40 columns, a form and some of a name the rest."""
INDENT = " " * 7
"""What belongs to a kernel stands below its name, right of its number."""
HOST = "host"
"""The form of an operation that no kernel computes; numpy does, between two kernels."""


@dataclass(frozen=True)
class KernelRow:
    """What is known of one kernel, or of one operation that numpy computes on the host.

    `expected` are the seconds of the timing model and `measured` those of the last run, None where
    nothing is known; `limit` is what bounds the expected time, such as "memory". `seldom` says when
    a kernel runs that is not part of each run. `details` are shown in the list of all kernels.
    """

    number: int
    form: str
    scope: str
    flops: int = 0
    expected: float | None = None
    measured: float | None = None
    limit: str = ""
    seldom: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelTable:
    """All kernels of a program: `title` and `facts` (a line each), then tables of `rows`.

    `run` says what a whole run takes. Times are those measured, where there are any.
    """

    title: str
    facts: Sequence[str]
    rows: Sequence[KernelRow]
    run: str

    def text(self, all: bool = False, columns: int = COLUMNS) -> str:
        """The summary; with `all`, every kernel behind it. No line is longer than `columns`."""
        columns = max(columns, COLUMNS_MIN)
        lines = [line for text in (self.title, *self.facts, self.run) if text
                 for line in wrapped(text, columns)]
        regular = [row for row in self.rows if not row.seldom]
        if regular:
            lines += ["", *self._forms(regular, columns), "", *self._longest(regular, columns)]
        counts = Counter(row.seldom for row in self.rows if row.seldom)
        lines += [""] * bool(counts)
        for when, count in counts.items():
            kernels = "kernels run" if count > 1 else "kernel runs"
            lines += wrapped(f"besides, {count} {kernels} {when}", columns)
        if all:
            lines += ["", *(line for row in self.rows for line in self._whole(row, columns))]
        else:
            lines += ["", *wrapped("`smalti explain --all` or explain(all=True) shows every kernel "
                                   "with its schedule", columns)]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _seconds(self, row: KernelRow) -> float:
        """The time of a kernel as it is compared with others; 0 where none is known."""
        measured = any(other.measured is not None for other in self.rows)
        return (row.measured if measured else row.expected) or 0.0

    def _forms(self, rows: Sequence[KernelRow], columns: int) -> list[str]:
        """A line for each form of kernel: how many, their time, and what limits it."""
        total = sum(map(self._seconds, rows))
        groups: dict[str, list[KernelRow]] = {}
        for row in rows:
            groups.setdefault(row.form, []).append(row)
        width = max(map(len, (*groups, "form")))
        lines = [f"{'form':{width}}  kernels   share        time  limited by"]
        for form, group in sorted(groups.items(), key=lambda item: -sum(map(self._seconds,
                                                                            item[1]))):
            seconds = sum(map(self._seconds, group))
            lines.append(f"{form:{width}}  {len(group):7d}  {_times(seconds, total)}  "
                         f"{self._limits(group)}")
        return [line[:columns] for line in lines]

    def _limits(self, rows: Iterable[KernelRow]) -> str:
        """What limits some kernels, with the share of their time that each limit has."""
        shares: dict[str, float] = {}
        for row in rows:
            if row.limit:
                shares[row.limit] = shares.get(row.limit, 0.0) + self._seconds(row)
        total = sum(shares.values())
        if len(shares) == 1 or not total:
            return next(iter(shares), "")
        most_first = sorted(shares.items(), key=lambda item: -item[1])
        return ", ".join(f"{limit} {share / total:.0%}" for limit, share in most_first
                         if share >= 0.005 * total)  # what would be shown as 0 % is left out

    def _longest(self, rows: Sequence[KernelRow], columns: int) -> list[str]:
        """A line for each of the kernels that take most of the time, or of the arithmetic where no
        time is known."""
        total = sum(map(self._seconds, rows))
        found = sorted(rows, key=lambda row: (-self._seconds(row), -row.flops))[:LONGEST]
        share = sum(map(self._seconds, found)) / total if total else 0.0
        title = (f"the longest {len(found)}, {share:.0%} of the time" if total else
                 f"the {len(found)} with most arithmetic, as no time is known")
        limits, forms = (max(len(text) for text in (*texts, name)) for name, texts in (
            ("limited by", [row.limit for row in found]), ("form", [row.form for row in found])))
        measured = any(row.measured is not None for row in found)
        lines = [title, f"  share        time  {'GFLOP/s  ' * measured}{'limited by':{limits}}  "
                        f"{'number':>6}  {'form':{forms}}  where"]
        for row in found:
            speed = f"{_speed(row):7.1f}  " * measured
            start = (f"{_times(self._seconds(row), total)}  {speed}{row.limit:{limits}}  "
                     f"{row.number:6d}  {row.form:{forms}}  ")
            lines.append(start + ended(row.scope, columns - len(start)))
        return [line[:columns] for line in lines]

    def _whole(self, row: KernelRow, columns: int) -> list[str]:
        """Everything about one kernel, over several lines."""
        times = []
        if row.measured is not None:
            times.append(f"{1e3 * row.measured:.3f} ms {_speed(row):.1f} GFLOP/s")
        if row.expected is not None:
            times.append(f"{1e3 * row.expected:.3f} ms expected, {row.limit}")
        if row.seldom:
            times.append(row.seldom)
        lines = wrapped(f"{row.number:5d}  {row.form}  {row.scope}", columns)
        for text in ("; ".join(times), *row.details):
            lines += wrapped(INDENT + text, columns) if text else []
        return lines


def _times(seconds: float, total: float) -> str:
    """A share of all time and the time itself, 19 columns wide."""
    if not total:
        return f"{'-':>7}  {'-':>10}"
    return f"{100 * seconds / total:5.1f} %  {1e3 * seconds:7.3f} ms"


def _speed(row: KernelRow) -> float:
    """Measured GFLOP/s; the clock is taken to tell no less than a nanosecond."""
    return row.flops / max(row.measured or 0.0, 1e-9) / 1e9


def wrapped(text: str, columns: int) -> list[str]:
    """`text` in lines of at most `columns`, all but the first indented.

    >>> wrapped("memory: weights 2.5 MB, arena 1.0 MB", 24)
    ['memory: weights 2.5 MB,', '       arena 1.0 MB']
    """
    return textwrap.wrap(text, columns, subsequent_indent=INDENT, break_on_hyphens=False,
                         drop_whitespace=True)


def ended(text: str, columns: int) -> str:
    """`text`, or its end where it is too long: the end of a name tells most.

    >>> ended("decoder.up.2.conv", 12)
    '...up.2.conv'
    """
    return text if len(text) <= columns else "..." + text[len(text) - max(columns - 3, 1):]
