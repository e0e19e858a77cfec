"""What is known of GPUs and their drivers, as data: what goes wrong where, and who has seen it.

A row is for a vendor, drivers, a range of their versions and a name or an architecture; where a
device fits, its removal holds (`removals.py`). Matrix units go the other way: they are used where a
row of `MATRIX_UNITS` allows it, or where the check of this machine has proven them.

    removals_for(facts)                         what is not used of a device
    removals_for(facts, proven=("matrices",))   the same after a check that found these right

Numbers are those of VkDriverId and of PCI vendors; wgpu tells the latter only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import field

from smalti.dataclass import dataclass
from smalti.runtime.gpu.removals import (
    AUTOMATIC,
    GROUPS,
    MATRICES,
    SUBGROUP_OPERATIONS,
    SUBGROUP_SIZES,
    Removal,
    above,
)

AMD, APPLE, INTEL, MICROSOFT, NVIDIA, QUALCOMM = 0x1002, 0x106B, 0x8086, 0x1414, 0x10DE, 0x5143
"""Vendors, by the numbers that the PCI-SIG has given them."""

(AMD_PROPRIETARY, AMD_OPEN_SOURCE, RADV, NVIDIA_PROPRIETARY, INTEL_WINDOWS, INTEL_MESA,
 IMAGINATION, QUALCOMM_PROPRIETARY, ARM, SWIFTSHADER) = range(1, 11)
LLVMPIPE, MOLTENVK, TURNIP, PANVK, VENUS, DOZEN, NVK, HONEYKRISP, KOSMICKRISP = (
    13, 14, 18, 20, 22, 23, 24, 26, 28)
"""Drivers of Vulkan, as VkDriverId numbers them."""

RDNA3, BEFORE_RDNA3, XE2, BEFORE_XE2 = "RDNA3", "before RDNA3", "Xe2", "before Xe2"
NONE: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What identifies a device and its driver, as far as that is told.

    `backend` is Vulkan, Metal or D3D12; `driver` is 0 where nobody tells, as wgpu does not;
    `version` is that of the driver in its vendor's own counting; `architecture` is one of those
    above, or "".
    """

    vendor: int
    name: str
    backend: str = "Vulkan"
    kind: str = "other"
    driver: int = 0
    version: tuple[int, ...] = ()
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class Quirk:
    """A removal, and the devices it is for: all that fit every field that says something.

    `versions` are the first and the last of a driver that are concerned.
    """

    removal: Removal
    vendor: int = 0
    drivers: tuple[int, ...] = ()
    versions: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    name: str = ""
    """A regular expression, for a part of the name."""
    backend: str = ""

    def holds(self, facts: AdapterFacts) -> bool:
        """Whether this is a device of it."""
        if self.versions is not None:
            first, last = self.versions
            if not first <= facts.version[:len(first)] or not facts.version[:len(last)] <= last:
                return False
        return (self.vendor in (0, facts.vendor) and self.backend in ("", facts.backend)
                and (not self.drivers or facts.driver in self.drivers)
                and bool(re.search(self.name, facts.name)))


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """Devices whose matrix unit is used as their drivers offer it; no `architectures` are all."""

    drivers: tuple[int, ...]
    source: str
    architectures: tuple[str, ...] = field(default=())


MATRIX_UNITS = (
    MatrixUnit((NVIDIA_PROPRIETARY,), "ggml uses it as advertised (llama.cpp #12260, #11595)"),
    MatrixUnit((AMD_PROPRIETARY, RADV), "ggml: RDNA3 and later; AMD's driver advertises products "
               "on GPUs without the unit (llama.cpp #10597, #11074)", (RDNA3,)),
    MatrixUnit((INTEL_MESA,), "ggml: Xe2 and later; before, they are emulated or slower than "
               "without (llama.cpp #12690, #24404, #14001)", (XE2,)),
    MatrixUnit((LLVMPIPE,), "Smalti's tests run on it"),
)
"""Who may use matrices without a check on this machine."""

RIGHT_LINES = {INTEL_MESA: "columns", LLVMPIPE: "rows"}
"""Drivers whose invocations hold a line of a right factor each, and which, in subgroups of as many
invocations as there are lines. So says what lowers matrices in Mesa's source, by where invocations
load from: `lower_cmat_load_store` in src/intel/compiler/brw/brw_nir_lower_cooperative_matrix.c, and
in src/gallium/frontends/lavapipe/nir/lvp_nir_lower_cooperative_matrix.c. In Intel's, element j of
word i of invocation n is that of row 2 i + j, column n, of halves as right factors.
The check of a machine asks again (`runtime/doctor/programs.py`), here and below."""
SUM_LINES = {INTEL_MESA: "columns", LLVMPIPE: "columns"}
"""The same of sums of f32, by the same functions: element i of invocation n is that of row i,
column n."""
LEFT_WORDS = (INTEL_MESA,)
"""Drivers whose invocations hold a word of each row of a left factor, by the same function: word i
of invocation n has columns 2 n and 2 n + 1 of row i, where a row has as many words as a subgroup
has invocations. Where it has half as many, as on Xe2, it is row 2 i, or 2 i + 1 in the upper half
of the subgroup: `GroupLineAttention.check` asks for the former."""

NO_MATRICES = Removal(
    MATRICES, "Matrix units of this device and driver give wrong numbers, or lose time, for some.",
    "Products are computed without them, until the check of this machine proves them.",
    "llama.cpp #10597, #11074, #12690, #24404")
NOT_CHOSEN = Removal(
    AUTOMATIC, "It computes on the CPU, or translates for another driver.",
    "It is used only where its name is given.", "wslg #1492")

QUIRKS = (
    Quirk(Removal(MATRICES, "NVIDIA's driver 565.90 gives wrong products on an RTX 4080.",
                  "Products are computed without the matrix unit; another driver has it.",
                  "llama.cpp #10734"),
          drivers=(NVIDIA_PROPRIETARY,), versions=((565, 90), (565, 90))),
    Quirk(Removal(SUBGROUP_SIZES, "MoltenVK says that subgroups of AMD's GPUs have 64 invocations, "
                  "and runs some of 32.", "Programs do not rely on their size.",
                  "MoltenVK #2756, llama.cpp #15846, #20029"),
          vendor=AMD, drivers=(MOLTENVK,)),
    Quirk(Removal(SUBGROUP_OPERATIONS, "KosmicKrisp adds wrongly in subgroups.",
                  "Sums go through shared memory.", "vllm-vulkan #22, #57"),
          drivers=(KOSMICKRISP,)),
    Quirk(Removal(SUBGROUP_OPERATIONS, "Shuffles in subgroups of Adreno return garbage.",
                  "Sums go through shared memory.", "ncnn #6778"),
          drivers=(QUALCOMM_PROPRIETARY,)),
    Quirk(Removal(MATRICES, "Matrices that Adreno loads by strided rows from shared memory are "
                  "wrong.", "Products are computed without the matrix unit.", "ncnn #6972"),
          vendor=QUALCOMM),
    Quirk(Removal(above(GROUPS, 256), "Work-groups that a pipeline of Metal has no registers for "
                  "do nothing, and nobody says so.", "Work-groups have 256 invocations at most.",
                  "wgpu #9176, #7429, gpuweb #5315"),
          backend="Metal"),
    Quirk(NOT_CHOSEN, drivers=(SWIFTSHADER, LLVMPIPE, DOZEN)),
    Quirk(NOT_CHOSEN, name=r"Microsoft Direct3D12|Microsoft Basic Render|llvmpipe|SwiftShader"),
)
"""All faults that are known, but for matrix units that are not in `MATRIX_UNITS`."""

IN_PROCESS_QUERIES = (NVIDIA_PROPRIETARY, RADV, INTEL_MESA, LLVMPIPE, NVK)
"""Drivers that are asked for shapes of matrices in this process. AMD's for Windows ends the process
on a Radeon 860M (AMDVLK #422, llama.cpp #22750); all others are asked in a child process."""

DRIVERS_BY_QUALITY = (
    NVIDIA_PROPRIETARY, RADV, AMD_PROPRIETARY, AMD_OPEN_SOURCE, INTEL_WINDOWS, INTEL_MESA,
    MOLTENVK, HONEYKRISP, KOSMICKRISP, QUALCOMM_PROPRIETARY, TURNIP, ARM, PANVK, IMAGINATION, NVK,
    0, VENUS, DOZEN, SWIFTSHADER, LLVMPIPE)
"""Of one GPU under two drivers, the first of these is used. Vendors' own and conformant ones come
first (of AMD's two, RADV is the one that is tested here, and AMDVLK is no longer maintained); what
translates comes last. 0 stands for all others."""


def through(better: str) -> tuple[Removal, ...]:
    """What a driver is not used for that reaches a GPU which a better one reaches, too; nothing
    where `better` is empty."""
    return (Removal(AUTOMATIC, f"{better} reaches the same GPU.",
                    "It is used only where its name is given.", "the device's UUID or place"),
            ) if better else ()


def quality(driver: int) -> int:
    """The place of a driver in that order; less is better.

    >>> quality(RADV) < quality(AMD_OPEN_SOURCE) < quality(DOZEN)
    True
    """
    return DRIVERS_BY_QUALITY.index(driver if driver in DRIVERS_BY_QUALITY else 0)


def architecture(vendor: int, subgroup_min: int, subgroup_max: int, mixed_products: bool) -> str:
    """What a GPU of AMD or Intel is, as ggml tells them apart: by the sizes of its subgroups, and
    whether products of signed and unsigned bytes are an instruction.

    >>> architecture(AMD, 32, 64, True), architecture(INTEL, 16, 32, True)
    ('RDNA3', 'Xe2')
    """
    if vendor == AMD:
        return RDNA3 if (subgroup_min, subgroup_max) == (32, 64) and mixed_products \
            else BEFORE_RDNA3
    if vendor == INTEL:
        return XE2 if subgroup_min == 16 else BEFORE_XE2
    return ""


def driver_version(driver: int, packed: int) -> tuple[int, ...]:
    """The version of a Vulkan driver, as its vendor counts.

    >>> driver_version(NVIDIA_PROPRIETARY, 565 << 22 | 90 << 14)[:2]
    (565, 90)
    """
    if driver == NVIDIA_PROPRIETARY:
        return packed >> 22, packed >> 14 & 0xFF, packed >> 6 & 0xFF, packed & 0x3F
    if driver == INTEL_WINDOWS:
        return packed >> 14, packed & 0x3FFF
    return packed >> 22, packed >> 12 & 0x3FF, packed & 0xFFF


def removals_for(facts: AdapterFacts, proven: Collection[str] = NONE) -> tuple[Removal, ...]:
    """What is not used of a device. What a check of this machine has `proven` (names as removals
    have them) needs no row of `MATRIX_UNITS`; a known fault stays one.

    >>> [each.what for each in removals_for(AdapterFacts(APPLE, "Apple M3", "Metal"))]
    ['work-groups above 256']
    """
    found = [quirk.removal for quirk in QUIRKS if quirk.holds(facts)]
    if facts.driver and MATRICES not in proven and not allowed_matrices(facts):
        found.append(NO_MATRICES)
    return tuple(dict.fromkeys(found))


def allowed_matrices(facts: AdapterFacts) -> bool:
    """Whether a row of `MATRIX_UNITS` lets this device use its matrix unit."""
    return any(facts.driver in row.drivers
               and (not row.architectures or facts.architecture in row.architectures)
               for row in MATRIX_UNITS)
