"""What a compute unit does in a clock, by the library of devices.

A GPU that the library does not know by its name has the rates of the largest one of its
architecture: within that, units differ in number and clock more than in what they do in one.
"""

from __future__ import annotations

from collections.abc import Mapping

from smalti.errors import UnknownDeviceError
from smalti.machine.device import DeviceModel
from smalti.machine.library import device, devices
from smalti.schedule.unit import UnitRates

SHARED_BYTES_PER_CLOCK = {"nvidia": 128.0, "amd": 128.0, "intel": 256.0, "apple": 128.0}
"""What a unit reads from its own memory in a clock: 32 banks of 4 bytes. Intel publishes none: a
guess."""
EXCLUSIVE = ("amd",)
"""Vendors whose matrix products are instructions of the ordinary units, which do nothing else
meanwhile (AMD, RDNA 3 instruction set architecture, 7.9)."""
COPIES = {"rdna3": 2}
"""Architectures that hold factors of matrices twice, in both halves of a subgroup (same, WMMA)."""
MADE = {"xe": 3.0}
"""Instructions for one beside the products: read off listings of Intel's compiler, which has no
scalar unit and moves each half by itself."""
SPREAD = {"xe_": 1.5}
BESIDE = {"rdna3": 24, "rdna4": 12, "xe2": 0, "xe_": 12, "ada": 5, "ampere": 5, "blackwell": 5}
"""Registers for one of sums and factors, and beside these and what is loaded, by the beginning of
an architecture: least squares over what Mesa 26 compiled (see `schedule/group_work.py`)."""

def unit_rates(found: DeviceModel) -> UnitRates:
    """The rates of a device of the library.

    >>> rates = unit_rates(device("rtx_4060"))
    >>> round(rates.factors), round(rates.matrix), rates.exclusive
    (128, 256, False)
    """
    def of_architecture(table: Mapping[str, float], usual: float) -> float:
        return next((value for start, value in table.items()
                     if found.architecture.startswith(start)), usual)

    clocks, usual = found.units * found.clock, UnitRates()
    return UnitRates(
        factors=found.vector["f32"] / 2 / clocks,
        matrix=found.matrix.get("f16", 0.0) / 2 / clocks or usual.matrix,
        shared=SHARED_BYTES_PER_CLOCK.get(found.vendor, usual.shared),
        cache=found.caches[0].bandwidth / clocks if found.caches else usual.cache,
        memory=found.bandwidth / clocks, registers=int(found.registers) // 4,
        shared_bytes=int(found.shared), units=found.units, exclusive=found.vendor in EXCLUSIVE,
        copies=int(of_architecture(COPIES, usual.copies)),
        made=of_architecture(MADE, usual.made),
        spread=of_architecture(SPREAD, usual.spread),
        beside=int(of_architecture(BESIDE, usual.beside)))


def rates_for(name: str, architecture: str) -> UnitRates:
    """The rates of a GPU that its driver calls so; where the library has no such name, of one of
    the same architecture, and those of no device where that is not known, either.

    >>> rates_for("AMD Radeon Graphics", "rdna4") == unit_rates(device("rx_9070_xt"))
    True
    """
    try:
        return unit_rates(device(name))
    except UnknownDeviceError:
        alike = [each for each in devices() if each.architecture == architecture]
        return unit_rates(max(alike, key=lambda each: each.units)) if alike else UnitRates()
