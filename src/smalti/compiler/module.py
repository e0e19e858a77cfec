"""A module: what a program is on any target, code, launches, memory plan and names, but no weights.

It is plain data, which `encode.py` takes to bytes and back. Where targets differ, a field says how:
a launch on a CPU is of some tiles of a function, on a GPU of all work-groups of a shader; a weight
is packed by a function of the module, or by numpy.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.codegen.gpu.weight_layout import Packed
from smalti.codegen.shader import Shader
from smalti.codegen.target import ARENA, Reference
from smalti.dataclass import dataclass
from smalti.graph.operation import DTYPES, FLOATS
from smalti.schedule.group import GroupLimits

BF16_EXPONENT = 0x7F80
"""The exponent bits of a bf16: all are set in NaN and Inf, and in nothing else."""


@dataclass(frozen=True)
class Place:
    """A tensor in memory: byte offset, shape and strides (in bytes), dtype; `host_dtype` is the one
    that callers know it by, where that is another."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "f32"
    host_dtype: str = ""

    @property
    def known_as(self) -> str:
        """The dtype that callers know it by."""
        return self.host_dtype or self.dtype

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the last."""
        if 0 in self.shape:
            return 0
        return np.dtype(DTYPES[self.dtype]).itemsize + sum(
            (n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True)
class WinogradWeight:
    """That a layer computes F(`size`), and how its weight [o, c, 3, 3] lies in the parameter."""

    size: int
    folded: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class CodePacking:
    """That function number `function` packs a weight, a tile a panel."""

    function: int
    panels: int


@dataclass(frozen=True)
class ArrayPacking:
    """That numpy packs a weight to a `layout`, from a view of the parameter with this shape and
    these strides, in elements."""

    layout: Packed | PackedGroups | PackedBytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class WeightSlot:
    """Memory for a parameter, as it is or packed, or for a constant, which has no name.

    `start` is the first element that is meant, of the parameter or among the constants of the
    module. `dtype` is what the parameter is taken as, `stored` what is kept of it without packing.
    What only the `host` reads, in its calls, stays with it.
    """

    name: str
    dtype: str
    bytes: int
    start: int = 0
    stored: str = ""
    packing: CodePacking | ArrayPacking | None = None
    winograd: WinogradWeight | None = None
    host: bool = False

    @property
    def kind(self) -> str:
        """"packed", "raw" (as the parameter is) or "constant"."""
        return "packed" if self.packing else "raw" if self.name else "constant"

    def filled(self, values: np.ndarray) -> np.ndarray:
        """What to put there of a parameter, given flat and as `dtype`, where no function packs it.
        """
        if not isinstance(self.packing, ArrayPacking):
            kind = np.dtype(DTYPES[self.stored or self.dtype])
            with np.errstate(over="ignore"):
                return values[self.start:self.start + self.bytes // kind.itemsize].astype(
                    kind, copy=False)
        size, layout = values.itemsize, self.packing.layout
        if isinstance(layout, PackedGroups):
            form, (channels, *_), (row, *_) = layout.form, self.packing.shape, self.packing.strides
            groups = layout.c * layout.taps // form.group
            words = np.ndarray((channels, groups, form.words), values.dtype,
                               values.view(np.uint8).data, size * self.start,
                               (size * form.words_of(row), size * form.words, size))
            return layout.pack(words, f"weight {self.name!r}")
        logical = np.ndarray(self.packing.shape, values.dtype, values.view(np.uint8).data,
                             size * self.start, tuple(size * s for s in self.packing.strides))
        return np.ascontiguousarray(layout.pack(logical))


@dataclass(frozen=True)
class Launch:
    """One launch of function number `function`, and what each of its pointers or bindings sees.

    On a CPU it is of the tiles from `first` to `tiles`, on a GPU of all work-groups. Without a
    `barrier` behind it, the next launch begins before all of its tiles are done.
    """

    function: int
    operands: tuple[Reference, ...]
    region: int
    first: int = 0
    tiles: int = 1
    barrier: bool = True


@dataclass(frozen=True)
class Operand:
    """Where a host call reads: in the arena where `slot` is negative, else in that slot."""

    slot: int
    place: Place


@dataclass(frozen=True)
class HostCall:
    """An operation that no kernel computes: its meaning is looked up by its name in `graph/`."""

    operation: str
    attributes: dict[str, Any]
    operands: tuple[Operand, ...]
    result: Place
    region: int


@dataclass(frozen=True)
class RegionInfo:
    """What `explain` prints of a kernel or a host call, and where its results lie.

    `bytes` are those of operands and results, each once, as they are stored. In more than one of
    `strips`, it writes its result over the part of an operand that is not read any more. `kernel`
    is the number of its text among those of the module, -1 of a host call.
    """

    form: str
    scope: str
    reason: str
    schedule: str
    flops: int
    bytes: int
    results: tuple[Place, ...]
    strips: int = 1
    kernel: int = -1


@dataclass
class Module:
    """A compiled program of the `target` of that name.

    `functions` are the places of functions in `code`; `shaders` say more of each where drivers want
    to know it. Of the `launches`, which are of kernels and calls of the host, the first `steady`
    depend on parameters only and run once after these are bound. Those from there to `changing`
    depend on the inputs named `held` besides, and run when these change. `rows` bounds the numbers
    of inputs that look up rows of tables. `work_seconds` is what a run takes one thread, predicted
    within a factor of a few. `layouts` says what each packing function makes: equal texts are equal
    bytes. `kernels` are the texts of all kernels, each once. `limits` are those of the GPU that it
    was made for: one that has no less runs it.
    """

    name: str
    target: str
    precision: str
    arena_bytes: int = 0
    scratch_bytes: int = 0
    functions: list[int] = field(default_factory=list)
    shaders: list[Shader] = field(default_factory=list)
    launches: list[Launch | HostCall] = field(default_factory=list)
    regions: list[RegionInfo] = field(default_factory=list)
    slots: list[WeightSlot] = field(default_factory=list)
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: dict[str, Place] = field(default_factory=dict)
    outputs: dict[str, Place] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    winograd_sizes: dict[str, int] = field(default_factory=dict)
    limits: GroupLimits | None = None
    layouts: dict[str, int] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    steady: int = 0
    changing: int = 0
    work_seconds: float = 0.0
    code: bytes = b""
    constants: bytes = b""

    @property
    def segment_bytes(self) -> int:
        """The arena is in segments of so many bytes, the last of which may be smaller; 0 where it
        is one."""
        return 0 if self.limits is None else self.limits.segment_bytes

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights as kernels read them."""
        return sum(slot.bytes for slot in self.slots if not slot.host)

    def code_of(self, number: int) -> bytes:
        """The code of a function that begins at its entry, up to the next one's."""
        ends = [*self.functions[number + 1:number + 2], len(self.code)]
        return self.code[self.functions[number]:ends[0]]

    def span(self, region: int) -> tuple[int, int]:
        """From which launch to which one a region goes, that is not computed in strips."""
        numbers = [n for n, launch in enumerate(self.launches) if launch.region == region]
        return numbers[0], numbers[-1] + 1

    def overwrites(self, first: int, last: int, place: Place) -> bool:
        """Whether some of the launches from `first` to `last`, of one region, may read where one
        writes a result. Steps of a kernel that are given the same buffers are told from one that is
        given the place as two of its buffers."""
        given = {launch.operands for launch in self.launches[first:last]
                 if isinstance(launch, Launch)}
        return sum(kind == ARENA and place.offset <= at < place.offset + max(1, place.bytes)
                   for operands in given for kind, _, at in operands) > 1

    def layout_of(self, slot: WeightSlot) -> tuple:
        """What the memory of a slot holds, and how; slots of equal layouts hold equal bytes."""
        packing: object = slot.packing
        if isinstance(packing, CodePacking):
            packing = next(text for text, function in self.layouts.items()
                           if function == packing.function)
        return (slot.name, slot.dtype, slot.stored, slot.start, slot.bytes, packing, slot.winograd,
                slot.host)


class Beside(NamedTuple):
    """Seconds of a region by its own kernel and by another, and whether both gave the same
    bytes."""

    seconds: float
    other_seconds: float
    same: bool


def finite_at(memory: np.ndarray, place: Place) -> bool:
    """Whether the tensor at `place` in `memory` holds neither NaN nor Inf."""
    array = array_at(memory, place)
    if place.dtype == "bf16":
        return not bool(((array.view(np.uint16) & BF16_EXPONENT) == BF16_EXPONENT).any())
    return place.dtype not in FLOATS or bool(np.isfinite(array).all())


def array_at(memory: np.ndarray, place: Place) -> np.ndarray:
    """The tensor at `place` in `memory` (uint8), without a copy."""
    return np.ndarray(place.shape, DTYPES[place.dtype], memory.data, place.offset, place.strides)
