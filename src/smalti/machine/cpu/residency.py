"""What earlier kernels have left in the caches.

Between two uses of a value other bytes are touched. What was touched since then, each byte once, is
how deep it lies: it is found in the second-level caches of the threads, in the last cache, or in
memory. Values in an arena follow one another in the same memory, so all that lives there can push
out no more than the arena is large.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from smalti.machine.cpu.core import Core

ARENA = "arena"
"""The space in which values follow one another."""
BLOCK_BYTES = 1 << 16
"""The arena is followed in blocks of so many bytes: a guess between exactness and time."""
USED_SHARE = 0.8
"""Share of a cache in which a program finds its own values."""
FAR = 1e30
"""Bytes touched since, of what was never touched: more than any cache."""

Place = tuple[Hashable, int]
"""A space, and the first byte in it. All spaces but the arena hold one value each."""


class Shares(NamedTuple):
    """Shares of some bytes that are in the second-level cache of the thread that wants them, and in
    the last one. The rest is in memory."""

    near: float
    last: float


class Residency:
    """The caches of `threads` cores, which hold nothing yet, and an arena of `arena_bytes`."""

    def __init__(self, core: Core, threads: int, arena_bytes: int = 0) -> None:
        self.threads, self.arena_bytes = threads, arena_bytes
        self.near_bytes = USED_SHARE * core.l2_bytes * threads
        self.last_bytes = max(USED_SHARE * core.l3_bytes, self.near_bytes)
        blocks = arena_bytes // BLOCK_BYTES + 2
        self.arena = np.full((2, blocks), -FAR)
        self.seen: dict[Hashable, tuple[float, float]] = {}
        self.count = [0.0, 0.0]
        """Bytes touched so far: of the arena, of all else."""

    def shares(self, place: Place, size: float) -> Shares:
        """Where `size` bytes at a place are."""
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
        """Note that `size` bytes at a place are used now."""
        space, offset = place
        self.count[space != ARENA] += size
        if space == ARENA:
            self.arena[:, self._blocks(offset, size)] = np.array([self.count]).T
        else:
            self.seen[space] = (self.count[0], self.count[1])

    def _blocks(self, offset: int, size: float) -> slice:
        first = min(offset // BLOCK_BYTES, self.arena.shape[1] - 1)
        return slice(first, max(first + 1, -(-int(offset + size) // BLOCK_BYTES)))
