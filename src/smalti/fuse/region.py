"""What a partition consists of: regions that kernels compute, and regions that numpy does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smalti.fuse.support import When
from smalti.fuse.view import View
from smalti.graph import Value
from smalti.kernel.form import Buffer, Kernel

ROLES = {"input": "input", "arena": "input", "parameter": "parameter", "constant": "parameter"}
"""What a kernel that reads a storage calls it, by the storage's kind."""
WRITTEN = ("out", "scale", "shift")
"""The buffers of a kernel that it writes."""


@dataclass(frozen=True)
class Region:
    """A kernel, the views its buffers stand for, and where in the model it comes from.

    `when` it runs: once after the parameters are bound, when a held input changes, or in each run.
    `result` is the value that it is computed for.
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
    """An operation that runs as its numpy meaning, on views of its operands "x0", "x1", … and of
    its result "out". `reason` says why no kernel computes it."""

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
    """The regions in the order in which they run, by `when`.

    `held` names inputs that change more rarely than others.
    `rows`: for each input whose numbers are rows of tables, the extent of the smallest table.
    `open` are values that may be stored, or computed by each kernel that reads them.
    """

    name: str
    inputs: dict[str, View] = field(default_factory=dict)
    outputs: dict[str, View] = field(default_factory=dict)
    regions: list[Region | HostRegion] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    open: list[Value] = field(default_factory=list)


def buffer_of(name: str, view: View) -> Buffer:
    """The buffer of a kernel that stands for `view`."""
    role = "output" if name in WRITTEN else ROLES[view.storage.kind]
    return Buffer(name, role, view.shape, view.strides, view.storage.dtype)
