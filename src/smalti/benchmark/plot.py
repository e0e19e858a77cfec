"""Points and curves on logarithmic axes, as drawings of `chart.py`.

    drawing = plot([Series("model", ((1, 1.2), (10, 1.1)))], "title", "measured", "over the best")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

from smalti.benchmark.chart import FAINT, MARGIN, OTHERS, OURS, Dot, Drawing, Line, Shape, Words
from smalti.dataclass import dataclass

COLORS = (OURS, OTHERS[0], OTHERS[1], "#1c7ed6", "#2f9e44", "#ae3ec9")
SIDE = 360
"""Pixels: the height of the rectangle that the axes enclose, and its width if none is given."""
LEFT, TOP, BOTTOM = 64, 84, 44
"""Pixels around it, for the numbers and title of an axis, the title with the legend, and the other
axis."""
STEPS = ((1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0,))
"""Round values of a decade, for scales of up to one, up to three, and more decades."""
DOTTED_MAX = 24
"""Curves of at most so many points have each marked by a dot; dots of more would touch."""
GRID = "#e9ecef"
"""The colour of lines behind the curves: a light grey."""


@dataclass(frozen=True)
class Series:
    """Points (x, y), all above 0, as dots or joined."""

    name: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True


@dataclass(frozen=True)
class Axis:
    """A logarithmic scale from `low` to `high` over `length` pixels, from `start` on."""

    low: float
    high: float
    start: float
    length: float

    def place(self, value: float) -> float:
        """Where a value lies."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + self.length * share

    def ticks(self) -> list[float]:
        """Round values on it."""
        wide = math.log10(self.high / self.low)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = STEPS[(wide > 1) + (wide > 3)]
        values = [step * 10.0**decade for decade in decades for step in steps]
        return [value for value in values if self.low <= value <= self.high]


def plot(series: Sequence[Series], title: str, x_title: str, y_title: str,
         width: int = SIDE, diagonal: bool = False) -> Drawing:
    """A drawing of the series with a legend; `diagonal` marks where y is x, on equal axes."""
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points]
    if diagonal:
        xs = ys = [*xs, *ys]
    across = Axis(*_range(xs), LEFT, width)
    up = Axis(*_range(ys), TOP + SIDE, -SIDE)
    shapes: list[Shape] = [Words(MARGIN, 26, title, 18, bold=True)]
    for value in across.ticks():
        x = across.place(value)
        shapes += [Line(((x, TOP), (x, TOP + SIDE)), GRID, 1),
                   Words(x, TOP + SIDE + 14, f"{value:g}", 11, FAINT, "middle")]
    for value in up.ticks():
        y = up.place(value)
        shapes += [Line(((LEFT, y), (LEFT + width, y)), GRID, 1),
                   Words(LEFT - 6, y, f"{value:g}", 11, FAINT, "end")]
    shapes += [Words(LEFT + width, TOP + SIDE + 32, x_title, 12, anchor="end"),
               Words(MARGIN, TOP - 12, y_title, 12)]
    if diagonal:
        ends = (across.low, across.high)
        shapes.append(Line(tuple((across.place(end), up.place(end)) for end in ends), FAINT, 1))
    x = MARGIN
    for each, color in zip(series, cycle(COLORS), strict=False):
        places = tuple((across.place(a), up.place(b)) for a, b in each.points)
        shapes += [Line(places, color)] if each.joined and len(places) > 1 else []
        if not each.joined or len(places) <= DOTTED_MAX:
            shapes += [Dot(*place, 3.5 if each.joined else 2.5, color) for place in places]
        shapes += [Dot(x + 5, 52, 5, color), Words(x + 16, 52, each.name, 12)]
        x += 36 + 7 * len(each.name)
    return Drawing(max(LEFT + width, x) + MARGIN, TOP + SIDE + BOTTOM, tuple(shapes))


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From a little below the least to a little above the largest."""
    low, high = min(values), max(values)
    room = max((high / low) ** 0.04, 1.01)
    return low / room, high * room
