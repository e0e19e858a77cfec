"""Makes the device model of the CPU that this process runs on.

Cores and caches are what the CPU itself says; what they do in a clock follows from its instruction
sets, and from the library of devices if it has this CPU. Bandwidths and clocks are guesses until
they are measured (`smalti calibrate`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from smalti.machine.cores import LANES as NEON_LANES
from smalti.machine.cores import core_facts
from smalti.machine.device import GUESSED, MEASURED, CacheLevel, DeviceModel
from smalti.machine.library import (
    CORE_CACHE_BYTES_PER_CLOCK,
    LAST_CACHE_BYTES_PER_CLOCK,
    known_device,
)

LANES = {"avx512f": 16, "avx2": 8, "asimd": NEON_LANES}
"""f32 numbers in a vector, by the widest instruction set."""
PORTS = 2.0
"""Vector multiply-adds in a clock, on all cores with AVX2 but those of `HALF_WIDTH`, and on cores
of AArch64 that the library does not have."""
PAIRS = frozenset({"avx512_bf16", "bf16"})
"""Instruction sets with products of pairs of bf16, on x86 and on AArch64."""
HALF_WIDTH = ("zen4",)
"""Architectures that take two clocks for a vector of 512 bits."""
BARRIER_SECONDS = 1e-6
"""Seconds of a barrier of a few threads, until it is measured."""
CLOCK, WATTS_A_CORE = 3.5e9, 10.0
"""Clock in Hz and power of a core of a CPU that the library does not have: guesses."""
EXTRAS = re.compile(r"\d+-Core Processor|with .*|w/ .*|CPU.*|@.*|\d+th Gen|Processor", re.I)
"""Parts of brand strings that do not belong to the name."""
MEMORY_BYTES_A_SECOND, MEMORY_MAX = 20e9, 80e9
"""Bytes a second from memory, if the library does not say: of each core while the others read, too,
and of all cores together at most. Guesses."""


class Processor(Protocol):
    """What a CPU says of itself (see `runtime/cpu/adapter.py`)."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> Collection[str]: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def cores(self) -> int: ...

    @property
    def speeds(self) -> Sequence[float]: ...

    @property
    def l1_bytes(self) -> int: ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def l3_bytes(self) -> int: ...


def detect(found: Processor) -> DeviceModel:
    """The device model of a CPU; its cores are those that this process may use.

    If the library has a CPU of its name, clock, bandwidth and power come from there; the power in
    proportion to the cores.
    """
    lanes = next((n for name, n in LANES.items() if name in found.features), 4)
    line, core = _line(found.name), core_facts(found.name)
    clock = line.clock if line else core.clock if core else CLOCK
    half = line is not None and lanes == 16 and line.architecture.startswith(HALF_WIDTH)
    ports = core.multiply_adds if core else PORTS / 2 if half else PORTS
    worth = sum(found.speeds)  # slow cores count as the part of a fast one that they are
    rate = 2 * worth * clock * lanes * ports
    vector = {"f32": rate, "f16": rate}
    if not PAIRS.isdisjoint(found.features):
        vector["bf16"] = 2 * rate
    bandwidth = min(line.bandwidth if line else MEMORY_MAX, MEMORY_BYTES_A_SECOND * found.cores)
    caches = (
        CacheLevel("l2", found.cores * found.l2_bytes,
                   found.cores * CORE_CACHE_BYTES_PER_CLOCK * clock),
        CacheLevel("l3", found.l3_bytes, found.cores * LAST_CACHE_BYTES_PER_CLOCK * clock))
    origin = dict.fromkeys(("clock", "vector", "l2_bandwidth", "l3_bandwidth", "bandwidth",
                            "launch", "watts"), GUESSED)
    origin |= dict.fromkeys(("units", "wave", "l1", "l2_bytes", "l3_bytes", "memory"), MEASURED)
    base = line if line else _blank(found)
    return replace(
        base, id="cpu", name=found.name, units=found.cores, clock=clock, vector=vector, matrix={},
        l1=found.l1_bytes, caches=caches, memory=found.memory_bytes, bandwidth=bandwidth,
        launch=BARRIER_SECONDS, watts=_watts(line, found.cores), wave=lanes, threads=found.cores,
        origin=origin)


def _line(name: str) -> DeviceModel | None:
    """The CPU of this name in the library: a GPU may be called alike, as Apple's are, and of one
    that is called as its cores are nothing else is known."""
    line = known_device(EXTRAS.sub("", name))
    return line if line and line.kind == "cpu" and core_facts(name) is None else None


def _watts(line: DeviceModel | None, cores: int) -> float:
    return line.watts * min(1.0, cores / line.units) if line else WATTS_A_CORE * cores


def _blank(found: Processor) -> DeviceModel:
    """The device model of a CPU that the library does not have."""
    vendor = next((v for v in ("amd", "intel", "apple") if v in found.name.lower()), "")
    return DeviceModel("cpu", found.name, vendor, "", "cpu", found.cores, CLOCK, {}, {}, 0.0, 0.0,
                       0.0, 0.0, (), 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, True)


def at_level(cpu: DeviceModel, lanes: int, pairs: bool) -> DeviceModel:
    """The device model `cpu` for code that uses vectors of `lanes` f32 and, only if `pairs`,
    products of pairs of bf16.

    >>> from smalti import machine
    >>> narrow = at_level(machine.device("ryzen_9_9950x"), 8, False)
    >>> narrow.wave, narrow.vector["f32"] < machine.device("ryzen_9_9950x").vector["f32"]
    (8, True)
    """
    full = 2 * cpu.units * cpu.clock * PORTS * lanes if lanes < cpu.wave else math.inf
    vector = {name: min(rate, full) for name, rate in cpu.vector.items() if name != "bf16"}
    if pairs:
        vector["bf16"] = min(cpu.vector.get("bf16", 2 * vector["f32"]), 2 * full)
    return replace(cpu, wave=min(lanes, cpu.wave), vector=vector)
