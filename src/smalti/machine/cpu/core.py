"""What one core of a CPU does in a clock, and where its bytes come from."""

from __future__ import annotations

from dataclasses import dataclass

from smalti.machine.device import DeviceModel

PAIRS = "bf16"
"""The dtype under which a CPU that multiplies pairs of bf16 has a rate of its own."""
REACH = "reach"
"""The constant that is the share of the memory's bandwidth that one core reaches alone."""
STORE_SHARE = 0.5
"""Vectors stored over those loaded in a clock: of CPUs with two loads and one store."""


@dataclass(frozen=True)
class Core:
    """One core of a CPU.

    `lanes` f32 fill a vector; `ports` of them are multiplied and added, computed in other ways or
    loaded in a clock, `pairs` of pairs of bf16 (0 without). Caches are in bytes: two of its own,
    and the last one, which it shares. Rates are in bytes a second: `l2` and `l3` of one core,
    `reach` what it reads alone from memory, `memory` what all do. `launch` is the seconds of a
    barrier.
    """

    clock: float
    lanes: int
    ports: float
    pairs: float
    l1_bytes: float
    l2_bytes: float
    l3_bytes: float
    l2: float
    l3: float
    reach: float
    memory: float
    launch: float

    @property
    def stores(self) -> float:
        """Vectors stored in a clock."""
        return STORE_SHARE * self.ports


def core_of(device: DeviceModel, reach: float) -> Core:
    """The core of a CPU of the library, or of this machine; one reaches the share `reach` of the
    memory's bandwidth."""
    near, *far = device.caches
    last = far[-1] if far else near
    vector = 2 * device.units * device.clock * device.wave
    return Core(device.clock, device.wave, device.vector["f32"] / vector,
                device.vector.get(PAIRS, 0.0) / (2 * vector), device.l1,
                near.bytes / device.units, last.bytes, near.bandwidth / device.units,
                last.bandwidth / device.units,
                max(reach, 1 / device.units) * device.bandwidth, device.bandwidth,
                device.launch)
