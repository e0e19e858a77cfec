"""Memory plan: where in one arena each intermediate result lies.

Greedy by size (Pisarchyk & Lee 2020, arXiv:2001.03288): the largest goes first, each into the
smallest gap between those that live at the same time. Buffers that are written over one another
strip by strip lie at fixed distances, and are placed as one. Where memory comes in segments, such
as buffers of a GPU, each buffer lies in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from smalti.dataclass import dataclass

ALIGNMENT_BYTES = 128
NONE_BEHIND: Mapping[int, tuple[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `size_bytes` that lives from launch `first` to launch `last`, both included."""

    size_bytes: int
    first: int
    last: int


def plan(intervals: Sequence[Interval], alignment: int = ALIGNMENT_BYTES,
         behind: Mapping[int, tuple[int, int]] = NONE_BEHIND,
         segment_bytes: int = 0) -> tuple[list[int], int]:
    """The offset of each buffer in bytes, and the bytes of the arena.

    Two buffers that live at the same time do not overlap; offsets are multiples of `alignment`.
    Where `behind[i]` is (j, distance), buffer i begins `distance` bytes behind the beginning of
    buffer j, rounded up to `alignment`, and these two may overlap. No two are behind the same one.
    None lies across a multiple of `segment_bytes`, unless that is 0. Raises ValueError for a
    negative size, a life that ends before it starts, and what is larger than a segment.

    >>> plan([Interval(100, 0, 1), Interval(300, 1, 2), Interval(100, 2, 3)])
    ([384, 0, 384], 512)
    >>> plan([Interval(1024, 0, 1), Interval(1024, 1, 2)], behind={0: (1, 256)})
    ([256, 0], 1280)
    >>> plan([Interval(512, 0, 0), Interval(384, 0, 0), Interval(128, 0, 0)], segment_bytes=640)
    ([0, 640, 512], 1024)
    """
    for interval in intervals:
        if interval.size_bytes < 0 or interval.last < interval.first:
            raise ValueError(f"{interval} is not a buffer")
    count = len(intervals)
    sizes = [i.size_bytes + -i.size_bytes % alignment for i in intervals]
    chains = _chains(count, alignment, behind)
    spans = {number: max(at + sizes[i] for i, at in chain) for number, chain in chains.items()}
    if segment_bytes and max(spans.values(), default=0) > segment_bytes:
        raise ValueError(f"a buffer of {max(spans.values())} bytes is larger than a segment of "
                         f"{segment_bytes}")
    offsets = [0] * count
    # those placed so far, in order of their offsets
    placed, (starts, ends, firsts, lasts) = 0, np.zeros((4, count), np.int64)
    for number in sorted(chains, key=lambda i: (-spans[i], intervals[i].first, i)):
        chain, span, seen = chains[number], spans[number], []
        for i, at in chain:  # what its other members may not overlap looks as much larger to them
            alive = (firsts[:placed] <= intervals[i].last) & (lasts[:placed] >= intervals[i].first)
            seen.append((starts[:placed][alive] + (span - at - sizes[i]),
                         ends[:placed][alive] - at))
        begins, stops = np.concatenate(seen, axis=1)
        order = np.argsort(begins, kind="stable")
        start = _gap(begins[order], stops[order], span, segment_bytes)
        for i, at in chain:
            offsets[i] = start + at
            place = int(np.searchsorted(starts[:placed], offsets[i]))
            for array, value in ((starts, offsets[i]), (ends, offsets[i] + sizes[i]),
                                 (firsts, intervals[i].first), (lasts, intervals[i].last)):
                array[place + 1:placed + 1] = array[place:placed]
                array[place] = value
            placed += 1
    return offsets, int(ends.max(initial=0))


def _chains(count: int, alignment: int,
            behind: Mapping[int, tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Buffers at fixed distances, by the first of each chain: their numbers and offsets in it."""
    chains: dict[int, list[tuple[int, int]]] = {}
    for number in range(count):
        first, at = number, 0
        while first in behind:
            first, distance = behind[first]
            at += distance + -distance % alignment
        chains.setdefault(first, []).append((number, at))
    return chains


def _gap(starts: np.ndarray, ends: np.ndarray, size: int, segment_bytes: int) -> int:
    """Where in the smallest gap with room for `size` bytes in a segment to begin; behind everything
    when there is none."""
    if not len(starts) or not size:
        return 0
    reached = np.maximum.accumulate(np.concatenate([[0], ends]))
    begins = reached
    if segment_bytes:  # from the next segment on, where this one has no room
        left = -reached % segment_bytes
        begins = np.where((left > 0) & (left < size), reached + left, reached)
    gaps = starts - reached[:-1]
    fitting = np.flatnonzero(starts - begins[:-1] >= size)
    if not len(fitting):
        return int(begins[-1])
    return int(begins[fitting[np.argmin(gaps[fitting])]])


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
