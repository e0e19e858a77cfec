"""Contractions: which class makes the code of each algorithm."""

from __future__ import annotations

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.direct import DirectLowering
from smalti.codegen.cpu.in_place import InPlaceLowering
from smalti.codegen.cpu.lowered import NativeKernel
from smalti.codegen.cpu.planar import PlanarLowering
from smalti.codegen.cpu.winograd import WinogradLowering
from smalti.kernel.form import Kernel
from smalti.schedule.schedule import ContractionSchedule, Direct, InPlace, Planar, Winograd

LOWERINGS = {Direct: DirectLowering, InPlace: InPlaceLowering, Planar: PlanarLowering,
             Winograd: WinogradLowering}


def lower_contraction(kernel: Kernel, schedule: ContractionSchedule,
                      level: FeatureLevel) -> NativeKernel:
    """Machine code of a contraction, by the algorithm of its schedule."""
    return LOWERINGS[type(schedule.algorithm)](kernel, schedule, level).lower()
