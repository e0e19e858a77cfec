"""Rates of the compute unit of a GPU, for the choice of schedules, from the library of devices.

A GPU whose name the library does not have gets the rates of the largest one of its architecture:
GPUs of an architecture differ in the number of units and their clock more than in what a unit does
in a clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from smalti.machine.device import CacheLevel, DeviceModel
from smalti.machine.library import devices, known_device
from smalti.schedule.unit import UnitRates

SHARED_BYTES_PER_CLOCK = {"nvidia": 128.0, "amd": 128.0, "intel": 256.0, "apple": 128.0}
"""Bytes that a unit reads from its shared memory in a clock, by vendor: 32 banks of 4 bytes. Intel
publishes no figure: a guess."""
DOTS_PER_CLOCK = {"nvidia": 64.0, "amd": 64.0, "intel": 128.0}
"""Dot products of four bytes of a unit in a clock, by vendor. NVIDIA's pipe for products and dot
products of integers (Nsight Compute, pipelines, "FMA (heavy)") has 64 lanes from Volta on. A lane
of AMD's does one in a clock, as MI50's data sheet has it (53.6 TOPS of bytes, 13.4 TFLOPS of f32),
and RDNA 3 issues no two together (its instruction set, VOPD). An engine of Intel's does 8, 32
products by DP4A, and a unit has 16 (oneAPI GPU Optimization Guide, Xe architecture)."""
BYTES_OF_HALVES = {
    "turing_rtx": 4, "turing_pro": 2, "ampere_ga100": 2, "ampere_ga10x_pro": 2, "ampere_ga10x": 4,
    "ada_pro": 2, "ada": 4, "hopper": 2, "blackwell_gb20x_pro": 2, "blackwell_gb20x": 4,
    "blackwell_gb100": 2, "rdna3": 1, "rdna4": 2, "xe": 2}
"""Products of bytes in the matrix unit for one of halves with sums of f32, by the beginning of an
architecture's name, of peaks without sparsity. NVIDIA's white papers of the architectures: bytes
run at twice the rate of halves, of which GeForce cards add f32 at half of that (RTX 2080 Ti 215
TOPS for 54 TFLOPS, RTX 3090 285 for 71, RTX 4090 661 for 165, RTX 5090 838 for 210; A100 624 for
312, A40 299 for 150, L4 242 for 121, H100 1979 for 989). AMD: 512 operations of either in a clock
of a unit (GPUOpen, "How to accelerate AI applications on RDNA 3 using WMMA"); on RDNA 4 2048 for
1024 (GPUOpen, "Using the Matrix Cores of AMD RDNA 4 architecture GPUs"; RX 9070 XT 389 TOPS for 195
TFLOPS). Intel: 2 for 1 (Xe-HPG: 256 for 128 operations of an engine in a clock, Arc A770 275 TOPS
for 138 TFLOPS; B580 233 for 117)."""
EXCLUSIVE = ("amd",)
"""Vendors whose vector units execute matrix products, and do nothing else meanwhile (AMD, RDNA 3
instruction set architecture, 7.9)."""
COPIES = {"rdna3": 2}
"""Architectures that need each factor of a matrix product twice in registers, once in each half of
a subgroup (same document, WMMA)."""
MADE = {"xe": 3.0}
"""By the beginning of an architecture's name: instructions that the vendor's compiler makes of one
that is no product. Read off listings of Intel's compiler: Intel's GPUs have no scalar unit, and
their halves are moved separately."""
READ = {"xe_": 8.0, "xe2": 4.0}
"""Instructions for a matrix that is read from shared memory: Intel's compiler works out an address
for each word of an invocation, eight on Xe-HPG; on Xe2, and with others, what lies behind an
address is in the instruction. Read off the same listings."""


def unit_rates(found: DeviceModel) -> UnitRates:
    """The rates of a compute unit of a device of the library.

    >>> from smalti.machine import device
    >>> rates = unit_rates(device("rtx_4060"))
    >>> round(rates.factors), round(rates.matrix), round(rates.matrix_bytes / rates.matrix)
    (128, 256, 4)
    >>> rates.exclusive
    False
    """
    def of_architecture(table: Mapping[str, float], usual: float) -> float:
        return next((value for start, value in table.items()
                     if found.architecture.startswith(start)), usual)

    clocks, usual = found.units * found.clock, UnitRates()
    near = CacheLevel("usual", usual.cache_bytes, usual.cache * clocks)
    matrix = found.matrix.get("f16", 0.0) / 2 / clocks
    near, last = (found.caches[0], found.caches[-1]) if found.caches else (near, near)
    return UnitRates(
        factors=found.vector["f32"] / 2 / clocks,
        dots=DOTS_PER_CLOCK.get(found.vendor, usual.dots),
        matrix=matrix or usual.matrix,
        matrix_bytes=matrix * of_architecture(BYTES_OF_HALVES, 0.0) or usual.matrix_bytes,
        shared=SHARED_BYTES_PER_CLOCK.get(found.vendor, usual.shared),
        cache=near.bandwidth / clocks, cache_bytes=int(near.bytes),
        last=last.bandwidth / clocks, last_bytes=int(last.bytes),
        memory=found.bandwidth / clocks, registers=int(found.registers) // 4,
        shared_bytes=int(found.shared), units=found.units, exclusive=found.vendor in EXCLUSIVE,
        copies=int(of_architecture(COPIES, usual.copies)),
        made=of_architecture(MADE, usual.made),
        read=of_architecture(READ, usual.read))


def rates_for(name: str, architecture: str) -> UnitRates:
    """The rates of the GPU that its driver calls `name`.

    If the library does not have it, they are those of the largest GPU of the same architecture; if
    it does not have the architecture either, the defaults of `UnitRates`.

    >>> from smalti.machine import device
    >>> rates_for("AMD Radeon Graphics", "rdna4") == unit_rates(device("rx_9070_xt"))
    True
    """
    known = known_device(name)
    if known is not None:
        return unit_rates(known)
    alike = [each for each in devices() if each.architecture == architecture]
    return unit_rates(max(alike, key=lambda each: each.units)) if alike else UnitRates()
