"""Schedules that were measured to be better than the first choice, as the compiler asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from smalti import settings
from smalti.kernel.form import Kernel
from smalti.machine.cpu import constants_of
from smalti.runtime import cache
from smalti.runtime.devices import available_levels, cpu, modelled
from smalti.schedule import Limits, Schedule, parse
from smalti.tune.algorithms import Cost
from smalti.tune.objective import Objective
from smalti.tune.preference import preferred
from smalti.tune.store import NAME, MeasurementScope, ScheduleStore, digest

GENERATORS = ("kernel", "schedule", "codegen")
"""Folders of the code that a measurement depends on."""


def store() -> ScheduleStore:
    """What was measured by this user."""
    return ScheduleStore(settings.cache_folder() / NAME)


def scope(target: str, threads: int, precision: str,
          objective: str = "latency") -> MeasurementScope:
    """Where measurements of programs for a feature level hold, on this CPU."""
    device = cpu()
    caches = " ".join(f"{size >> 10}K" for size in (device.l1_bytes, device.l2_bytes,
                                                     device.l3_bytes))
    return MeasurementScope(f"{device.name}, {caches}", target, threads, precision,
                            cache.code_digest(*GENERATORS), objective=objective)


@dataclass
class Known:
    """The fastest verified schedules, by the digest of their kernels' texts; for other kernels what
    the timing model prefers by far for an `objective`, where there is one.

    `usual` is the same objective on the device as it says of itself: what the bytes of results
    depend on is chosen by that, so that calibrating changes none. `asked` has the kernels that were
    asked for, and their digests.
    """

    best: Mapping[str, str] = field(default_factory=dict)
    objective: Objective | None = None
    usual: Objective | None = None
    asked: dict[Kernel, str] = field(default_factory=dict)
    _preferred: dict[tuple[Kernel, Schedule], Schedule] = field(default_factory=dict)

    @classmethod
    def on_this_cpu(cls, target: str, threads: int, precision: str,
                    objective: str = "latency") -> Known:
        """What the store and the model know; nothing for a feature level that this CPU does not
        have."""
        if target not in available_levels():
            return cls()
        found = store().best(scope(target, threads, precision, objective))
        return cls({kernel: measured.schedule for kernel, measured in found.items()},
                   Objective.on(modelled(target), threads, objective),
                   Objective.on(modelled(target, calibrated=False), threads, objective))

    @property
    def cost(self) -> Cost | None:
        """What algorithms are chosen by."""
        return self.usual.cost if self.usual else None

    def schedules(self, kernel: Kernel, limits: Limits, first: Schedule) -> Iterator[Schedule]:
        """Schedules to use instead of the first choice, where they can be applied."""
        if kernel not in self.asked:
            self.asked[kernel] = digest(str(kernel))
        found = self.best.get(self.asked[kernel])
        if found is not None:
            yield parse(found)
        if self.objective is not None:
            if (kernel, first) not in self._preferred:
                self._preferred[kernel, first] = preferred(
                    kernel, limits, first, lambda s: self.objective.cost(kernel, s))
            yield self._preferred[kernel, first]

    def key(self, kernels: Iterable[str]) -> str:
        """What of all that is known matters to a program of these kernels, by their digests."""
        picks = [f"{kernel} {self.best[kernel]}" for kernel in sorted(set(kernels))
                 if kernel in self.best]
        by: list[object] = []
        if self.objective is not None:
            device = self.objective.device
            by = [self.objective.name, device.name, device.bandwidth, dict(constants_of(device))]
        return f" with {json.dumps([picks, by])}"
