"""Memory plan: where in one arena each intermediate result lies.

Greedy by size (Pisarchyk & Lee 2020, arXiv:2001.03288): the largest goes first, each into the
smallest gap between those that live at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT_BYTES = 128


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `size_bytes` that lives from launch `first` to launch `last`, both included."""

    size_bytes: int
    first: int
    last: int


def plan(intervals: Sequence[Interval], alignment: int = ALIGNMENT_BYTES) -> tuple[list[int], int]:
    """The offset of each buffer in bytes, and the bytes of the arena.

    Two buffers that live at the same time do not overlap; offsets are multiples of `alignment`.
    Raises ValueError for a negative size or a life that ends before it starts.

    >>> plan([Interval(100, 0, 1), Interval(300, 1, 2), Interval(100, 2, 3)])
    ([384, 0, 384], 512)
    """
    for interval in intervals:
        if interval.size_bytes < 0 or interval.last < interval.first:
            raise ValueError(f"{interval} is not a buffer")
    count = len(intervals)
    sizes = [i.size_bytes + -i.size_bytes % alignment for i in intervals]
    offsets = [0] * count
    # those placed so far, in order of their offsets
    starts, ends, firsts, lasts = np.zeros((4, count), np.int64)
    order = sorted(range(count), key=lambda i: (-sizes[i], intervals[i].first, i))
    for placed, number in enumerate(order):
        first, last, size = intervals[number].first, intervals[number].last, sizes[number]
        alive = (firsts[:placed] <= last) & (lasts[:placed] >= first)
        start = _gap(starts[:placed][alive], ends[:placed][alive], size)
        offsets[number] = start
        place = int(np.searchsorted(starts[:placed], start))
        for array, value in ((starts, start), (ends, start + size), (firsts, first),
                             (lasts, last)):
            array[place + 1:placed + 1] = array[place:placed]
            array[place] = value
    return offsets, int(ends.max(initial=0))


def _gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Where the smallest gap of at least `size` begins; behind everything when there is none."""
    if not len(starts):
        return 0
    reached = np.concatenate([[0], np.maximum.accumulate(ends)])
    gaps = starts - reached[:-1]
    fitting = np.flatnonzero(gaps >= size)
    if not len(fitting) or size == 0:
        return int(reached[-1]) if size else 0
    return int(reached[fitting[np.argmin(gaps[fitting])]])


def lower_bound(intervals: Sequence[Interval], alignment: int = ALIGNMENT_BYTES) -> int:
    """Bytes that no plan can do without: the most that live at one time.

    >>> lower_bound([Interval(128, 0, 1), Interval(256, 1, 2), Interval(128, 2, 3)])
    384
    """
    changes: dict[int, int] = {}
    for interval in intervals:
        size = interval.size_bytes + -interval.size_bytes % alignment
        changes[interval.first] = changes.get(interval.first, 0) + size
        changes[interval.last + 1] = changes.get(interval.last + 1, 0) - size
    live = most = 0
    for moment in sorted(changes):
        live += changes[moment]
        most = max(most, live)
    return most
