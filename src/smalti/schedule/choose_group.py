"""A sound first schedule of a kernel for a GPU, from its shape and the limits of the device.

Rules, each with its reason:
* neighbouring invocations read neighbouring elements, several at once where they lie so;
* there are enough work-groups to keep all compute units at work, else less is done by each
  invocation;
* the tiles of a contraction are those that a model of a compute unit finds fastest;
* a work-group is a multiple of 64 invocations: whole subgroups on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel, affine, loads
from smalti.schedule.group import (
    HELD,
    GroupAttention,
    GroupContraction,
    GroupDepthwise,
    GroupLimits,
    GroupMap,
    GroupMatrixAttention,
    GroupMoments,
    GroupReduction,
    GroupSchedule,
    GroupTransposition,
)
from smalti.schedule.group_limits import LANES
from smalti.schedule.group_work import GroupWork
from smalti.schedule.line_attention import GroupLineAttention
from smalti.schedule.merge import access, crossed, map_axes, reduction_axes, store
from smalti.schedule.space_attention import AttentionWork, plain_schedules, unit_schedules
from smalti.schedule.space_group import best_matrix, schedules

SIZE = 256
"""Invocations of a work-group, at most: every device runs as many."""
GROUPS_PER_UNIT = 4
"""Work-groups that a unit should have, so that one computes while others wait: a guess."""
TILE = 32
"""Edge of the tiles of maps whose operands lie across their results: a line of memory or two, in
both directions."""
NEXT = 32
"""Invocations that stay next to each other, reading a line of memory together."""
PART_POINTS = 16
"""Points for each invocation that are worth a second step."""
CHANNELS_NEXT, PART_PIXELS, GROUP_SIZE_MAX = 16, 8, 1024
"""Vectors of channels next to each other in statistics, pixels for each invocation that are worth a
second step, and invocations of a work-group that makes those of a whole group."""


def choose_group(kernel: Kernel, limits: GroupLimits, precision: str = "f32") -> GroupSchedule:
    """The first schedule of `kernel` on a device with these limits; `precision` is what products
    may be computed in, "f32", "f16" or "bf16".

    Raises IllegalSchedule for a form that GPUs do not compute.
    """
    if kernel.form not in FORMS:
        raise IllegalSchedule(f"no GPU schedule for the form {kernel.form!r}")
    return FORMS[kernel.form](kernel, limits, precision)


def group_size(limits: GroupLimits, wanted: int = SIZE) -> int:
    """Invocations of a work-group: `wanted`, or as many as there may be, a power of two."""
    return power_of_two(wanted, limits.invocations)


def subgroup_size(limits: GroupLimits) -> int:
    """The size of subgroups that a program may count on, 0 where there is none: the largest, or
    half of it where subgroups that are large leave an invocation few registers.

    >>> intel = GroupLimits(subgroup_operations=True, subgroup_choice=True, subgroup_min=8,
    ...                     subgroup_max=32, registers=128)
    >>> subgroup_size(intel), subgroup_size(GroupLimits())
    (16, 0)
    """
    known = limits.subgroup_choice or limits.subgroup_min == limits.subgroup_max
    if not (limits.subgroup_operations and known and limits.subgroup_max <= 64):
        return 0
    if limits.few_registers:
        return max(limits.subgroup_min, limits.subgroup_max // 2)
    return limits.subgroup_max


def power_of_two(count: int, most: int) -> int:
    """The largest power of two that is neither above `count` nor above `most`, 1 at least.

    >>> power_of_two(77, 256), power_of_two(300, 128), power_of_two(0, 8)
    (64, 128, 1)
    """
    return 1 << (max(1, min(count, most)).bit_length() - 1)


def busy(limits: GroupLimits) -> int:
    """How many work-groups keep the device at work."""
    return GROUPS_PER_UNIT * limits.unit_count


def _map(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupMap | GroupTransposition:
    axes, accesses = map_axes(kernel)
    across = crossed(kernel)
    if across and min(axes[-1][1], dict(axes)[across[0]]) >= TILE // 2:
        needed = len(across[1]) * 4 * TILE * (TILE + 1)
        if needed <= limits.shared_bytes // 2:
            return GroupTransposition(group_size(limits), TILE)
    (name, extent), size = axes[-1], group_size(limits)
    out = store(kernel, kernel.stages[0].axes, "out")
    results = math.prod(n for _, n in axes)
    wide = any(a.stride(name) == 1 for a in (out, *accesses))
    lanes = max(n for n in LANES if n == 1 or wide and extent % n == 0 and
                results // n >= size * busy(limits))
    return GroupMap(size, lanes)


def _contraction(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupContraction:
    work = GroupWork.of(kernel, limits)
    found = min(schedules(kernel, limits, precision), default=None, key=work.rank)
    if found is None:
        raise IllegalSchedule("the device has no room for any tile of a contraction")
    return found


def _reduction(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupReduction:
    axes, size = reduction_axes(kernel), group_size(limits)
    results, points = (math.prod(n for _, n in some) for some in (axes.kept, axes.reduced))
    extent = dict((*axes.kept, *axes.reduced)).get(axes.lanes, 1)
    read = [access(kernel, load) for load in loads(kernel.stages[0].value)]
    wide = any(a.stride(axes.lanes) == 1 for a in read)
    lanes = max(n for n in LANES if n == 1 or wide and extent % n == 0 and
                results * points // n >= size * busy(limits))
    if axes.across:
        share = _share(points // lanes, results, size, limits)
        groups = -(-results * share // size)
    else:
        share = power_of_two(min(points, busy(limits) * size * lanes // results), size // NEXT)
        groups = -(-results // lanes * share // size)
    least = PART_POINTS * share * (lanes if axes.across else 1)
    parts = max(1, min(busy(limits) // groups, points // least))
    return GroupReduction(size, share, lanes, parts, subgroup_size(limits) if axes.across else 0)


def _share(vectors: int, rows: int, size: int, limits: GroupLimits) -> int:
    """How many invocations take part in a row: a subgroup, or more where the row does not fit into
    its registers, or where there are few rows."""
    share = power_of_two(vectors, min(subgroup_size(limits) or NEXT, size))
    most = power_of_two(vectors, size)
    few = size * limits.unit_count
    while share < most and (vectors > HELD * share or rows * share < few):
        share *= 2
    return share


def _rows(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupMoments:
    *rows, extent = kernel.buffer("x").shape
    lanes, size = max(n for n in LANES if extent % n == 0), group_size(limits)
    share = _share(extent // lanes, math.prod(rows), size, limits)
    return GroupMoments(size, share, lanes, 1, subgroup_size(limits))


def _group(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupMoments:
    """In one step where groups fit into the registers of a work-group or are many, else in parts of
    the pixels."""
    batch, channels, pixels = kernel.buffer("x").shape
    groups = int(kernel.option("groups"))
    each = channels // groups
    lanes = max(n for n in LANES if each % n == 0)
    vectors, most = each * pixels // lanes, group_size(limits, GROUP_SIZE_MAX)
    if vectors > HELD * most and batch * groups < busy(limits):
        found = _group_in_parts(batch, channels, pixels, limits)
        if found.parts > 1:
            return found
    size = max(group_size(limits, 64), power_of_two(2 * vectors // HELD, most))
    return GroupMoments(size, power_of_two(vectors, size), lanes, 1, subgroup_size(limits))


def _group_in_parts(batch: int, channels: int, pixels: int, limits: GroupLimits) -> GroupMoments:
    size, lanes = group_size(limits), max(n for n in LANES if channels % n == 0)
    across = power_of_two(channels // lanes, min(CHANNELS_NEXT, size))
    share = size // across
    blocks = batch * -(-channels // (lanes * across))
    parts = max(1, min(busy(limits) // blocks, pixels // (share * PART_PIXELS)))
    return GroupMoments(size, share, lanes, parts, subgroup_size(limits))


def _depthwise(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupDepthwise:
    """Several channels, then several pixels where windows overlap, as long as all are busy."""
    _, total, _ = kernel.stages
    read = affine(next(loads(total.value)))[2]
    (_, b), (_, y), (_, x), (_, o) = total.axes
    size, columns = group_size(limits), total.reduced[1][1]
    lanes = max(n for n in LANES if o % n == 0)
    shared = columns * read.coefficient("s") > read.coefficient("x")
    enough = b * y * x * (o // lanes) // (size * busy(limits))
    pixels = power_of_two(min(enough, x), 4) if shared else 1
    return GroupDepthwise(size, lanes, pixels)


def _attention(kernel: Kernel, limits: GroupLimits,
               precision: str) -> GroupAttention | GroupMatrixAttention | GroupLineAttention:
    """That of all schedules which a model of a compute unit finds fastest, in the matrix unit where
    there is one that has the products."""
    q, work = kernel.buffer("q"), AttentionWork.of(kernel, limits)
    shape = best_matrix(limits, precision)
    if shape is not None and q.shape[1] >= shape.rows and subgroup_size(limits):
        best = min(unit_schedules(kernel, limits, shape), default=None, key=work.rank)
        if best is not None:
            return best
    halves = limits.f16 and all(kernel.buffer(name).dtype == "f16" for name in "qkv")
    subgroup = limits.subgroup_min if limits.few_registers else 0
    found = min(plain_schedules(kernel, limits, "f16" if halves else "f32",
                                subgroup_size(limits) and (subgroup or subgroup_size(limits))),
                default=None, key=work.rank)
    if found is None:
        raise IllegalSchedule(f"no queries of {q.shape[3]} channels fit into "
                              f"{limits.shared_bytes} bytes")
    return found


FORMS: dict[str, Callable[[Kernel, GroupLimits, str], GroupSchedule]] = {
    "contraction": _contraction,
    "map": _map,
    "reduction": _reduction,
    "group_scale_shift": _group,
    "layer_scale_shift": _rows,
    "rms_scale": _rows,
    "attention": _attention,
    "depthwise": _depthwise,
    "pooling": _depthwise,
}
