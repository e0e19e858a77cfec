"""The first schedule of a kernel that its device has the registers for.

The chooser thinks of registers by the numbers of a schedule. What a program keeps alive is known
once it is lowered; where the units of the device are known, a first choice whose program would
spill gives way to the next one that does not.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.registers import registers
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.schedule.candidates_group import candidates
from smalti.schedule.choose_group import choose_group
from smalti.schedule.compute_units import compute_unit
from smalti.schedule.group import GroupLimits, GroupSchedule

TRIED = 12
"""Schedules that are lowered for a kernel, at most; one takes some milliseconds."""
FORMS = ("contraction", "attention")
"""Forms of kernels whose invocations hold many sums. Others have registers enough."""


def first_that_fits(kernel: Kernel, limits: GroupLimits, precision: str = "f32") -> GroupSchedule:
    """The schedule that the chooser likes best among those whose programs do not spill; its first
    choice where all that are tried do, or where nothing is known of the units."""
    first = choose_group(kernel, limits, precision)
    if not limits.architecture or kernel.form not in FORMS or fits(kernel, first, limits):
        return first
    others = islice(candidates(kernel, limits, first), 1, TRIED)
    return next((each for each in others if fits(kernel, each, limits)), first)


@lru_cache(maxsize=4096)
def fits(kernel: Kernel, schedule: GroupSchedule, limits: GroupLimits) -> bool:
    """Whether no step of a kernel takes more registers than an invocation can have on a device of a
    known architecture; false for what cannot be lowered. Where the driver chooses how large
    subgroups are, it can choose the smallest, which have most."""
    unit = compute_unit(limits.architecture)
    try:
        steps = lower(kernel, schedule, limits).steps
    except IllegalSchedule:
        return False
    return all(registers(step, unit) <= unit.capacity(
        step.subgroup or limits.subgroup_min, step.size) for step in steps)
