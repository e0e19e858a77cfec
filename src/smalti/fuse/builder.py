"""Puts a partition together, a region at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.support import When
from smalti.fuse.view import View
from smalti.graph import Node, Value
from smalti.kernel.form import Kernel


class PartitionBuilder:
    """A partition in the making.

    `result` is the value for which regions are added at present: of a copy that a kernel needs, the
    value that this kernel computes.
    """

    def __init__(self, partition: Partition, when: Mapping[Value, When]) -> None:
        self.partition, self.when = partition, when
        self.result: Value | None = None

    def add(self, kernel: Kernel, views: dict[str, View], node: Node | None, reason: str,
            flops: int = 0, when: When | None = None) -> None:
        """Add a region that computes `node`, at the time when its result is wanted unless another
        one is given; None is for what comes from no operation."""
        self.partition.regions.append(Region(
            kernel, views, _scope(node), reason, flops, self._when(node, when), self.result))

    def add_host(self, operation: str, attributes: Mapping[str, Any], views: dict[str, View],
                 node: Node | None, reason: str, flops: int = 0,
                 when: When | None = None) -> None:
        """Add a region that numpy computes; `reason` says why no kernel does."""
        self.partition.regions.append(HostRegion(
            operation, attributes, views, _scope(node), f"host: {reason}", flops,
            self._when(node, when)))

    def note_rows(self, numbers: View, extent: int) -> None:
        """Note that `numbers` are rows of a table of `extent` rows. Those that the caller gives are
        checked before each run."""
        storage, known = numbers.storage, self.partition.rows
        if storage.kind == "input":
            known[storage.name] = min(extent, known.get(storage.name, extent))

    def _when(self, node: Node | None, when: When | None) -> When:
        if when is not None:
            return when
        return When.RUN if node is None else self.when[node.output]


def _scope(node: Node | None) -> str:
    return node.scope if node is not None else ""
