"""What a program is to be best at, as a cost that the timing model expects of a kernel.

* latency: the seconds of a run that has the device for itself;
* throughput: the same where as many runs as the cores allow share caches and memory, each with its
  own threads (by default one, which waits for nobody);
* energy: joules of a run: power that is on anyway for its seconds, that of cores at work, and what
  bytes from memory take.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.kernel.form import Kernel
from smalti.machine.cpu import KernelEstimate, constants_of, estimate_kernel
from smalti.machine.device import DeviceModel
from smalti.schedule import Schedule

OBJECTIVES = ("latency", "throughput", "energy")
COSTS_MAX = 1 << 14
"""Costs that are kept to be asked for again, of 30 schedules for each of 500 kernels: 8 MB."""


@dataclass(frozen=True, eq=False)
class Objective:
    """What is asked for of `threads` threads of `device`. Objectives are equal that give the same
    costs."""

    name: str
    device: DeviceModel
    threads: int

    @cached_property
    def _text(self) -> str:
        """All that costs depend on."""
        return f"{self.name} {self.threads} {self.device!r} {dict(constants_of(self.device))}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objective) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def cost(self, kernel: Kernel, schedule: Schedule) -> float:
        """Seconds or joules of a kernel; see the module for which."""
        return _cost(self, kernel, schedule)

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


@lru_cache(maxsize=COSTS_MAX)
def _cost(objective: Objective, kernel: Kernel, schedule: Schedule) -> float:
    return objective.cost_of(estimate_kernel(objective.device, kernel, schedule, objective.threads))


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
