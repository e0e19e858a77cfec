"""A partition and its regions: those that kernels compute, and those that numpy computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from smalti.dataclass import dataclass
from smalti.fuse.support import When
from smalti.fuse.view import View
from smalti.graph import Value
from smalti.kernel.form import Buffer, Kernel

ROLES = {"input": "input", "arena": "input", "parameter": "parameter", "constant": "parameter"}
"""The role of a buffer that a kernel reads, by the kind of its storage."""
WRITTEN = ("out", "scale", "shift")
"""Names of the buffers that kernels write."""


@dataclass(frozen=True)
class Region:
    """A group of operations that one kernel computes.

    `views` gives the memory of each buffer of the kernel by name. `scope` is where in the model it
    comes from, `reason` why the region ends here. `when` says when it runs: once after the
    parameters are bound, when a held input changes, or in each run. `result` is the value that it
    is computed for.
    """

    kernel: Kernel
    views: dict[str, View]
    scope: str
    reason: str
    flops: int
    when: When = When.RUN
    result: Value | None = None


@dataclass(frozen=True)
class HostRegion:
    """An operation that numpy computes, by the function in its record.

    `views` has its operands "x0", "x1", … and its result "out". `reason` says why no kernel
    computes it.
    """

    operation: str
    attributes: Mapping[str, Any]
    views: dict[str, View]
    scope: str
    reason: str
    flops: int
    when: When = When.RUN

    @property
    def operands(self) -> list[View]:
        """The operands in their order."""
        return [view for name, view in self.views.items() if name != "out"]


@dataclass
class Partition:
    """The regions of a graph, sorted by `when` and then in the order in which they run.

    `inputs` and `outputs` are the memory of the graph's inputs and outputs. `held` names inputs
    that change more rarely than others. `rows` gives, for each input that holds row numbers of
    tables, the number of rows of the smallest of these tables. `open` lists values for which both
    is possible: storing them, or computing them in each kernel that reads them.
    """

    name: str
    inputs: dict[str, View] = field(default_factory=dict)
    outputs: dict[str, View] = field(default_factory=dict)
    regions: list[Region | HostRegion] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    open: list[Value] = field(default_factory=list)


def buffer_of(name: str, view: View) -> Buffer:
    """The buffer `name` of a kernel, with the shape, strides and dtype of `view`."""
    role = "output" if name in WRITTEN else ROLES[view.storage.kind]
    return Buffer(name, role, view.shape, view.strides, view.storage.dtype)
