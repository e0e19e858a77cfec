"""The common part of the timing models of all families of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from smalti.dataclass import dataclass
from smalti.machine.device import DeviceModel

Sizes = Mapping[str, np.ndarray]
"""The sizes of many problems at once: by field, a float array [problems]."""
Constants = Mapping[str, float]

LAUNCH, MATRIX, ISSUE, CACHE, MEMORY, LATENCY = range(6)
LIMITS = ("launch", "arithmetic", "special functions", "cache", "memory", "latency")
"""What can limit a kernel; `Timing.binds` are indices into this."""


class Timing(NamedTuple):
    """The prediction for many problems: arrays [problems]; `binds` are indices into `LIMITS`."""

    seconds: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    binds: np.ndarray

    def least(self, other: Timing) -> Timing:
        """For each problem, the faster one of this timing and another."""
        better = other.seconds < self.seconds
        return Timing(*(np.where(better, b, a) for a, b in zip(self, other, strict=True)))

    def later(self, seconds: np.ndarray | float, traffic: np.ndarray | float = 0.0) -> Timing:
        """This timing with seconds, and bytes from and to memory, added."""
        return self._replace(seconds=self.seconds + seconds, bytes=self.bytes + traffic)


Model = Callable[[DeviceModel, str, Constants, Sizes], Timing]


@dataclass(frozen=True)
class KernelFamily:
    """A kind of kernels with its timing model.

    `fields` name the sizes of a problem. `constants` are numbers that no specification of a device
    gives, with usual values, which calibration may change. `seconds` is the model: it gives the
    timing of many problems.
    """

    name: str
    fields: tuple[str, ...]
    constants: Constants
    seconds: Model

    def key(self, dtype: str) -> str:
        """The key under which a device model has what calibration has found for this family and
        dtype."""
        return f"{self.name}:{dtype}"


def waves(blocks: np.ndarray, units: int,
          resident: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """How often all units are filled with `resident` work-groups each, and how many the busiest
    unit gets in the last wave, which is not full."""
    full = np.floor(blocks / (units * resident))
    return full, np.ceil((blocks - full * units * resident) / units)


def binding(*limits: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The largest of several times, and the number of the limit that it belongs to; each of
    `limits` is (number, time)."""
    numbers = np.array([number for number, _ in limits])
    times = np.stack(np.broadcast_arrays(*(time for _, time in limits)))
    return times.max(0), numbers[times.argmax(0)]
