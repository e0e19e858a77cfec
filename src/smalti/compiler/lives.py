"""When in a run each storage is needed, and which results take the place of an operand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from smalti.fuse import HostRegion, Partition, Region, View
from smalti.fuse.support import When
from smalti.fuse.view import Storage
from smalti.kernel.form import Index, loads


class Lives:
    """The first and the last time at which each storage of a partition is needed.

    `times` are those of its regions, in order; regions that run in turns have the same. A result
    that overwrites an operand, element by element, lives in the place of its `root`.
    """

    def __init__(self, found: Partition, times: Sequence[int]) -> None:
        self.end = times[-1] + 1 if times else 0
        self._lives = self._needed(found, times)
        self._shared = _shared(found, self._lives, times)
        self.roots = [storage for storage in self._lives if storage not in self._shared]
        """Storages with places of their own."""

    def __getitem__(self, storage: Storage) -> tuple[int, int]:
        """From when to when a storage is needed, with all that share its place if it is a root."""
        first, last = self._lives[storage]
        return first, last

    def __iter__(self) -> Iterator[Storage]:
        return iter(self._lives)

    def root(self, storage: Storage) -> Storage:
        """The storage whose place this one has."""
        return _root(storage, self._shared)

    def _needed(self, found: Partition, times: Sequence[int]) -> dict[Storage, list[int]]:
        lives: dict[Storage, list[int]] = {}
        for view in found.inputs.values():
            lives[view.storage] = [0, 0]
        for time, region in zip(times, found.regions, strict=True):
            for view in region.views.values():
                if view.storage.kind in ("arena", "input"):
                    life = lives.setdefault(view.storage, [time, time])
                    life[1] = max(life[1], time)
                    if region.when < When.RUN:  # from one run to the next
                        life[:] = 0, self.end
        for view in found.outputs.values():
            if view.storage.kind in ("arena", "input"):
                lives.setdefault(view.storage, [0, 0])[1] = self.end
        return lives


def _root(storage: Storage, shared: dict[Storage, Storage]) -> Storage:
    while storage in shared:
        storage = shared[storage]
    return storage


def _shared(found: Partition, lives: dict[Storage, list[int]],
            times: Sequence[int]) -> dict[Storage, Storage]:
    """Results that may overwrite an operand read for the last time, element by element."""
    shared: dict[Storage, Storage] = {}
    together = Counter(times)
    for time, region in zip(times, found.regions, strict=True):
        out = region.views.get("out")
        if out is None or isinstance(region, HostRegion) or together[time] > 1 \
                or region.kernel.form not in ("map", "contraction") \
                or out.storage.kind != "arena" or lives[out.storage][0] != time:
            continue
        operand = _overwritable(region, out, lives, time)
        if operand is None:
            continue
        root = _root(operand, shared)
        if root.bytes < out.storage.bytes:
            continue
        shared[out.storage] = operand
        lives[root][1] = max(lives[root][1], lives[out.storage][1])
        lives[operand][1] = lives[root][1]
        lives[out.storage] = lives[root]
    return shared


def _overwritable(region: Region, out: View, lives: dict[Storage, list[int]],
                  time: int) -> Storage | None:
    """An operand that dies here, fills its storage, and is read exactly where `out` is written."""
    stages = region.kernel.stages
    axes = [name for name, _ in stages[-1].axes]
    elsewhere = {load.buffer for stage in stages[:-1] for load in loads(stage.value)}
    last = dict.fromkeys(loads(stages[-1].value))
    read = [load.buffer for load in last]
    for load in last:
        view = region.views.get(load.buffer)
        if view is None or load.buffer in elsewhere or view.storage.kind != "arena" \
                or read.count(load.buffer) != 1:
            continue
        reads = [v.storage for v in region.views.values()].count(view.storage)
        if lives[view.storage][1] != time or reads != 1 or view.offset or out.offset \
                or (view.storage.size, view.storage.dtype) != (out.storage.size,
                                                               out.storage.dtype):
            continue
        at = {}
        for index, stride, extent in zip(load.index, view.strides, view.shape):
            if not isinstance(index, Index) or index.divisor != 1 or index.offset \
                    or len(index.terms) > 1:
                break
            for name, coefficient in index.terms:
                if extent > 1:
                    at[name] = coefficient * stride
        else:
            wanted = {name: s for name, s, n in zip(axes, out.strides, out.shape) if n > 1}
            if at == wanted:
                return view.storage
    return None
