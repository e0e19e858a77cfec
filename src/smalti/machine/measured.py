"""A GPU as it was measured, where the library does not know it, or knows less.

What a program reached is below what the device could do; peaks are taken to be that much higher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.machine.device import GUESSED, MEASURED, CacheLevel, DeviceModel
from smalti.machine.library import (
    BLOCKS,
    L1_KIB,
    MALL_BANDWIDTHS,
    REGISTERS_KIB,
    SHARED_KIB,
    THREADS,
    WAVE,
)

REACHED, MOVED = 0.5, 0.85
"""Shares of the peaks of arithmetic and memory that our products and copies reach: a guess from the
first, and what copies reach on GPUs of all vendors."""
UNIT = 1.15
"""How many times as fast as those of f32 products of 16 bits are, at least, where a matrix unit
makes them."""
CLOCK = 1.5e9
"""Hz of a GPU that nobody knows."""
CACHE_BYTES, WATTS = 4 << 20, 100.0
"""Its shared cache, and what it takes."""


@dataclass(frozen=True)
class MeasuredGpu:
    """What was measured: FLOP/s of products by dtype, bytes a second of memory and of the way from
    the host, seconds from one small launch to the next."""

    products: Mapping[str, float]
    memory: float
    launch: float
    link: float

    def applied(self, known: DeviceModel) -> DeviceModel:
        """A device of the library with what depends on this computer and its driver: launches and
        the way to the host. Peaks stay those of the library.

        >>> from smalti import machine
        >>> found = MeasuredGpu({"f32": 9e12}, 2e11, 7e-6, 6e9).applied(machine.device("rtx_4060"))
        >>> found.launch, found.origin["launch"], found.bandwidth / 1e9
        (7e-06, 'measured', 272.0)
        """
        origin = {**known.origin, "launch": MEASURED, "link": MEASURED}
        return replace(known, launch=self.launch, link=self.link, origin=origin)

    def model(self, name: str, units: int, memory_bytes: float, integrated: bool) -> DeviceModel:
        """A device that the library does not know.

        >>> found = MeasuredGpu({"f32": 2e12, "f16": 9e12}, 1.7e11, 5e-6, 1e10).model(
        ...     "A new GPU", 20, 8e9, False)
        >>> found.vector["f32"] / 1e12, found.matrix["f16"] / 1e12, round(found.bandwidth / 1e9)
        (4.0, 18.0, 200)
        """
        plain = self.products["f32"]
        matrix = {dtype: rate / REACHED for dtype, rate in self.products.items()
                  if dtype != "f32" and rate >= UNIT * plain}
        bandwidth = self.memory / MOVED
        origin = dict.fromkeys(("vector", "matrix", "bandwidth", "launch", "link"), MEASURED)
        return DeviceModel(
            id="", name=name, vendor="", architecture="", kind="gpu", units=max(units, 1),
            clock=CLOCK, vector={"f32": plain / REACHED, "f16": plain / REACHED}, matrix=matrix,
            registers=REGISTERS_KIB * 2**10, shared=SHARED_KIB * 2**10,
            shared_block=SHARED_KIB * 2**10, l1=L1_KIB * 2**10,
            caches=(CacheLevel("l2", CACHE_BYTES, MALL_BANDWIDTHS * bandwidth),),
            memory=memory_bytes, bandwidth=bandwidth, launch=self.launch, link=self.link,
            watts=WATTS, threads=THREADS, blocks=BLOCKS, wave=WAVE, integrated=integrated,
            origin=dict.fromkeys(("units", "clock", "l2_bandwidth", "watts"), GUESSED) | origin)
