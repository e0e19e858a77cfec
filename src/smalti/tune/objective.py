"""What a program is to be best at, as a cost that the timing model expects of a kernel.

* latency: the seconds of a run that has the device for itself;
* throughput: the same where as many runs as the cores allow share caches and memory, each with its
  own threads (by default one, which waits for nobody);
* energy: joules of a run: power that is on anyway for its seconds, that of cores at work, and what
  bytes from memory take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smalti.errors import InputError
from smalti.kernel.form import Kernel
from smalti.machine.cpu import KernelEstimate, estimate_kernel
from smalti.machine.device import DeviceModel
from smalti.schedule import Schedule

OBJECTIVES = ("latency", "throughput", "energy")


@dataclass(frozen=True)
class Objective:
    """What is asked for of `threads` threads of `device`."""

    name: str
    device: DeviceModel
    threads: int

    def cost(self, kernel: Kernel, schedule: Schedule) -> float:
        """Seconds or joules of a kernel; see the module for which."""
        return self.cost_of(estimate_kernel(self.device, kernel, schedule, self.threads))

    def cost_of(self, expected: KernelEstimate) -> float:
        """Seconds or joules of a kernel for which these are expected already."""
        return expected.energy_joules if self.name == "energy" else expected.seconds

    @classmethod
    def on(cls, device: DeviceModel, threads: int, name: str) -> Objective:
        """The objective `name` for programs of so many threads. Raises InputError for another name.

        >>> from smalti import machine
        >>> eight = machine.device("ryzen_7_7700x")
        >>> Objective.on(eight, 2, "throughput").device.bandwidth == eight.bandwidth / 4
        True
        """
        checked(name)
        if name == "throughput":
            device = one_of(device, max(1, device.units // threads))
        return cls(name, device, threads)


def checked(name: str) -> str:
    """The name of an objective. Raises InputError for another one."""
    if name not in OBJECTIVES:
        raise InputError(f"objective {name!r} is unknown; known: {', '.join(OBJECTIVES)}")
    return name


def one_of(device: DeviceModel, programs: int) -> DeviceModel:
    """A CPU as each of so many programs sees it that run at once: its share of cores, caches and
    bandwidth."""
    caches = tuple(replace(cache, bytes=cache.bytes / programs,
                           bandwidth=cache.bandwidth / programs) for cache in device.caches)
    vector = {dtype: rate / programs for dtype, rate in device.vector.items()}
    return replace(device, units=max(1, device.units // programs), vector=vector, caches=caches,
                   bandwidth=device.bandwidth / programs, watts=device.watts / programs)
