"""Where in the arena of a program everything lies that lives between kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smalti.compiler.module import Place
from smalti.compiler.plan import Interval, plan
from smalti.compiler.strips import LaunchOrder
from smalti.fuse import View
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


def arranged(found: LaunchOrder, workspaces: Sequence[int]) -> Arena:
    """The arena of a launch order whose regions need `workspaces` bytes besides, each while it
    runs."""
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
    offsets, size = plan(intervals, ALIGNMENT, behind)
    return Arena(size, {storage: offsets[numbers[lives.root(storage)]] for storage in lives},
                 dict(zip(working, offsets[len(numbers):], strict=True)))
