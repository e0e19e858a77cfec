"""Kernel + schedule -> group programs: one module for each form, one entry for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smalti.codegen.gpu.attention import lower_attention
from smalti.codegen.gpu.contraction import lower_contraction
from smalti.codegen.gpu.depthwise import lower_depthwise
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.map import lower_map
from smalti.codegen.gpu.moments import lower_group, lower_rows
from smalti.codegen.gpu.reduction import lower_reduction
from smalti.codegen.gpu.verifier import verify
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.schedule.group import GroupLimits, GroupSchedule

FORMS: dict[str, Callable[[Kernel, Any, GroupLimits], GroupSteps]] = {
    "contraction": lower_contraction,
    "map": lower_map,
    "reduction": lower_reduction,
    "group_scale_shift": lower_group,
    "layer_scale_shift": lower_rows,
    "rms_scale": lower_rows,
    "attention": lower_attention,
    "depthwise": lower_depthwise,
    "pooling": lower_depthwise,
}
"""What lowers each form of kernel, by the kind of schedule that is chosen for it."""


def lower(kernel: Kernel, schedule: GroupSchedule, limits: GroupLimits) -> GroupSteps:
    """The programs of `kernel` on a device with these limits. Raises IllegalSchedule when the
    schedule cannot be applied, or asks for more than the device has, and VerificationError if the
    programs are not well formed."""
    if kernel.form not in FORMS:
        raise IllegalSchedule(f"GPUs have no lowering of the form {kernel.form!r}")
    schedule.check(limits)
    lowered = FORMS[kernel.form](kernel, schedule, limits)
    for step in lowered.steps:
        verify(step, limits)
    return lowered
