"""How long launches take, as measured, and how they are cut so that no driver resets the device.

Drivers reset a device on which one submission runs for some seconds (Windows: 2 s; amdgpu of Linux
from 7.0 on: 2 s). Nobody knows how fast a GPU is before it has computed something, so the first
launch of each program begins with a few work-groups, and goes on with as many as the time of those
allows. From then on it is known what a work-group takes: a launch that is longer than a submission
may be is cut into boxes of its grid.

    first = Probe(groups, predicted)
    while (box := first.box()) is not None:
        first.took(seconds of box)
    pipeline.pace.note(first.group_seconds)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from smalti.dataclass import dataclass

SUBMISSION_SECONDS = 0.2
"""Of a submission as measured: a tenth of what the watchdog of Windows allows, so that a device
that others use, or that is hot, stays below `DISPATCH_SECONDS_MAX`."""
DISPATCH_SECONDS_MAX = 0.5
"""No launch may take longer, whatever the device; one that did is cut anew."""
SLOWER = 100
"""Times that a device may be slower than predicted when a program is launched first."""
GROWTH = 8
"""Times that a box may be larger than the one before it, which took next to no time."""
COPIED_BYTES = 1e9
"""Bytes that any device copies in a second: over a bus of one lane of PCIe 3.0."""

MEASURED = 2
"""Times that a program is measured: the first launch of some drivers compiles, or brings memory."""
SLOW_SECONDS = 2 * SUBMISSION_SECONDS
"""A submission that takes longer was cut by a time that no longer holds."""
REVIEWS_MAX = 4
"""Times that a recording is cut anew."""
WATCHED_RUNS = 50
"""Of so many runs in which no clock of the device tells how long submissions take, one waits for
each of them."""
LEAST_SECONDS = 1e-12
"""Of a work-group whose time is known."""

Point = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class GridBox:
    """A part of a launch: work-groups from `base` on, as many along x, y and z as `groups` says."""

    base: Point
    groups: Point

    @property
    def count(self) -> int:
        """Work-groups in it."""
        return math.prod(self.groups)


def whole(groups: Point) -> GridBox:
    """All of a launch."""
    return GridBox((0, 0, 0), groups)


def box_at(groups: Point, begin: int, most: int) -> GridBox:
    """The next box of a grid, of `most` work-groups at most, where those before number `begin`
    (along x, then y, then z) are done: whole planes, else whole rows, else a part of a row. What
    does not fit in one is cut evenly.

    >>> box_at((10, 4, 3), 0, 90)
    GridBox(base=(0, 0, 0), groups=(10, 4, 2))
    >>> box_at((10, 4, 3), 40, 30), box_at((10, 4, 3), 60, 6)
    (GridBox(base=(0, 0, 1), groups=(10, 2, 1)), GridBox(base=(0, 2, 1), groups=(5, 1, 1)))
    """
    width, height, depth = groups
    x, y, z = begin % width, begin // width % height, begin // (width * height)
    most = max(most, 1)
    if not x and not y and most >= width * height:
        return GridBox((0, 0, z), (width, height, _even(depth - z, most // (width * height))))
    if not x and most >= width:
        return GridBox((0, y, z), (width, _even(height - y, most // width), 1))
    return GridBox((x, y, z), (_even(width - x, most), 1, 1))


def _even(left: int, most: int) -> int:
    """The first of as few parts of `left` as there must be when none is larger than `most`."""
    return -(-left // -(-left // most))


def boxes(groups: Point, seconds: float, most: float = SUBMISSION_SECONDS) -> Iterator[GridBox]:
    """A launch that takes so many seconds in boxes that take `most` at most, or one work-group.

    >>> [box.groups for box in boxes((8, 4, 1), 1.0, 0.25)]
    [(8, 1, 1), (8, 1, 1), (8, 1, 1), (8, 1, 1)]
    """
    count, done = math.prod(groups), 0
    fit = count if seconds <= most else int(count * most / seconds)
    while done < count:
        box = box_at(groups, done, fit)
        yield box
        done += box.count


class Pace:
    """What a work-group of a program takes: the least of what was measured; 0 before that."""

    def __init__(self) -> None:
        self.group_seconds, self._measured = 0.0, 0

    @property
    def known(self) -> bool:
        """Whether it has been measured often enough."""
        return self._measured >= MEASURED

    def note(self, group_seconds: float) -> None:
        """It took so long this time."""
        least = min(group_seconds, self.group_seconds) if self._measured else group_seconds
        self.group_seconds, self._measured = max(least, LEAST_SECONDS), self._measured + 1

    def slowed(self, times: float) -> None:
        """It takes so many times longer than that; it is measured anew, by boxes for such a time.
        """
        self.group_seconds *= min(max(times, 1.0), SLOWER)
        self._measured = 0


class Probe:
    """The first launch of a program, whose speed nobody knows: small boxes first.

    `predicted` seconds of all of it are trusted so far that the device is `SLOWER` times slower at
    most; 0 is no prediction, and begins with one work-group.
    """

    def __init__(self, groups: Point, predicted: float) -> None:
        self._groups, self._count, self._done = groups, math.prod(groups), 0
        self._seconds = 0.0
        slow = SLOWER * predicted
        self._most = 1 if not predicted else (
            self._count if slow <= SUBMISSION_SECONDS else
            int(self._count * SUBMISSION_SECONDS / slow))
        self._box: GridBox | None = None

    def box(self) -> GridBox | None:
        """What to launch next; None where all of it has run."""
        self._box = None if self._done >= self._count else box_at(
            self._groups, self._done, self._most)
        return self._box

    def took(self, seconds: float) -> None:
        """The last box has run, for so long."""
        count = self._box.count
        self._done += count
        self._seconds += seconds
        fit = SUBMISSION_SECONDS / max(seconds / count, 1e-12)
        self._most = max(1, int(min(fit, GROWTH * max(count, self._most))))

    @property
    def group_seconds(self) -> float:
        """What a work-group takes: the mean of all, when all have run."""
        return self._seconds / self._done
