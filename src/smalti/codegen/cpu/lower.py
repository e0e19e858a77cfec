"""Kernel + schedule -> machine code: one module for each form, one entry for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.attention import lower_attention
from smalti.codegen.cpu.contraction import lower_contraction
from smalti.codegen.cpu.depthwise import lower_depthwise
from smalti.codegen.cpu.lowered import NativeKernel
from smalti.codegen.cpu.map import lower_map
from smalti.codegen.cpu.moments import lower_group, lower_layer, lower_rms
from smalti.codegen.cpu.reduction import lower_reduction
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel
from smalti.schedule.schedule import Limits, Schedule

FORMS: dict[str, Callable[[Kernel, Any, FeatureLevel], NativeKernel]] = {
    "map": lower_map, "reduction": lower_reduction, "contraction": lower_contraction,
    "depthwise": lower_depthwise, "pooling": lower_depthwise, "attention": lower_attention,
    "group_scale_shift": lower_group, "layer_scale_shift": lower_layer, "rms_scale": lower_rms}
"""What lowers each form of kernel, by the kind of schedule that is chosen for it."""
TILES_MAX = (1 << 31) - 1
"""The largest number that `Assembler.divide` takes apart."""


def limits(level: FeatureLevel, threads: int = 1, l1_bytes: int = 32 << 10,
           l2_bytes: int = 512 << 10) -> Limits:
    """What `level` on a CPU with these caches means for schedules."""
    return Limits(level.lanes, level.vectors, l1_bytes, l2_bytes, threads,
                  level.pairs, level.by_lane, level.integers, level.blocks)


def lower(kernel: Kernel, schedule: Schedule, level: FeatureLevel) -> NativeKernel:
    """Machine code of `kernel`. Raises IllegalSchedule when the schedule cannot be applied."""
    if kernel.form not in FORMS:
        raise IllegalSchedule(f"CPUs have no lowering of the form {kernel.form!r}")
    if hasattr(schedule, "check"):
        schedule.check(limits(level))
    lowered = FORMS[kernel.form](kernel, schedule, level)
    for step in lowered.steps:
        if step.tiles > TILES_MAX:
            raise IllegalSchedule(f"{schedule} makes {step.tiles} tiles, of {TILES_MAX} at most")
    return lowered


__all__ = ["NativeKernel", "limits", "lower"]
