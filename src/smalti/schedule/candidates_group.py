"""The schedules of a kernel on a GPU that a tuner tries in place of the first one.

    candidates(kernel, limits, first)        the first one, then others, the most promising first
    arithmetic(kernel, schedule)             equal for schedules that give the same bytes

Only schedules of the same arithmetic are candidates: a picture must not depend on what was
measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.kernel.traffic import touched
from smalti.schedule.group import (
    BYTES,
    GroupAttention,
    GroupContraction,
    GroupDepthwise,
    GroupLimits,
    GroupMap,
    GroupMatrixAttention,
    GroupMoments,
    GroupReduction,
    GroupSchedule,
    GroupTotals,
    GroupTransposition,
    MatrixShape,
)
from smalti.schedule.group_limits import LANES
from smalti.schedule.group_work import LAUNCH, GroupWork, issued_for
from smalti.schedule.line_attention import GroupLineAttention
from smalti.schedule.space_attention import AttentionWork, plain_schedules, unit_schedules
from smalti.schedule.space_group import can_run, schedules

SIZES = (32, 64, 128, 256, 512, 1024)
"""Invocations of a work-group: all powers of two between the smallest subgroup of common devices
and the largest work-group of any."""
TILES = (16, 32, 64)
"""Sides of the tiles of transpositions."""
PIXELS = (1, 2, 4, 8)
"""Pixels of an invocation of a depthwise convolution."""


def candidates(kernel: Kernel, limits: GroupLimits, first: GroupSchedule) -> list[GroupSchedule]:
    """`first`, and the other schedules that a device with these limits can run, without repetition,
    and give the same bytes.

    Those of contractions are in the order in which they are expected to be fast. What fits the
    limits may still be refused by lowering, with IllegalSchedule.

    >>> from smalti.kernel.form import Buffer, Load, Stage, axis
    >>> x, out = Buffer("x", "input", (64,), (1,)), Buffer("out", "output", (64,), (1,))
    >>> copy = Kernel("map", (x, out), (Stage("out", (("i", 64),), Load("x", (axis("i"),))),))
    >>> [found.size for found in candidates(copy, GroupLimits(), GroupMap(64, 4))
    ...  if found.lanes == 4]
    [64, 32, 128]
    """
    others = VARIANTS[type(first)](kernel, limits, first)
    wanted = arithmetic(kernel, first)
    found = dict.fromkeys([first])
    for other in others:
        if other not in found and arithmetic(kernel, other) == wanted and can_run(other, limits):
            found[other] = None
    return list(found)


def expected_clocks(kernel: Kernel, limits: GroupLimits, schedule: GroupSchedule) -> float:
    """About how many clocks of the compute units of a device a kernel takes under a schedule."""
    return clocks_of(kernel, limits)(schedule)


def clocks_of(kernel: Kernel, limits: GroupLimits) -> Callable[[Any], float]:
    """What gives the expected clocks of a schedule of `kernel`, for who asks for many.

    Of other forms than contractions and attentions it is the same for all schedules: a launch, the
    bytes that they move, and the instructions of their expressions, all at the rates of the device.
    """
    if kernel.form == "contraction":
        return GroupWork.of(kernel, limits).clocks
    if kernel.form == "attention":
        return AttentionWork.of(kernel, limits).clocks
    moved = sum(ELEMENT_BYTES[kernel.buffer(name).dtype] * count
                for name, count in touched(kernel).items())
    issued = sum(math.prod(n for _, n in (*stage.axes, *stage.reduced)) * issued_for(stage.value)
                 for stage in kernel.stages)
    busy = max(moved / limits.rates.memory, issued / limits.rates.factors)
    clocks = LAUNCH + busy / limits.unit_count
    return lambda schedule: clocks


def arithmetic(kernel: Kernel, schedule: GroupSchedule) -> Hashable:
    """Equal for schedules of `kernel` that make every result from the same sums in the same order.

    A contraction goes through its depth from the first to the last element, whatever its tiles;
    only where several invocations or work-groups share the depth, or the matrix unit adds, does
    more matter. An attention goes through its keys so: what matters is when the top of a row may
    move, by the keys of a tile, and who adds its weights, or whether the matrix unit does.

    >>> tall, wide = (GroupContraction(*tile, 16, 4, 4) for tile in ((64, 16), (16, 64)))
    >>> arithmetic(None, tall) == arithmetic(None, wide)
    True
    >>> arithmetic(None, tall) == arithmetic(None, replace(tall, split=2))
    False
    """
    kind = type(schedule).__name__
    if isinstance(schedule, GroupContraction) and schedule.dtype == BYTES:
        return kind, BYTES  # sums of integers are the same in any order
    if isinstance(schedule, GroupContraction):
        shared = schedule.ways > 1 or schedule.split > 1
        return (kind, schedule.dtype, schedule.weights, schedule.matrix,
                schedule.direct and not schedule.matrix,
                (schedule.ways, schedule.split, schedule.tile_k) if shared else ())
    if isinstance(schedule, GroupTotals):
        # statistics of groups in parts: `size / share` channels stand side by side
        beside = schedule.size if schedule.parts > 1 else 0
        return kind, schedule.share, schedule.lanes, schedule.parts, schedule.subgroup, beside
    if isinstance(schedule, GroupAttention):
        return (kind, schedule.columns, schedule.each, schedule.dtype, schedule.subgroup > 0)
    if isinstance(schedule, GroupLineAttention):
        return kind, schedule.keys, schedule.across, schedule.matrix
    if isinstance(schedule, GroupMatrixAttention):
        _, keys, _, width = kernel.buffer("v").shape
        counts = schedule.counts(keys, width)
        return kind, schedule.keys, schedule.share, schedule.matrix, schedule.dtype, counts
    return "map" if isinstance(schedule, GroupMap | GroupTransposition) else kind


def _maps(kernel: Kernel, limits: GroupLimits,
          first: GroupMap | GroupTransposition) -> Iterator[GroupSchedule]:
    for size, lanes in product(SIZES, LANES):
        yield GroupMap(size, lanes)
    if isinstance(first, GroupTransposition):
        for size, tile in product(SIZES, TILES):
            yield GroupTransposition(size, tile)


def _totals(kernel: Kernel, limits: GroupLimits,
            first: GroupReduction | GroupMoments) -> Iterator[GroupSchedule]:
    return (replace(first, size=size) for size in SIZES)


def _depthwise(kernel: Kernel, limits: GroupLimits,
               first: GroupDepthwise) -> Iterator[GroupSchedule]:
    for size, lanes, pixels in product(SIZES, LANES, PIXELS):
        yield GroupDepthwise(size, lanes, pixels)


def _attention(kernel: Kernel, limits: GroupLimits,
               first: GroupAttention) -> Iterator[GroupSchedule]:
    work = AttentionWork.of(kernel, limits)
    yield from sorted(plain_schedules(kernel, limits, first.dtype, first.subgroup),
                      key=work.rank)


def _matrix_attention(kernel: Kernel, limits: GroupLimits,
                      first: GroupMatrixAttention | GroupLineAttention
                      ) -> Iterator[GroupSchedule]:
    work, shape = AttentionWork.of(kernel, limits), MatrixShape(*first.shape, first.dtype, "f32")
    yield from sorted(unit_schedules(kernel, limits, shape), key=work.rank)


def _contractions(kernel: Kernel, limits: GroupLimits,
                  first: GroupContraction) -> Iterator[GroupSchedule]:
    precision = first.dtype
    if precision == "f32" and first.weights not in FORMATS:
        precision = first.weights
    work = GroupWork.of(kernel, limits)
    yield from sorted(schedules(kernel, limits, precision), key=work.rank)


VARIANTS: dict[type, Callable[..., Iterator[GroupSchedule]]] = {
    GroupMap: _maps,
    GroupTransposition: _maps,
    GroupReduction: _totals,
    GroupMoments: _totals,
    GroupDepthwise: _depthwise,
    GroupAttention: _attention,
    GroupMatrixAttention: _matrix_attention,
    GroupLineAttention: _matrix_attention,
    GroupContraction: _contractions,
}
"""What else there is to try, by the kind of the first schedule."""
