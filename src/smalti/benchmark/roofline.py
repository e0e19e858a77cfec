"""The peaks of a machine: floating-point operations and bytes a second; measured for this CPU, as
published for GPUs.

Williams et al. 2009, "Roofline", doi:10.1145/1498765.1498785: a kernel takes at least the longer of
its FLOPs / peak and its bytes / bandwidth.
"""

from __future__ import annotations

from smalti.dataclass import dataclass
from smalti.runtime.cpu.adapter import cpu, feature_level
from smalti.runtime.cpu.probes import bandwidth, flops
from smalti.runtime.device import Device
from smalti.runtime.gpu.model import recorded

READ_BYTES_MIN = 256 << 20
"""Bytes that are read to measure main memory, at least: more than the caches of desktops; where the
last cache has over a quarter of that, four times its size is read."""


@dataclass(frozen=True)
class Roofline:
    """Peaks of a whole machine, in FLOP/s and bytes/s; `precision` is that of products."""

    machine: str
    precision: str
    flops_per_second: float
    bytes_per_second: float

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """The least time of a kernel.

        >>> Roofline("2 threads", "f32", 4e11, 2e10).seconds(flops=8e11, moved_bytes=1e9)
        2.0
        """
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)

    def __str__(self) -> str:
        return (f"peak of {self.machine}: {self.flops_per_second / 1e9:.0f} GFLOP/s in "
                f"{self.precision}, {self.bytes_per_second / 1e9:.1f} GB/s read from memory "
                f"(ridge at {self.flops_per_second / self.bytes_per_second:.1f} FLOP/byte)")


def measure(level_name: str, precision: str, threads: int) -> Roofline:
    """Measure both peaks: the best of some repetitions of a few tens of milliseconds each.

    Where a level has no instruction for bf16, its products are f32, and so is the peak. That of
    integers of 8 bits is not measured: what is said is that of all else.
    """
    chosen = feature_level(level_name)
    bf16 = precision != "f32" and chosen.pairs
    size = max(READ_BYTES_MIN, 4 * cpu().l3_bytes) // threads
    return Roofline(f"{threads} threads", "bf16" if bf16 else "f32", flops(chosen, bf16, threads),
                    bandwidth(chosen, size, threads))


def published(found: Device, precision: str) -> Roofline | None:
    """Both peaks of a GPU, by the library of the timing model; None where it does not know it."""
    known = recorded(found)
    if known is None:
        return None
    return Roofline(known.name, precision, known.rate(precision), known.bandwidth)
