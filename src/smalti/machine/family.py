"""What the models of all kinds of kernels have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smalti.machine.device import DeviceModel

Sizes = Mapping[str, np.ndarray]
"""Sizes of many problems at once: float arrays [problems] by field."""
Constants = Mapping[str, float]

LAUNCH, MATRIX, ISSUE, CACHE, MEMORY, LATENCY = range(6)
LIMITS = ("launch", "arithmetic", "special functions", "cache", "memory", "latency")
"""What can bind a kernel, by number."""


class Timing(NamedTuple):
    """The prediction for many problems: arrays [problems]; `binds` are numbers into `LIMITS`."""

    seconds: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    binds: np.ndarray

    def least(self, other: Timing) -> Timing:
        """The faster of two ways to compute each problem."""
        better = other.seconds < self.seconds
        return Timing(*(np.where(better, b, a) for a, b in zip(self, other, strict=True)))

    def later(self, seconds: np.ndarray | float, traffic: np.ndarray | float = 0.0) -> Timing:
        """This timing with more seconds, and more traffic with the memory."""
        return self._replace(seconds=self.seconds + seconds, bytes=self.bytes + traffic)


Model = Callable[[DeviceModel, str, Constants, Sizes], Timing]


@dataclass(frozen=True)
class KernelFamily:
    """Kernels of one kind: the sizes that tell them apart, and how long they take.

    `constants` are what the specification of a device does not tell, with their usual values, which
    calibration may change; `seconds` is the model.
    """

    name: str
    fields: tuple[str, ...]
    constants: Constants
    seconds: Model

    def key(self, dtype: str) -> str:
        """What tells what calibration has found for one family and dtype from the rest."""
        return f"{self.name}:{dtype}"


def waves(blocks: np.ndarray, units: int,
          resident: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """How often all units are full of blocks, `resident` each, and how many the busiest one has in
    the wave behind these."""
    full = np.floor(blocks / (units * resident))
    return full, np.ceil((blocks - full * units * resident) / units)


def binding(*limits: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The largest of several times, and which one it is."""
    numbers = np.array([number for number, _ in limits])
    times = np.stack(np.broadcast_arrays(*(time for _, time in limits)))
    return times.max(0), numbers[times.argmax(0)]
