"""A core of a CPU: what it does in a clock, and how fast it reads caches and memory."""

from __future__ import annotations

from smalti.dataclass import dataclass
from smalti.machine.cores import LANES as NEON_LANES
from smalti.machine.device import DeviceModel

PAIRS = "bf16"
"""The dtype under which a device model has the rate of products of pairs of bf16."""
REACH = "reach"
"""The name of the constant for the share of the memory's bandwidth that one core reaches alone."""
STORE_SHARE = 0.5
"""Vectors stored in a clock, as a share of those loaded: for CPUs with two loads and one store."""


@dataclass(frozen=True)
class Core:
    """One core of a CPU.

    A vector has `lanes` f32. In a clock the core multiplies and adds `ports` vectors, computes as
    many in other ways, or loads as many; of pairs of bf16 it multiplies `pairs` vectors (0 if it
    has no such instruction). `l1_bytes` and `l2_bytes` are caches of its own, `l3_bytes` is the
    last one, which cores share. Rates are in bytes a second: `l2` and `l3` of one core, `reach`
    what it reads alone from memory, `memory` what all cores read together. `launch` is the seconds
    of a barrier.
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
    def by_lane(self) -> bool:
        """Whether multiply-adds take a lane of a vector as a factor of all: NEON's do."""
        return self.lanes == NEON_LANES

    @property
    def stores(self) -> float:
        """Vectors stored in a clock."""
        return STORE_SHARE * self.ports


def core_of(device: DeviceModel, reach: float) -> Core:
    """The core of a CPU; alone it reaches the share `reach` of the memory's bandwidth."""
    near, *far = device.caches
    last = far[-1] if far else near
    vector = 2 * device.units * device.clock * device.wave
    return Core(device.clock, device.wave, device.vector["f32"] / vector,
                device.vector.get(PAIRS, 0.0) / (2 * vector), device.l1,
                near.bytes / device.units, last.bytes, near.bandwidth / device.units,
                last.bandwidth / device.units,
                max(reach, 1 / device.units) * device.bandwidth, device.bandwidth,
                device.launch)
