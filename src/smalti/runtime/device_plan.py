"""What a device runs of a program, and where everything lies in its memory.

Values between kernels lie in one buffer, the arena, by their lifetimes; weights in buffers of their
own. Devices store integers of every size as 32 bits (`codegen.gpu.lowered.STORED_AS`), so that what
kernels and the host both touch is known to each under its own dtype (`Stored`).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from smalti.codegen.gpu import GroupProgram, Lowered, Packed
from smalti.codegen.gpu.form import Binding
from smalti.codegen.gpu.lowered import RAW, STORED_AS, WORKSPACE
from smalti.codegen.gpu.scalars import scalarised
from smalti.compiler.arena import arranged
from smalti.compiler.decoding import decoded
from smalti.compiler.module import Place, RegionInfo
from smalti.compiler.strips import Course, Turn
from smalti.errors import InputError
from smalti.fuse import HostRegion, Partition, Region, Storage, View
from smalti.fuse.support import When
from smalti.graph.operation import DTYPES
from smalti.runtime.gpu import Module
from smalti.schedule.group import GroupLimits

ON_DEVICE = ("arena", "input")
LENGTH = struct.Struct("<Q")
CONSTANT_ALIGNMENT = 8
"""Of constants: the size of the largest element."""


@dataclass(frozen=True)
class Stored:
    """A tensor in the arena as the device has it, and the dtype that the host knows it by."""

    place: Place
    dtype: str

    @property
    def start(self) -> int:
        """The first byte."""
        return self.place.offset

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the last."""
        item = np.dtype(DTYPES[self.place.dtype]).itemsize
        if 0 in self.place.shape:
            return 0
        return item + sum((n - 1) * stride for n, stride in
                          zip(self.place.shape, self.place.strides, strict=True))

    def within(self, memory: np.ndarray) -> np.ndarray:
        """The tensor, as the device stores it, in a copy of its bytes."""
        return np.ndarray(self.place.shape, DTYPES[self.place.dtype], memory.data, 0,
                          self.place.strides)


@dataclass(frozen=True)
class DeviceSlot:
    """Memory of one weight: as it is ("raw"), packed, or a constant of the program.

    `shape` and `strides` (in elements), from `start` on, are what packing takes of the parameter.
    What the `host` reads in its calls stays there. Without a `name` it is a constant, among those
    of the plan.
    """

    name: str
    dtype: str
    stored: str
    elements: int
    start: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    packed: Packed | None = None
    host: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of it."""
        return self.elements * np.dtype(DTYPES[self.stored]).itemsize

    @property
    def layout(self) -> tuple:
        """What the memory holds, and how; equal ones of one parameter are equal bytes."""
        return (self.name, self.dtype, self.stored, self.elements, self.start, self.shape,
                self.strides, self.packed, self.host)

    def filled(self, values: np.ndarray) -> np.ndarray:
        """What to put there of a parameter, given flat and as `dtype`."""
        if self.packed is None:
            with np.errstate(over="ignore"):
                return values[self.start:self.start + self.elements].astype(
                    DTYPES[self.stored], copy=False)
        size = values.itemsize
        logical = np.ndarray(self.shape, values.dtype, values.view(np.uint8).data,
                             size * self.start, tuple(size * s for s in self.strides))
        return np.ascontiguousarray(self.packed.pack(logical))


@dataclass(frozen=True)
class DeviceLaunch:
    """A program by its number, and for each of its bindings ("arena", byte offset) or ("slot",
    number, byte offset)."""

    program: int
    operands: tuple[tuple[Any, ...], ...]
    region: int


@dataclass(frozen=True)
class DeviceCall:
    """An operation that the host computes between launches, from what it reads of the device."""

    operation: str
    attributes: dict[str, Any]
    operands: tuple[Stored | tuple[int, Place], ...]
    result: Stored
    region: int


@dataclass
class DevicePlan:
    """Programs, and the launches and calls that a run consists of, in order.

    The first `steady` run once when weights are bound, those up to `changing` when held inputs
    change (see `runtime.image.Image`).
    """

    name: str
    precision: str
    programs: list[Module] = field(default_factory=list)
    launches: list[DeviceLaunch | DeviceCall] = field(default_factory=list)
    regions: list[RegionInfo] = field(default_factory=list)
    slots: list[DeviceSlot] = field(default_factory=list)
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Stored] = field(default_factory=dict)
    outputs: dict[str, Stored] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    steady: int = 0
    changing: int = 0
    arena_bytes: int = 0
    constants: bytes = b""

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(slot.bytes for slot in self.slots if not slot.host)

    def to_bytes(self) -> bytes:
        """The plan as bytes: what has names as JSON, then code and constants as they are."""
        binary = [program.code for program in self.programs]
        binary.append(self.constants)
        fields = asdict(self)
        del fields["constants"]
        for program in fields["programs"]:
            del program["code"]
        text = json.dumps([fields, [len(part) for part in binary]], separators=(",", ":")).encode()
        return b"".join((LENGTH.pack(len(text)), text, *binary))

    @classmethod
    def from_bytes(cls, data: bytes) -> DevicePlan:
        """The plan that `to_bytes` wrote. Raises InputError when `data` is none."""
        try:
            (length,) = LENGTH.unpack_from(data)
            fields, lengths = json.loads(data[LENGTH.size:LENGTH.size + length])
            plan, lengths = decoded(cls, fields), decoded(list[int], lengths)
        except (ValueError, struct.error, RecursionError) as error:
            raise InputError(f"the plan is not written as expected ({error}); compile it again"
                             ) from None
        places = [*accumulate(lengths, initial=LENGTH.size + length)]
        if places[-1] != len(data) or len(lengths) != len(plan.programs) + 1:
            raise InputError("the parts of the plan have other lengths; compile it again")
        parts = [data[start:end] for start, end in pairwise(places)]
        plan.programs = [replace(program, code=code)
                         for program, code in zip(plan.programs, parts)]
        plan.constants = parts[-1]
        return plan


def planned(found: Partition, lower: Callable[[Region], tuple[str, Lowered]],
            emit: Callable[[GroupProgram], Module], limits: GroupLimits, precision: str,
            parameters: Mapping[str, tuple[int, ...]]) -> DevicePlan:
    """The plan of a partition; `lower` gives the schedule of a region, in words, and its programs,
    `emit` their code."""
    return _Planner(found, lower, limits, precision, parameters).plan(emit)


class _Planner:
    def __init__(self, found: Partition, lower: Callable[[Region], tuple[str, Lowered]],
                 limits: GroupLimits, precision: str,
                 parameters: Mapping[str, tuple[int, ...]]) -> None:
        self.known: dict[Storage, str] = {}
        self.partition, self.lower, self.limits = self._on_device(found), lower, limits
        self.result = DevicePlan(found.name, precision, parameters=dict(parameters),
                                 rows=dict(found.rows), held=tuple(found.held))
        self.programs: dict[GroupProgram, int] = {}
        self.slots: dict[tuple, int] = {}
        self.constants = bytearray()

    def _on_device(self, found: Partition) -> Partition:
        """`found` with what kernels read and write stored as devices do; notes how hosts know it.
        """
        moved: dict[Storage, Storage] = {}
        for region in found.regions:
            for view in region.views.values() if isinstance(region, Region) else ():
                if view.storage.kind in ON_DEVICE and view.storage not in moved:
                    old = view.storage
                    moved[old] = replace(old, dtype=STORED_AS[old.dtype])
                    self.known[moved[old]] = old.dtype

        def mapped(views: Mapping[str, View]) -> dict[str, View]:
            return {name: replace(view, storage=moved.get(view.storage, view.storage))
                    for name, view in views.items()}

        return replace(found, inputs=mapped(found.inputs), outputs=mapped(found.outputs),
                       regions=[replace(region, views=mapped(region.views))
                               for region in found.regions])

    def plan(self, emit: Callable[[GroupProgram], Module]) -> DevicePlan:
        """Everything in its place."""
        made = [None if isinstance(region, HostRegion) else self.lower(region)
                for region in self.partition.regions]
        turns = [Turn((number,)) for number in range(len(made))]
        course = Course(self.partition, [None] * len(made), turns)
        self.arena = arranged(course, [low[1].workspace_bytes if low else 0 for low in made])
        result = self.result
        result.arena_bytes = self.arena.bytes
        for number, (region, low) in enumerate(zip(self.partition.regions, made, strict=True)):
            added = [self._call(number, region)] if low is None else self._launches(number, *low)
            result.launches += added
            result.steady += len(added) * (region.when == When.BINDING)
            result.changing += len(added) * (region.when < When.RUN)
        result.inputs = {name: self._stored(view) for name, view in self.partition.inputs.items()}
        result.outputs = {name: self._stored(view) for name, view in self.partition.outputs.items()}
        result.programs = list(map(emit, self.programs))
        result.constants = bytes(self.constants)
        result.dtypes = {slot.name: slot.dtype for slot in result.slots if slot.name}
        return result

    def _stored(self, view: View) -> Stored:
        return Stored(self.arena.place(view), self.known.get(view.storage, view.storage.dtype))

    def _launches(self, number: int, schedule: str, low: Lowered) -> list[DeviceLaunch]:
        region = self.partition.regions[number]
        results = tuple(self.arena.place(region.views[b.name]) for b in region.kernel.buffers
                        if b.role == "output")
        moved = sum(math.prod(v.shape) * v.storage.element_bytes for v in region.views.values())
        self.result.regions.append(RegionInfo(
            region.kernel.form, region.scope, region.reason, schedule, region.flops, moved,
            results))
        launches = []
        for step in low.steps:
            where = {b.name: self._operand(number, region, b.name, low) for b in step.bindings}
            step = _fitting(step, where)
            program = self.programs.setdefault(step, len(self.programs))
            launches.append(DeviceLaunch(program, tuple(where[b.name] for b in step.bindings),
                                         number))
        return launches

    def _operand(self, number: int, region: Region, name: str, low: Lowered) -> tuple:
        """Where a binding begins."""
        if name == WORKSPACE:
            return "arena", self.arena.workspaces[number]
        view = region.views[name]
        if view.storage.kind in ON_DEVICE:
            return "arena", self.arena.place(view).offset
        packed = low.packed if low.packed and low.packed.buffer == name else None
        slot = self._slot(view, packed)
        if packed:
            return "slot", slot, 0
        return "slot", slot, view.offset * np.dtype(DTYPES[RAW[view.storage.dtype]]).itemsize

    def _slot(self, view: View, packed: Packed | None, host: bool = False) -> int:
        """The number of a slot, made where there is none of the kind yet."""
        storage = view.storage
        key = (storage, view, packed) if packed else (storage, host)
        if key not in self.slots:
            self.slots[key] = len(self.result.slots)
            start = len(self.constants) // storage.element_bytes if storage.data is not None else 0
            if storage.data is not None:
                data = np.ascontiguousarray(storage.data).tobytes()
                self.constants += data + bytes(-len(data) % CONSTANT_ALIGNMENT)
            slot = DeviceSlot(storage.name, storage.dtype,
                              storage.dtype if host else RAW[storage.dtype], storage.size, start,
                              host=host)
            if packed:
                slot = replace(slot, stored=packed.dtype, elements=packed.elements,
                               start=start + view.offset, shape=view.shape, strides=view.strides,
                               packed=packed)
            self.result.slots.append(slot)
        return self.slots[key]

    def _call(self, number: int, region: HostRegion) -> DeviceCall:
        """A call of the host."""
        moved = sum(math.prod(v.shape) * v.storage.element_bytes for v in region.views.values())
        self.result.regions.append(RegionInfo(
            "host", region.scope, region.reason, region.operation, region.flops, moved,
            (self.arena.place(region.views["out"]),)))
        operands: list[Stored | tuple[int, Place]] = []
        for view in region.operands:
            if view.storage.kind in ON_DEVICE:
                operands.append(self._stored(view))
                continue
            item = view.storage.element_bytes
            place = Place(item * view.offset, view.shape, tuple(item * s for s in view.strides),
                          view.storage.dtype)
            operands.append((self._slot(view, None, host=True), place))
        return DeviceCall(region.operation, dict(region.attributes), tuple(operands),
                          self._stored(region.views["out"]), number)


def _fitting(step: GroupProgram, where: Mapping[str, Sequence]) -> GroupProgram:
    """The program with single accesses to what does not begin at a multiple of its vectors; what a
    result lies over, element by element, is said to be written, so that a driver expects it."""
    def item(dtype: str) -> int:
        return np.dtype(DTYPES[dtype]).itemsize

    def span(binding: Binding) -> range:
        start = where[binding.name][-1]
        return range(start, start + binding.elements * item(binding.dtype))

    off = {b.name for b in step.bindings if where[b.name][-1] % (b.lanes * item(b.dtype))}
    step = scalarised(step, off) if off else step
    in_arena = [b for b in step.bindings if where[b.name][0] == "arena"]
    written = [span(b) for b in in_arena if b.access != "read"]
    over = {b.name for b in in_arena if b.access == "read" and any(
        max(span(b).start, w.start) < min(span(b).stop, w.stop) for w in written)}
    if not over:
        return step
    return replace(step, bindings=tuple(
        replace(b, access="read_write") if b.name in over else b for b in step.bindings))


