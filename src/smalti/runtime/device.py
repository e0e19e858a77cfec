"""What is said of a device that programs run on."""

from __future__ import annotations

from dataclasses import field

from smalti.dataclass import dataclass
from smalti.runtime.gpu.removals import Removal

LIBRARY = "library"
"""What ids begin with of devices of the timing model's library, which need not be here: programs
of them are timed and weighed (see `foretold`), and do not run."""
OWN_MEMORY = ("discrete", "virtual")
"""Kinds of devices that have memory of their own."""
USUAL_CACHE_BYTES = {1: 32 << 10, 2: 512 << 10, 3: 4 << 20}
"""By level, for what does not tell: as most processors of desktops have them, or less."""


@dataclass(frozen=True)
class Device:
    """Something that programs run on.

    `id` is "cpu", or names what drives a GPU, and its number there: "vulkan:0", "wgpu:0". `kind` is
    "cpu" (so are drivers that compute on it), "discrete", "integrated", "virtual" or "other".
    `features` are instruction sets, in the words of `/proc/cpuinfo`, or what programs of a GPU may
    use. `cores` are those this process may use, `speeds` that of each in that of the fastest.
    `l1_bytes` and `l2_bytes` are the data caches of one core, `l3_bytes` is the last cache, which
    it shares with others; usual sizes where none is told. `driver` is that of a GPU, `matrices`
    what its matrix unit multiplies, `removals` what it is not used for though its driver offers it.
    """

    id: str
    name: str
    kind: str
    memory_bytes: int
    features: tuple[str, ...]
    cores: int = 1
    l1_bytes: int = field(default=USUAL_CACHE_BYTES[1], repr=False)
    l2_bytes: int = field(default=USUAL_CACHE_BYTES[2], repr=False)
    l3_bytes: int = field(default=USUAL_CACHE_BYTES[3], repr=False)
    driver: str = field(default="", repr=False)
    matrices: tuple[str, ...] = field(default=(), repr=False)
    removals: tuple[Removal, ...] = field(default=(), repr=False)
    speeds: tuple[float, ...] = field(default=(), repr=False)
    identity: str = field(default="", repr=False)

    @property
    def has_own_memory(self) -> bool:
        """Whether programs compute in memory of the device, and not in main memory.

        >>> Device("vulkan:0", "GeForce RTX 3060", "discrete", 12 << 30, ()).has_own_memory
        True
        """
        return self.kind in OWN_MEMORY

