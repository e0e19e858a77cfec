"""Kernel + schedule -> group programs: one module for each form, one entry for all."""

from __future__ import annotations

from smalti.errors import IllegalSchedule
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.schedule.group import GroupLimits, GroupSchedule
from smalti.target.gpu.form import GroupProgram
from smalti.target.gpu.lowered import Lowered
from smalti.target.gpu.map import lower_map

FORMS = {"map": lower_map}


def lower(kernel: Kernel, schedule: GroupSchedule, limits: GroupLimits) -> Lowered:
    """The programs of `kernel` on a device with these limits. Raises IllegalSchedule when the
    schedule cannot be applied, or asks for more than the device has."""
    if kernel.form not in FORMS:
        raise IllegalSchedule(f"GPUs have no lowering of the form {kernel.form!r}")
    schedule.check(limits)
    lowered = FORMS[kernel.form](kernel, schedule, limits)
    for step in lowered.steps:
        _check(step, limits)
    return lowered


def _check(program: GroupProgram, limits: GroupLimits) -> None:
    """Raise IllegalSchedule where the device cannot run a program."""
    shared = sum(array.elements * ELEMENT_BYTES.get(array.dtype, 4) for array in program.shared)
    asked = {"invocations": (program.size, limits.invocations),
             "bytes of shared memory": (shared, limits.shared_bytes),
             "bindings": (len(program.bindings), limits.bindings)}
    asked |= {f"work-groups along {axis}": pair
              for axis, *pair in zip("xyz", program.groups, limits.grid)}
    for what, (needed, most) in asked.items():
        if needed > most:
            raise IllegalSchedule(f"{program.name} needs {needed} {what}, of {most} at most")
    widest = max(binding.elements for binding in program.bindings)
    if widest >= 1 << 32:
        raise IllegalSchedule(f"{program.name} counts {widest} elements in 32 bits")
