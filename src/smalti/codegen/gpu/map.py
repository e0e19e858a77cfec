"""Maps: pointwise operations and data movement, an invocation for each few results."""

from __future__ import annotations

import math

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.expressions import Values, bind_all, unravel, work_groups
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.transposition import lower_transposition
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.schedule.group import GroupLimits, GroupMap, GroupTransposition
from smalti.schedule.merge import map_axes, store


def lower_map(kernel: Kernel, schedule: GroupMap | GroupTransposition,
              limits: GroupLimits) -> GroupSteps:
    """A map: results side by side are made by neighbouring invocations, `lanes` by each.

    Raises IllegalSchedule where the innermost axis is no multiple of the lanes.
    """
    if isinstance(schedule, GroupTransposition):
        return lower_transposition(kernel, schedule, limits)
    (stage,) = kernel.stages
    axes, accesses = map_axes(kernel)
    name, extent = axes[-1]
    lanes = schedule.lanes
    if extent % lanes:
        raise IllegalSchedule(f"{lanes} lanes along an axis of {extent}")
    b = Builder("map", schedule.size)
    out = store(kernel, stage.axes, "out")
    bindings = bind_all(b, kernel, (*accesses, out), name, lanes)
    count = math.prod(n for _, n in axes) // lanes
    group, groups = work_groups(b, -(-count // schedule.size), limits)
    index = b.let(group * schedule.size + b.invocation)
    with b.branch(index < count):
        at = unravel(b, index, (*axes[:-1], (name, extent // lanes)))
        at[name] = b.let(at[name] * lanes)
        flat = (row_strides(axes), b.let(index * lanes))
        values = Values(b, kernel, bindings, at, name, lanes, flat=flat)
        values.store(out, values.value(stage.value))
    return GroupSteps((b.finish(groups),))


def row_strides(axes: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """The stride of each axis in a dense array of them, those of one step left out.

    >>> row_strides((("y", 3), ("x", 5)))
    {'y': 5, 'x': 1}
    """
    strides, stride = {}, 1
    for name, extent in reversed(axes):
        if extent > 1:
            strides[name] = stride
        stride *= extent
    return dict(reversed(strides.items()))


