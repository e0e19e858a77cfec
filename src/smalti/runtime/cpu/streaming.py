"""Streaming: runs a program in less memory than its weights take. Some weights are resident, the
others are read again in each run.

The launches of a program are cut into segments. The weights of a segment that are not resident lie
in one of the two halves of a pool: while one segment runs, those of the next are read and packed
into the other half. Small weights are resident; so are as many of the large ones as fit, evenly
spread over the program, so that reading the others is spread evenly over its time.

    half 0   | segment 0 runs | segment 2 is read | segment 2 runs  | ...
    half 1   | segment 1 is read | segment 1 runs | segment 3 is read | ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from smalti.codegen.target import SLOT
from smalti.compiler.module import HostCall, Launch, Module
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.cpu.packing import ALIGNMENT, LARGE_BYTES

HALF_SHARE = 1 / 8
"""Each half of the pool's share of the memory for weights, unless a kernel needs more."""
Load = Callable[[Sequence[int], list[np.ndarray]], None]
"""`load(slots, memory)` reads and packs these slots, each into its element of `memory`."""


@dataclass(frozen=True)
class Segment:
    """Launches from `first` to `last`, and the slots read for them into half `half`."""

    first: int
    last: int
    slots: tuple[int, ...]
    half: int


@dataclass(frozen=True)
class StreamingPlan:
    """Which slots are `resident`, and the segments in which the others are read; `half_bytes` is
    the size of each half of the pool."""

    resident: frozenset[int]
    segments: tuple[Segment, ...]
    half_bytes: int

    def bytes(self, module: Module) -> int:
        """Bytes of weights that are there at a time, both halves of the pool included."""
        return sum(module.slots[n].bytes for n in self.resident) + 2 * self.half_bytes


def padded(size: int) -> int:
    """Bytes that a slot of `size` bytes takes in a half of the pool, alignment included."""
    return size + -size % ALIGNMENT + ALIGNMENT


def planned(module: Module, bytes_max: int) -> StreamingPlan | None:
    """The plan for running a module with `bytes_max` bytes for weights; None if all weights fit.

    Raises InputError, saying how much is needed at least, if that is too little.
    """
    if sum(slot.bytes for slot in module.slots) <= bytes_max:
        return None
    sizes = [padded(slot.bytes) for slot in module.slots]
    units = [(first, last, _read(module.launches[first:last])) for first, last in _units(module)]
    small = {n for n, slot in enumerate(module.slots) if slot.bytes < LARGE_BYTES}
    fixed = sum(sizes[n] for n in small)
    largest = max(sum(sizes[n] for n in slots - small) for _, _, slots in units)
    if fixed + 2 * largest > bytes_max:
        raise InputError(
            f"{module.name}: the weights need at least {(fixed + 2 * largest) / 1e9:.2f} GB at a "
            f"time, and may take {max(bytes_max, 0) / 1e9:.2f} GB; give more memory")
    half = min(max(largest, int(HALF_SHARE * bytes_max)), (bytes_max - fixed) // 2)
    order = list(dict.fromkeys(n for _, _, slots in units for n in sorted(slots - small)))
    resident = small | _spread(order, sizes, bytes_max - fixed - 2 * half)
    return StreamingPlan(frozenset(resident), tuple(_segments(units, sizes, resident, half)), half)


def _units(module: Module) -> Iterator[tuple[int, int]]:
    """(first, last) of runs of launches that cannot be divided between segments.

    Such a run ends at a barrier or a call of the host; and where launches that run after binding,
    or when held inputs change, end.
    """
    first = 0
    for number, launch in enumerate(module.launches):
        if isinstance(launch, HostCall) or launch.barrier or number + 1 in (
                module.steady, module.changing):
            yield first, number + 1
            first = number + 1


def _read(launches: Sequence[Launch | HostCall]) -> set[int]:
    """The numbers of the slots that launches read."""
    found: set[int] = set()
    for launch in launches:
        if isinstance(launch, HostCall):
            found.update(each.slot for each in launch.operands if each.slot >= 0)
        else:
            found.update(number for kind, number, _ in launch.operands if kind == SLOT)
    return found


def _spread(order: Sequence[int], sizes: Sequence[int], room: int) -> set[int]:
    """Slots that together fit into `room` bytes, chosen evenly from those in `order`."""
    total = sum(sizes[n] for n in order)
    kept, seen, chosen = 0, 0, set()
    for n in order:
        seen += sizes[n]
        if kept + sizes[n] <= room * min(1.0, seen / total):
            kept += sizes[n]
            chosen.add(n)
    return chosen


def _segments(units: Sequence[tuple[int, int, set[int]]], sizes: Sequence[int],
              resident: set[int], half: int) -> Iterator[Segment]:
    """Segments of as many successive units as one half of the pool has room for."""
    first, number = 0, 0
    held: set[int] = set()
    for start, _, slots in units:
        wanted = held | (slots - resident)
        if sum(sizes[n] for n in wanted) > half:
            yield Segment(first, start, tuple(sorted(held)), number % 2)
            first, wanted, number = start, slots - resident, number + 1
        held = wanted
    yield Segment(first, units[-1][1], tuple(sorted(held)), number % 2)


class Stream:
    """The weights of a program that streams: where each is, and which are read next.

    `memory` holds the resident slots of the module; the others are views of the pool.
    """

    def __init__(self, plan: StreamingPlan, module: Module, memory: Sequence[np.ndarray]) -> None:
        self.plan = plan
        self._pool = [anonymous(plan.half_bytes) for _ in range(2)]
        self._views = [self._placed(segment, module, memory) for segment in plan.segments]
        self._held: list[int | None] = [None, None]
        self._coming: tuple[int, Future] | None = None
        self._reader = ThreadPoolExecutor(1)
        self._again = self._number(module.changing)

    def _placed(self, segment: Segment, module: Module,
                memory: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The memory of each slot while a segment runs."""
        views, at = list(memory), 0
        for number in segment.slots:
            size = padded(module.slots[number].bytes)
            views[number] = self._pool[segment.half][at:at + size]
            at += size
        return views

    def _number(self, launch: int) -> int:
        """The number of the segment of a launch; that of the last one after all launches."""
        return next((number for number, segment in enumerate(self.plan.segments)
                     if launch < segment.last), len(self.plan.segments) - 1)

    def memory(self, launch: int) -> list[np.ndarray]:
        """The memory of each slot for a launch; arbitrary for slots that it does not read."""
        return self._views[self._number(launch)]

    def parts(self, first: int, last: int, load: Load) -> Iterator[tuple[int, int]]:
        """Yield the launches from `first` to `last` in parts, one for each segment, as soon as
        `load` has read its weights.

        What `load` raises for a segment is raised when that segment is reached.
        """
        for number, segment in enumerate(self.plan.segments):
            if segment.first >= last or segment.last <= first:
                continue
            self._bring(number, load)
            behind = segment.last >= self.plan.segments[-1].last
            self._prefetch(self._again if behind else number + 1, number, load)
            yield max(first, segment.first), min(last, segment.last)

    def _bring(self, number: int, load: Load) -> None:
        """Read the weights of a segment, or wait until they have been read."""
        half = self.plan.segments[number].half
        if self._coming is not None:
            coming, future = self._coming
            try:
                future.result()
                self._held[self.plan.segments[coming].half] = coming
            finally:
                if future.done():  # and not stopped while waiting
                    self._coming = None
        if self._held[half] != number:
            self._held[half] = None
            load(self.plan.segments[number].slots, self._views[number])
            self._held[half] = number

    def _prefetch(self, number: int, running: int, load: Load) -> None:
        """Begin to read the weights of a segment in another thread, if its half is free."""
        segments = self.plan.segments
        half = segments[number].half
        if half == segments[running].half or self._held[half] == number:
            return
        self._held[half] = None
        self._coming = number, self._reader.submit(load, segments[number].slots,
                                                   self._views[number])

    def close(self) -> None:
        """Wait for reads in progress, and start no more."""
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._coming = None
