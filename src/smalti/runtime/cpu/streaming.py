"""Weights of a program in less memory than they take: some stay, the others come and go.

The launches of a program are cut into segments. What a segment reads, and is not resident, lies in
one of two halves of a pool: while one segment runs, the weights of the next are read and packed
into the other half. Small weights are resident; of the large ones as many as fit, evenly along the
way, so that what is still to be read is spread over the time in which it can be.

    half 0   | segment 0 runs | segment 2 is read | segment 2 runs  | ...
    half 1   | segment 1 is read | segment 1 runs | segment 3 is read | ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from smalti.codegen.target import SLOT
from smalti.compiler.module import HostCall, Launch, Module
from smalti.errors import InputError
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.cpu.packing import ALIGNMENT, LARGE_BYTES

HALF_SHARE = 1 / 8
"""Of the memory for weights, for each half of the pool, where a single kernel needs no more."""
Load = Callable[[Sequence[int], list[np.ndarray]], None]
"""`load(slots, memory)` reads and packs these slots, each into its element of `memory`."""


@dataclass(frozen=True)
class Segment:
    """Launches from `first` to `last`, and the slots that are read for them into a half."""

    first: int
    last: int
    slots: tuple[int, ...]
    half: int


@dataclass(frozen=True)
class StreamingPlan:
    """Which slots are `resident`, and what comes when; `half_bytes` is the size of each half."""

    resident: frozenset[int]
    segments: tuple[Segment, ...]
    half_bytes: int


def padded(size: int) -> int:
    """Bytes that a slot takes in a half."""
    return size + -size % ALIGNMENT + ALIGNMENT


def planned(module: Module, bytes_max: int) -> StreamingPlan | None:
    """How the weights of a module come and go in `bytes_max` bytes; None when all of them fit.

    Raises InputError that says how much is needed at least.
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
    """Runs of launches that cannot be taken apart; what only bound or held inputs change ends one.
    """
    first = 0
    for number, launch in enumerate(module.launches):
        if isinstance(launch, HostCall) or launch.barrier or number + 1 in (
                module.steady, module.changing):
            yield first, number + 1
            first = number + 1


def _read(launches: Sequence[Launch | HostCall]) -> set[int]:
    """The slots that launches read."""
    found: set[int] = set()
    for launch in launches:
        if isinstance(launch, HostCall):
            found.update(each.slot for each in launch.operands if each.slot >= 0)
        else:
            found.update(number for kind, number, _ in launch.operands if kind == SLOT)
    return found


def _spread(order: Sequence[int], sizes: Sequence[int], room: int) -> set[int]:
    """Slots that fit into `room`, evenly among those of `order`."""
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
    """As many units in a row as a half has room for."""
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
    """The weights of a program that has a plan: what is where, and what comes next.

    `memory` holds the resident slots of the module; the others lie in views of the pool.
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
        """Where each slot lies while a segment runs."""
        views, at = list(memory), 0
        for number in segment.slots:
            size = padded(module.slots[number].bytes)
            views[number] = self._pool[segment.half][at:at + size]
            at += size
        return views

    def _number(self, launch: int) -> int:
        """The segment of a launch; the last one for what is behind all."""
        return next((number for number, segment in enumerate(self.plan.segments)
                     if launch < segment.last), len(self.plan.segments) - 1)

    def memory(self, launch: int) -> list[np.ndarray]:
        """Where each slot lies for a launch; those that it does not read are anywhere."""
        return self._views[self._number(launch)]

    def parts(self, first: int, last: int, load: Load) -> Iterator[tuple[int, int]]:
        """The launches from `first` to `last`, a part a segment, when `load` has read its weights.

        What `load` raises for a segment is raised when it is reached.
        """
        for number, segment in enumerate(self.plan.segments):
            if segment.first >= last or segment.last <= first:
                continue
            self._bring(number, load)
            behind = segment.last >= self.plan.segments[-1].last
            self._prefetch(self._again if behind else number + 1, number, load)
            yield max(first, segment.first), min(last, segment.last)

    def _bring(self, number: int, load: Load) -> None:
        """Wait for, or read, the weights of a segment."""
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
        """Begin to read the weights of a segment, if its half is free."""
        segments = self.plan.segments
        half = segments[number].half
        if half == segments[running].half or self._held[half] == number:
            return
        self._held[half] = None
        self._coming = number, self._reader.submit(load, segments[number].slots,
                                                   self._views[number])

    def close(self) -> None:
        """Wait for what is being read, and read no more."""
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._coming = None
