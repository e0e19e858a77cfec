"""Probes on a device that is open: each attempt is one outcome, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain

from smalti.codegen.target import Target
from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError, IllegalSchedule
from smalti.runtime.doctor import kernels, programs, traffic
from smalti.runtime.doctor.bench import Bench
from smalti.runtime.doctor.probe import DeviceProbe, Outcome, ProbeCase
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.removals import TRANSFER_QUEUE, reduced, unexplained
from smalti.schedule.group import GroupLimits

Key = tuple[str, tuple[str, ...]]
"""The name of a probe, and the names of what is removed."""


def all_probes(target: Target, limits: GroupLimits) -> Iterator[DeviceProbe]:
    """Every probe of a device of these limits: the simplest first, as others rely on them."""
    return chain(traffic.probes(target, limits), programs.probes(target, limits),
                 kernels.probes(target, limits))


class Attempts:
    """Attempts on a device that `opened` opens without some things.

    `known` are outcomes of attempts that were made before, by a process that did not survive.
    `begin` is told which attempt begins, and of which suspects, `end` how it ended: both of those
    that something runs for.
    """

    def __init__(self, opened: Callable[[tuple[str, ...]], Gpu],
                 known: Mapping[Key, Outcome] | None = None,
                 begin: Callable[[Key, tuple[str, ...]], None] = lambda key, suspects: None,
                 end: Callable[[Key, Outcome], None] = lambda key, outcome: None,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.opened, self.known, self.clock = opened, dict(known or {}), clock
        self.begin, self.end = begin, end
        self._gpus: dict[tuple[str, ...], Gpu] = {}
        self._right: set[tuple[str, Hashable]] = set()

    def gpu(self, removed: tuple[str, ...] = ()) -> Gpu:
        """The device without those of `removed` that are no limits."""
        needed = tuple(name for name in removed if name == TRANSFER_QUEUE)
        if needed not in self._gpus or self._gpus[needed].lost:
            self._gpus[needed] = self.opened(needed)
        return self._gpus[needed]

    def __call__(self, probe: DeviceProbe, removed: tuple[str, ...]) -> Outcome:
        """What comes of a probe. Raises DeviceMemoryError where memory is too full to tell."""
        gpu, removals = self.gpu(removed), [unexplained(name) for name in removed]
        case = cased(probe, gpu.target, reduced(gpu.limits, removals))
        if case is None:
            return Outcome()
        if (probe.name, removed) in self.known:
            outcome = self.known[probe.name, removed]
        elif (probe.name, case.key) in self._right:
            return Outcome()
        else:
            self.begin((probe.name, removed), case.suspects)
            outcome = self.run(case, Bench(gpu, removals, self.clock))
            self.end((probe.name, removed), outcome)
            self.known[probe.name, removed] = outcome
        if not outcome.trouble:
            self._right.add((probe.name, case.key))
        return outcome

    @staticmethod
    def run(case: ProbeCase, bench: Bench) -> Outcome:
        """What comes of a case."""
        try:
            return Outcome(case.run(bench), case.suspects)
        except DeviceLostError:
            bench.gpu.lost = True
            return Outcome("the device was lost", case.suspects, fatal=True)
        except DeviceMemoryError:
            raise
        except DeviceError as error:
            return Outcome(f"its driver refuses: {error}", case.suspects)


def cased(probe: DeviceProbe, target: Target, limits: GroupLimits) -> ProbeCase | None:
    """What a probe tries under these limits; None where that is nothing, or no schedule fits, so
    that programs are refused, too."""
    try:
        return probe.case(target, limits)
    except IllegalSchedule:
        return None


