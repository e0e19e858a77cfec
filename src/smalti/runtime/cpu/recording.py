"""Launch tables: what the native driver code runs through, with all addresses filled in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smalti.codegen.cpu.layout import CACHE_LINE_BYTES, LAUNCH, NO_BARRIER, aligned
from smalti.dataclass import dataclass
from smalti.runtime.cpu.threads import call, context, driver_entry, workers


@dataclass(frozen=True)
class TableRow:
    """A row of a launch table: the addresses of a function and of its buffers, and the tiles from
    `first` to `tiles` that it computes; with `barrier` all threads wait for each other after it."""

    function: int
    pointers: tuple[int, ...]
    tiles: int
    first: int = 0
    barrier: bool = True


class Table:
    """A launch table in memory.

    Each launch is one or more rows, run one after the other; each row's counter of tiles has a
    cache line of its own. Each of the `threads` threads has `scratch_bytes` of scratch memory, from
    the address `scratch` on. `keep` is kept alive as long as the table: code and buffers.
    """

    def __init__(self, launches: Sequence[Sequence[TableRow]], threads: int, scratch: int,
                 scratch_bytes: int, keep: object = None) -> None:
        self.threads, self._keep = threads, keep
        rows = [row for launch in launches for row in launch]
        self._starts = np.cumsum([0, *map(len, launches)])
        self._table = aligned(max(1, len(rows)), LAUNCH)[:len(rows)]
        self._firsts = np.zeros(len(rows) * CACHE_LINE_BYTES // 8, np.uint64)
        self._counters = np.zeros_like(self._firsts)
        self._pointers = np.array([p for row in rows for p in row.pointers], np.uint64)
        at, counters, pointers = 0, self._counters.ctypes.data, self._pointers.ctypes.data
        for number, row in enumerate(rows):
            self._table[number] = (row.function, pointers + 8 * at, row.tiles,
                                   counters + CACHE_LINE_BYTES * number,
                                   0 if row.barrier else NO_BARRIER)
            self._firsts[number * CACHE_LINE_BYTES // 8] = row.first
            at += len(row.pointers)
        self._stamps = np.zeros(len(rows) + 1, np.uint64)
        self._context = context(self._table, threads, scratch, scratch_bytes, self._stamps)
        self._address = self._context.ctypes.data
        self._range: tuple[int, int] | None = None

    def run(self, first: int, last: int, brief: bool) -> None:
        """Run the launches from `first` to `last`; `brief` is as in `Workers.run`."""
        np.copyto(self._counters, self._firsts)
        if self._range != (first, last):
            self._context["first"] = self._starts[first]
            self._context["last"] = self._starts[last]
            self._range = first, last
        if self._starts[first] == self._starts[last]:
            return
        if self.threads == 1 and brief:
            call(driver_entry(), self._address)
        else:
            workers(self.threads).run(driver_entry(), self._address, self, brief)

    def ticks(self) -> np.ndarray:
        """Ticks of the time stamp counter from the end of each launch of the last run to the end of
        the next: a launch ends when its last thread is done. One that has rows took a tick at
        least: the counter of an Apple M1 stands still for 42 ns, in which a small kernel is done.
        """
        first, last = self._range
        places = self._starts[first:last + 1] - self._starts[first]
        took = np.diff(self._stamps[places].astype(np.float64))
        return np.maximum(took, np.diff(places) > 0)
