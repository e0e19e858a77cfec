"""Builds a partition, one region after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.support import When
from smalti.fuse.view import View
from smalti.graph import Node, Value
from smalti.kernel.form import Kernel


class PartitionBuilder:
    """Adds regions to a partition.

    `result` is the value that regions are being added for: several may be needed for one value, as
    a copy of an operand and then the kernel that reads it. `when` says when each value is computed.
    """

    def __init__(self, partition: Partition, when: Mapping[Value, When]) -> None:
        self.partition, self.when = partition, when
        self.result: Value | None = None

    def add(self, kernel: Kernel, views: dict[str, View], node: Node | None, reason: str,
            flops: int = 0, when: When | None = None) -> None:
        """Add a region that computes `node`, or part of it.

        It runs at the time `when`; by default when the result of `node` is computed. `node` is
        None for regions that belong to no operation, such as copies of inputs.
        """
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
        """Note that `numbers` are used as row numbers of a table of `extent` rows. If they are an
        input of the program, they are checked before each run."""
        storage, known = numbers.storage, self.partition.rows
        if storage.kind == "input":
            known[storage.name] = min(extent, known.get(storage.name, extent))

    def _when(self, node: Node | None, when: When | None) -> When:
        if when is not None:
            return when
        return When.RUN if node is None else self.when[node.output]


def _scope(node: Node | None) -> str:
    return node.scope if node is not None else ""
