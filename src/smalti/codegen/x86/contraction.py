"""Contractions: which class makes the code of each algorithm."""

from __future__ import annotations

from smalti.codegen.x86.direct import DirectLowering
from smalti.codegen.x86.in_place import InPlaceLowering
from smalti.codegen.x86.instructions import FeatureLevel
from smalti.codegen.x86.lowered import NativeKernel
from smalti.codegen.x86.planar import PlanarLowering
from smalti.codegen.x86.winograd import WinogradLowering
from smalti.kernel.form import Kernel
from smalti.schedule.schedule import ContractionSchedule, Direct, InPlace, Planar, Winograd

LOWERINGS = {Direct: DirectLowering, InPlace: InPlaceLowering, Planar: PlanarLowering,
             Winograd: WinogradLowering}


def lower_contraction(kernel: Kernel, schedule: ContractionSchedule,
                      level: FeatureLevel) -> NativeKernel:
    """Machine code of a contraction, by the algorithm of its schedule."""
    return LOWERINGS[type(schedule.algorithm)](kernel, schedule, level).lower()
