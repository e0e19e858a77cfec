"""Which results of pointwise operations are stored, by what the timing model expects.

What stands in front of a kernel is computed inside of it, by each kernel that reads it, each time
that its operand is staged; or it is a kernel of its own, which stores what all others load. The
rules of `fuse.partition` go by the number of readers. Here both partitions are made whole, once
with all open results as the rules decide and once with all of them otherwise. Results that kernels
have in common are decided together, apart from all others: by the sum of what these kernels are
expected to take in one partition and in the other. Of another decision than the rules make, the
model has to expect a good deal, as it has of another algorithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from smalti.fuse import HostRegion, Partition, Region
from smalti.fuse.support import When
from smalti.graph import Value
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.machine.cpu import COLD, WARM, estimate_kernel
from smalti.schedule import Limits, choose
from smalti.tune.objective import Objective
from smalti.tune.preference import GAIN_MIN

Make = Callable[[Collection[Value]], Partition]
Cost = Callable[[Kernel], float]
CACHE_SHARE = 0.5
"""Share of the last cache that a value may take: what is larger has left it before the next kernel
reads it."""


def decided(make: Make, cost: Cost) -> Partition:
    """The partition that `make` makes of open values that are decided otherwise than by the rules:
    of those for which that is expected to cost far less. `cost` is that of a kernel in one run."""
    usual = make(())
    if not usual.open:
        return usual
    other = make(usual.open)
    groups = _groups(usual.open, usual, other)
    before, after = (by_group(found, groups, cost) for found in (usual, other))
    turned = {group for group in set(groups.values())
              if after[group] < (1 - GAIN_MIN) * before[group]}
    values = [value for value in usual.open if groups[value] in turned]
    found = make(values) if values else usual
    return _explained(found, groups, turned, before, after)


class Costs:
    """What kernels cost on a CPU under their first schedules, each counted once."""

    def __init__(self, aim: Objective, limits: Limits, precision: str) -> None:
        self._aim, self._limits, self._precision = aim, limits, precision
        self._known: dict[Kernel, float] = {}

    def of(self, kernel: Kernel) -> float:
        """The cost of a kernel; what is too large for the last cache is in memory."""
        if kernel not in self._known:
            aim, last = self._aim, self._aim.device.last_cache
            room = CACHE_SHARE * last.bytes if last else 0.0
            placement = {
                b.name: COLD if _bytes(b) > room or b.role == "parameter" else WARM
                for b in kernel.buffers if b.role != "local"}
            schedule = choose(kernel, self._limits, self._precision, growth_max=0)
            self._known[kernel] = aim.cost_of(estimate_kernel(
                aim.device, kernel, schedule, aim.threads, placement))
        return self._known[kernel]


def by_group(found: Partition, groups: Mapping[Value, Value], cost: Cost) -> dict[Value, float]:
    """The sums of the kernels of each group that each run computes."""
    sums: dict[Value, float] = defaultdict(float)
    for region in found.regions:
        if not isinstance(region, HostRegion) and region.result in groups \
                and region.when == When.RUN:
            sums[groups[region.result]] += cost(region.kernel)
    return sums


def _bytes(buffer) -> float:
    count = 1
    for extent, stride in zip(buffer.shape, buffer.strides):
        count *= extent if stride else 1
    return ELEMENT_BYTES[buffer.dtype] * count


def _groups(values: Collection[Value], *partitions: Partition) -> dict[Value, Value]:
    """A name for each of `values` and for each result of a kernel that reads one of them where it
    is stored: the same for those that such kernels connect."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    wanted = set(values)
    for value in values:
        root(value)
    for found in partitions:
        made = {region.views["out"].storage: region.result for region in found.regions
                if isinstance(region, Region) and region.result in wanted and "out" in region.views}
        for region in found.regions:
            if isinstance(region, Region) and region.result is not None:
                for view in region.views.values():
                    if view.storage in made:
                        parent[root(region.result)] = root(made[view.storage])
    return {value: root(value) for value in list(parent)}


def _explained(found: Partition, groups: Mapping[Value, Value], turned: Collection[Value],
               before: Mapping[Value, float], after: Mapping[Value, float]) -> Partition:
    """`found` with what was expected of both ways, at the kernels that they concern."""
    regions = []
    for region in found.regions:
        group = None if isinstance(region, HostRegion) else groups.get(region.result)
        if group is not None and before[group] and after[group]:
            share = after[group] / before[group]
            share = 1 / share if group in turned else share
            how = "the rules' way" if group in turned else "the other way"
            region = replace(region, reason=f"{region.reason}; with what it shares operands with, "
                                          f"expected {share:.2f} times as much {how}")
        regions.append(region)
    return replace(found, regions=regions)
