"""Where in the arena of a program everything lies that lives between kernels."""

from __future__ import annotations

from collections.abc import Sequence

from smalti.compiler.module import Place
from smalti.compiler.plan import Interval, plan
from smalti.compiler.strips import LaunchOrder
from smalti.dataclass import dataclass
from smalti.errors import UnsupportedError, UnsupportedNode
from smalti.fuse import HostRegion, View
from smalti.fuse.view import Storage

ALIGNMENT = 128


@dataclass(frozen=True)
class Arena:
    """An arena of `bytes`: the byte offsets of storages, and of the workspaces of kernels."""

    bytes: int
    storages: dict[Storage, int]
    workspaces: dict[int, int]

    def place(self, view: View) -> Place:
        """Where a view lies."""
        size = view.storage.element_bytes
        return Place(self.storages[view.storage] + size * view.offset, view.shape,
                     tuple(size * s for s in view.strides), view.storage.dtype)


def arranged(found: LaunchOrder, workspaces: Sequence[int], segment_bytes: int = 0) -> Arena:
    """The arena of a launch order whose regions need `workspaces` bytes besides, each while it
    runs; in segments of `segment_bytes`, unless that is 0.

    Raises UnsupportedError where a value, or a workspace, is larger than a segment.
    """
    if segment_bytes:
        _check_sizes(found, workspaces, segment_bytes)
    lives = found.lives
    numbers = {storage: number for number, storage in enumerate(lives.roots)}
    intervals = [Interval(s.bytes + ALIGNMENT, *lives[s]) for s in lives.roots]
    working = []
    for time, group in enumerate(found.groups):
        for region in group.regions:
            if workspaces[region]:
                working.append(region)
                intervals.append(Interval(workspaces[region], time, time))
    behind = {numbers[group.strips.operand]: (numbers[group.strips.result], group.strips.distance)
              for group in found.groups if group.strips}
    offsets, size = plan(intervals, ALIGNMENT, behind, segment_bytes)
    return Arena(size, {storage: offsets[numbers[lives.root(storage)]] for storage in lives},
                 dict(zip(working, offsets[len(numbers):], strict=True)))


def _check_sizes(found: LaunchOrder, workspaces: Sequence[int], segment_bytes: int) -> None:
    """Raise UnsupportedError naming the kernels that have a value or a workspace that is larger
    than a segment."""
    large = []
    for number, region in enumerate(found.partition.regions):
        size = max([workspaces[number], *(view.storage.bytes + ALIGNMENT
                                          for view in region.views.values()
                                          if view is not None and view.storage in found.lives)])
        if size > segment_bytes:
            form = region.operation if isinstance(region, HostRegion) else region.kernel.form
            large.append(UnsupportedNode(region.scope or "-", form, f"{size:,} bytes in one value"))
    if large:
        raise UnsupportedError(
            f"the device has buffers of {segment_bytes:,} bytes, and these have larger values; a "
            f"smaller picture, decoding in tiles, or a smaller precision has smaller ones:", large)
