"""A sound first schedule of a kernel for a GPU, from its shape and the limits of the device.

Rules, each with its reason:
* neighbouring invocations read neighbouring elements, several at once where they lie so;
* there are enough work-groups to keep all compute units at work, else less is done by each
  invocation;
* a work-group is a multiple of 64 invocations: whole subgroups on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.schedule.group import LANES, GroupLimits, GroupMap, GroupSchedule
from smalti.schedule.merge import map_axes, store

SIZE = 256
UNITS = 32
"""Compute units of a device that does not tell how many it has."""
GROUPS_PER_UNIT = 4


def choose_group(kernel: Kernel, limits: GroupLimits, precision: str = "f32") -> GroupSchedule:
    """The first schedule of `kernel` on a device with these limits; `precision` is what products
    may be computed in, "f32", "f16" or "bf16".

    Raises IllegalSchedule for a form that GPUs do not compute.
    """
    if kernel.form not in FORMS:
        raise IllegalSchedule(f"no GPU schedule for the form {kernel.form!r}")
    return FORMS[kernel.form](kernel, limits, precision)


def group_size(limits: GroupLimits, wanted: int = SIZE) -> int:
    """Invocations of a work-group: `wanted`, or as many as there may be."""
    return min(wanted, limits.invocations)


def busy(limits: GroupLimits) -> int:
    """How many work-groups keep the device at work."""
    return GROUPS_PER_UNIT * (limits.units or UNITS)


def _map(kernel: Kernel, limits: GroupLimits, precision: str) -> GroupMap:
    axes, accesses = map_axes(kernel)
    (name, extent), size = axes[-1], group_size(limits)
    out = store(kernel, kernel.stages[0].axes, "out")
    results = math.prod(n for _, n in axes)
    wide = any(a.stride(name) == 1 for a in (out, *accesses))
    lanes = max(n for n in LANES if n == 1 or wide and extent % n == 0 and
                results // n >= size * busy(limits))
    return GroupMap(size, lanes)


FORMS: dict[str, Callable[[Kernel, GroupLimits, str], GroupSchedule]] = {"map": _map}
