"""Schedules that were measured to be better than the first choice, as the compiler asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from smalti import settings
from smalti.kernel.form import Kernel
from smalti.runtime import cache
from smalti.runtime.devices import available_levels, cpu
from smalti.schedule import Schedule, parse
from smalti.tune.store import NAME, Scope, Store, digest

GENERATORS = ("kernel", "schedule", "target")
"""Folders of the code that a measurement depends on."""


def store() -> Store:
    """What was measured by this user."""
    return Store(settings.cache_folder() / NAME)


def scope(target: str, threads: int, precision: str, objective: str = "latency") -> Scope:
    """Where measurements of programs for a feature level hold, on this CPU."""
    device = cpu()
    caches = " ".join(f"{size >> 10}K" for size in (device.l1_bytes, device.l2_bytes,
                                                     device.l3_bytes))
    return Scope(f"{device.name}, {caches}", target, threads, precision,
                 cache.code_digest(*GENERATORS), objective=objective)


@dataclass
class Known:
    """The fastest verified schedules, by the digest of their kernels' texts.

    `asked` has the kernels that were asked for, and their digests.
    """

    best: Mapping[str, str] = field(default_factory=dict)
    asked: dict[Kernel, str] = field(default_factory=dict)

    @classmethod
    def on_this_cpu(cls, target: str, threads: int, precision: str) -> Known:
        """What the store knows; nothing for a feature level that this CPU does not have."""
        if target not in available_levels() or not store().path.exists():
            return cls()
        found = store().best(scope(target, threads, precision))
        return cls({kernel: measured.schedule for kernel, measured in found.items()})

    def schedule(self, kernel: Kernel) -> Schedule | None:
        """The fastest known schedule of a kernel."""
        if kernel not in self.asked:
            self.asked[kernel] = digest(str(kernel))
        found = self.best.get(self.asked[kernel])
        return None if found is None else parse(found)

    def key(self, kernels: Iterable[str]) -> str:
        """What of all that is known matters to a program of these kernels, by their digests."""
        picks = [f"{kernel} {self.best[kernel]}" for kernel in sorted(set(kernels))
                 if kernel in self.best]
        return " with " + json.dumps(picks) if picks else ""
