"""Models what earlier kernels have left in the caches, by reuse distance.

The reuse distance of a value is how many different bytes were used since its last use. By it the
value is in the second-level caches of the threads, in the last-level cache, or in memory. Values in
the arena share memory one after the other, so all of them together count at most the size of the
arena.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from smalti.machine.cpu.core import Core

ARENA = "arena"
"""The space in which values share memory one after the other."""
BLOCK_BYTES = 1 << 16
"""The granularity in bytes at which uses of the arena are recorded: a compromise between accuracy
and time."""
USED_SHARE = 0.8
"""Share of a cache that holds a program's own values."""
FAR = 1e30
"""The reuse distance of what was never used: larger than any cache."""

Place = tuple[Hashable, int]
"""(space, first byte in it): where a value is. All spaces but the arena hold a single value."""


class Shares(NamedTuple):
    """Of some bytes, the shares that are in the second-level cache of the thread that reads them
    (`near`) and in the last-level cache (`last`). The rest is in memory."""

    near: float
    last: float


class Residency:
    """The state of the caches of `threads` cores, for a program with an arena of `arena_bytes`;
    they are empty at first."""

    def __init__(self, core: Core, threads: int, arena_bytes: int = 0) -> None:
        self.threads, self.arena_bytes = threads, arena_bytes
        self.near_bytes = USED_SHARE * core.l2_bytes * threads
        self.last_bytes = max(USED_SHARE * core.l3_bytes, self.near_bytes)
        blocks = arena_bytes // BLOCK_BYTES + 2
        self.arena = np.full((2, blocks), -FAR)
        self.seen: dict[Hashable, tuple[float, float]] = {}
        self.count = [0.0, 0.0]
        """Bytes used so far: of the arena, and of all else."""

    def shares(self, place: Place, size: float) -> Shares:
        """Which shares of the `size` bytes at a place are in which cache."""
        space, offset = place
        if space == ARENA:
            own, other = self.arena[:, self._blocks(offset, size)]
        else:
            own, other = (np.array([at]) for at in self.seen.get(space, (-FAR, -FAR)))
        depth = np.minimum(self.count[0] - own, self.arena_bytes) + self.count[1] - other
        near = np.clip((self.near_bytes - depth) / max(size, 1), 0, 1).mean()
        last = np.clip((self.last_bytes - depth) / max(size, 1), 0, 1).mean()
        mine = float(near) / self.threads
        return Shares(mine, max(0.0, float(last) - mine))

    def touch(self, place: Place, size: float) -> None:
        """Record that the `size` bytes at a place are used now."""
        space, offset = place
        self.count[space != ARENA] += size
        if space == ARENA:
            self.arena[:, self._blocks(offset, size)] = np.array([self.count]).T
        else:
            self.seen[space] = (self.count[0], self.count[1])

    def _blocks(self, offset: int, size: float) -> slice:
        first = min(offset // BLOCK_BYTES, self.arena.shape[1] - 1)
        return slice(first, max(first + 1, -(-int(offset + size) // BLOCK_BYTES)))
