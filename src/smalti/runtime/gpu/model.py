"""A GPU as the library of the timing model knows it."""

from __future__ import annotations

from dataclasses import replace

from smalti import machine
from smalti.machine.measured import REACHED, MeasuredGpu
from smalti.runtime.device import Device
from smalti.runtime.doctor.verdict import kept
from smalti.runtime.gpu.architecture import library_name

GUESSED_RATE = 0.3e12
"""Multiplications and additions a second of a compute unit of a GPU that the library does not know.
"""
GUESSED_RATES = {"discrete": 8e12, "virtual": 8e12, "integrated": 1e12, "other": 1e12}
"""Those of all of it, where its driver does not tell how many there are."""


def recorded(found: Device) -> machine.DeviceModel | None:
    """A GPU as the library of the timing model knows it, with what its check has measured, and
    without a matrix unit that its driver does not let programs use; as it was measured where the
    library does not know it. None of others, and of drivers that compute on the CPU.

    >>> recorded(Device("vulkan:0", "NVIDIA GeForce RTX 4060", "discrete", 8 << 30, ())).matrix
    {}
    """
    if found.kind == "cpu":
        return None
    measured = rates_of(found)
    known = machine.known_device(library_name(found.name))
    if known is None:
        return None if measured is None else measured.model(
            found.name, found.cores, found.memory_bytes, found.kind == "integrated")
    if measured is not None:
        known = measured.applied(known)
    usable = found.matrices or "matrices" in found.features
    return known if usable else replace(known, matrix={})


def rates_of(found: Device) -> MeasuredGpu | None:
    """What the check of a GPU has measured, if there was one."""
    verdict = kept(found.identity) if found.identity else None
    if verdict is None or verdict.rates is None:
        return None
    rates = verdict.rates
    return MeasuredGpu(rates.products, rates.memory, rates.launch,
                       min(rates.upload, rates.download))


def rate(found: Device) -> float:
    """Multiplications and additions of a product a second, as measured or by the model of a GPU; 0
    of a driver that computes on the CPU, which Smalti's own code does better."""
    if found.kind == "cpu":
        return 0.0
    if (measured := rates_of(found)) is not None:
        return max(measured.products.values()) / REACHED
    line = recorded(found)
    if line is None:
        return GUESSED_RATE * found.cores if found.cores > 1 else GUESSED_RATES[found.kind]
    return max((line.matrix or line.vector).values())
