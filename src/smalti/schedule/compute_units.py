"""A table of GPU architectures: registers, shared memory and subgroups of a compute unit, and how
many registers the vendor's compiler needs.

    compute_unit("rdna3_big").resident(96, 32, 256, 18432)

Names are those of the column `architecture` of machine/devices.csv. Facts are as Mesa's drivers and
compilers have them and the vendors write; `needs` are fitted to what these compilers say of
Smalti's programs (docs/gpu-compilers.md says when, and how well they fit).
"""

from __future__ import annotations

from dataclasses import replace

from smalti.errors import UnknownDeviceError
from smalti.schedule.group import GroupLimits
from smalti.schedule.residency import CompilerNeeds, ComputeUnit

KIB = 1 << 10  # bytes

ACO = ("Mesa, src/amd/compiler/aco_ir.cpp (registers, granules, subgroups, shared memory), "
       "aco_live_var_analysis.cpp (max_suitable_waves)")
NAK = ("Mesa, src/nouveau/compiler/nak (253 registers, warps in fours); CUDA C++ Programming "
       "Guide, table of compute capabilities")
BRW = ("Mesa, src/intel/common/intel_compute_slm.c (sizes of shared memory), "
       "src/intel/dev/intel_device_info.c (engines, threads)")

RDNA2 = ComputeUnit(
    "rdna2", 128 * KIB, registers_max=256, granule=16, subgroups=16, sharers=2,
    shared_bytes=64 * KIB, shared_granule=KIB, groups=16, double=True, source=ACO,
    needs=CompilerNeeds(1.0, 1.0, 0.78, 1.4, 1.09, 0.09, 0.0, 0.3))
RDNA3 = replace(
    RDNA2, architecture="rdna3_big", file_bytes=192 * KIB, granule=24, gives=True,
    needs=CompilerNeeds(0.99, 2.06, 0.69, 0.95, 0.03, 0.2, 0.0, 3.7))
"""Its matrix unit wants each factor twice in the registers of a subgroup of 32."""
XE_HPG = ComputeUnit(
    "xe_hpg", 32 * KIB, fixed_bytes=4 * KIB, subgroups=8, sharers=16, shared_bytes=128 * KIB,
    shared_sizes=tuple(KIB << n for n in range(7)), source=BRW,
    needs=CompilerNeeds(0.9, 2.19, 0.96, 1.71, 1.9, 0.2, 2.0, 2.7, held=1.0))
XE2 = ComputeUnit(
    "xe2_hpg", 64 * KIB, fixed_bytes=8 * KIB, subgroups=8, sharers=8, shared_bytes=128 * KIB,
    shared_sizes=tuple(KIB * n for n in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)), source=BRW,
    needs=CompilerNeeds(1.1, 1.92, 0.98, 1.63, 1.02, 0.2, 0.51, 2.29, held=1.85))
"""Its constants are between those that fit all graphs best and those of UNets, where every program
is right about spills."""
AMPERE = ComputeUnit(
    "ampere_ga10x", 256 * KIB, registers_max=253, granule=8, subgroups=48, step=4,
    shared_bytes=100 * KIB, shared_granule=128, shared_reserved=KIB, groups=16, source=NAK,
    needs=CompilerNeeds(1.02, 1.18, 0.67, 1.18, 0.65, 0.0, 0.0, 7.8, step=8, saves=0.016))

UNITS = {unit.architecture: unit for unit in (
    RDNA2, RDNA3,
    replace(RDNA2, architecture="rdna3_small", needs=RDNA3.needs, gives=True),
    replace(RDNA3, architecture="rdna4",
            needs=CompilerNeeds(0.96, 1.17, 0.69, 0.83, 0.36, 0.2, 0.0, 3.7)),
    XE_HPG, XE2, AMPERE,
    replace(AMPERE, architecture="turing_rtx", subgroups=32, shared_bytes=64 * KIB,
            shared_reserved=0),
    replace(AMPERE, architecture="ampere_ga100", subgroups=64, shared_bytes=164 * KIB, groups=32),
    replace(AMPERE, architecture="ada", groups=24),
    replace(AMPERE, architecture="hopper", subgroups=64, shared_bytes=228 * KIB, groups=32),
    replace(AMPERE, architecture="blackwell_gb20x", groups=24),
)}
"""The units of the architectures that are known, by name."""
LIKE = {"turing_gtx": "turing_rtx", "turing_pro": "turing_rtx", "ampere_ga10x_pro": "ampere_ga10x",
        "ada_pro": "ada", "blackwell_gb20x_pro": "blackwell_gb20x"}
"""Architectures whose compute units are the same as those of another."""


USUAL = CompilerNeeds(1.0, 1.2, 0.8, 1.2, 0.6, 0.2, 0.0, 4.0)
"""What a compiler needs that nobody knows: about the middle of those that are known."""


def known_unit(architecture: str) -> ComputeUnit | None:
    """The compute unit of an architecture; None where that is not in the table.

    >>> known_unit("apple7") is known_unit("") is None
    True
    """
    return UNITS.get(LIKE.get(architecture, architecture))


def needs_of(limits: GroupLimits) -> CompilerNeeds:
    """What the compiler of a device needs: that of its architecture, or where that is not in the
    table `USUAL`; those of Xe-HPG where invocations have few registers, which is why it spares
    them.

    >>> needs_of(GroupLimits()) == USUAL, needs_of(GroupLimits(registers=128)) == XE_HPG.needs
    (True, True)
    """
    found = known_unit(limits.architecture)
    if found is None:
        return XE_HPG.needs if limits.few_registers else USUAL
    return found.needs


def compute_unit(architecture: str) -> ComputeUnit:
    """The compute unit of an architecture. Raises UnknownDeviceError for an architecture that is
    not in the table.

    >>> compute_unit("ada").resident(96, 32, 128, 0)
    20
    """
    found = known_unit(architecture)
    if found is None:
        raise UnknownDeviceError(f"no facts of the units of {architecture!r}; there are those of "
                                 f"{', '.join((*UNITS, *LIKE))}")
    return found
