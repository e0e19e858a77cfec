"""Tells whether two schedules of a kernel give the same bytes: whether their `arithmetic` is equal.

Most decisions of a schedule (tiles of pixels and panels, grains, what is staged) change where and
when numbers are added, but not in which order. Schedules of equal arithmetic can replace each other
freely, even while a picture is being made. Another algorithm, or another order of a sum, is another
arithmetic.
"""

from __future__ import annotations

from collections.abc import Hashable

from smalti.kernel.form import Kernel
from smalti.schedule.merge import contraction_extents
from smalti.schedule.schedule import (
    AttentionSchedule,
    ContractionSchedule,
    MomentsSchedule,
    Planar,
    ReductionSchedule,
    Schedule,
)


def arithmetic(kernel: Kernel, schedule: Schedule) -> Hashable:
    """A key that is equal for schedules of `kernel` that add the same numbers in the same order.

    >>> from smalti.schedule import MapSchedule
    >>> arithmetic(None, MapSchedule(4)) == arithmetic(None, MapSchedule(7, inner=2))
    True
    """
    kind = type(schedule).__name__
    if isinstance(schedule, ContractionSchedule) and schedule.integers:
        return kind, "integers"  # exact in any order; those of groups are added in their order
    if isinstance(schedule, ContractionSchedule):
        return kind, schedule.dtype, schedule.weights, *_order(kernel, schedule)
    if isinstance(schedule, AttentionSchedule):  # sums are rescaled a whole group at a time
        return kind, schedule.dtype, schedule.keys, schedule.vectors
    if isinstance(schedule, ReductionSchedule):
        return kind, schedule.ways
    if isinstance(schedule, MomentsSchedule):
        return kind, schedule.parts
    return (kind,)


def _order(kernel: Kernel, schedule: ContractionSchedule) -> tuple[Hashable, ...]:
    """What of a schedule decides the order of the sums of a contraction.

    A sum goes through all of the window for one chunk of channels before the next, so the chunk
    matters if the window has more than one pixel. In Winograd's algorithm each point is a sum over
    channels only.
    """
    if schedule.winograd:
        return schedule.winograd.size, schedule.winograd.folded
    if isinstance(schedule.algorithm, Planar):
        return ("planes",)
    e = contraction_extents(kernel)
    return (e.c if e.r * e.s == 1 else min(schedule.chunk, e.c),)
