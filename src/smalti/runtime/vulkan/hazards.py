"""Which commands may run beside those before them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

Range = tuple[int, int, int]
"""A buffer (any number that names it), where the bytes begin in it, and where they end."""

PENDING_MAX = 64
"""Commands that may run side by side: more fill no device, and take long to compare with."""


class Hazards:
    """What has been read and written since the last barrier.

    >>> hazards = Hazards()
    >>> hazards.add([(1, 0, 8)], [(2, 0, 8)]), hazards.add([(1, 0, 8)], [(2, 8, 16)])
    (False, False)
    >>> hazards.add([(2, 4, 12)], [(3, 0, 8)])  # reads what the first two write
    True
    """

    def __init__(self) -> None:
        self._read: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._written: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._pending = 0

    def add(self, reads: Iterable[Range], writes: Iterable[Range]) -> bool:
        """Take in a command. Whether a barrier must stand before it: it reads or writes what one
        since the last barrier writes, or writes what one reads."""
        reads, writes = list(reads), list(writes)
        needed = (self._pending >= PENDING_MAX or self._meet(self._written, (*reads, *writes))
                  or self._meet(self._read, writes))
        if needed:
            self._read.clear()
            self._written.clear()
            self._pending = 0
        for ranges, kept in ((reads, self._read), (writes, self._written)):
            for buffer, begin, end in ranges:
                kept[buffer].append((begin, end))
        self._pending += 1
        return needed

    @staticmethod
    def _meet(kept: dict[int, list[tuple[int, int]]], ranges: Iterable[Range]) -> bool:
        return any(begin < other_end and other_begin < end for buffer, begin, end in ranges
                   for other_begin, other_end in kept.get(buffer, ()))
