"""What of a schedule the bits of a result depend on.

Most of a schedule says where and when numbers are added, not in which order: tiles of pixels and
panels, grains, what is staged. Two schedules of a kernel whose `arithmetic` is the same give the
same bytes, so measuring may choose between them freely, also while a picture is being made. Another
algorithm, or another order of a sum, is other arithmetic.
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
    """Equal for schedules of `kernel` that make every result from the same sums in the same order.

    >>> from smalti.schedule import MapSchedule
    >>> arithmetic(None, MapSchedule(4)) == arithmetic(None, MapSchedule(7, inner=2))
    True
    """
    kind = type(schedule).__name__
    if isinstance(schedule, ContractionSchedule):
        return kind, schedule.dtype, schedule.weights, *_order(kernel, schedule)
    if isinstance(schedule, AttentionSchedule):  # its sums are scaled for all queries of a group
        return kind, schedule.dtype, schedule.keys, schedule.vectors
    if isinstance(schedule, ReductionSchedule):
        return kind, schedule.ways
    if isinstance(schedule, MomentsSchedule):
        return kind, schedule.parts
    return (kind,)


def _order(kernel: Kernel, schedule: ContractionSchedule) -> tuple[Hashable, ...]:
    """The order of the sums of a contraction.

    Sums of a chunk of channels go through its window, so chunks matter where there is one. In
    Winograd's algorithm each point is a sum over channels only.
    """
    if schedule.winograd:
        return schedule.winograd.size, schedule.winograd.folded
    if isinstance(schedule.algorithm, Planar):
        return ("planes",)
    e = contraction_extents(kernel)
    return (e.c if e.r * e.s == 1 else min(schedule.chunk, e.c),)
