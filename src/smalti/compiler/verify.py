"""What must hold of a module: every number in it lies where code, memory and weights end.

Machine code itself cannot be checked; it is as trusted as any program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.codegen.target import ARENA, SLOT
from smalti.compiler.module import (
    ArrayPacking,
    CodePacking,
    HostCall,
    Launch,
    Module,
    Place,
    WeightSlot,
)
from smalti.errors import InputError, VerificationError
from smalti.graph.operation import DTYPES, OPERATIONS, Type
from smalti.graph.operations.contraction import FACTORS
from smalti.graph.quantised import FORMATS
from smalti.schedule.group import WORD_OF_BYTES

TILES_MAX = (1 << 31) - 1  # the largest number that code for x86 takes apart
MEMORY_BYTES_MAX = 1 << 46  # 64 TiB: sizes beyond are those of a damaged file


def verify(module: Module) -> None:
    """Raise VerificationError naming the first thing in `module` that points beyond its end."""
    for fault in _faults(module):
        raise VerificationError(f"program {module.name}: {fault}")


def _faults(module: Module) -> Iterator[str]:
    for name in ("arena_bytes", "scratch_bytes"):
        if not 0 <= getattr(module, name) <= MEMORY_BYTES_MAX:
            yield f"{name} is {getattr(module, name)}"
    if not 0 <= module.steady <= module.changing <= len(module.launches):
        yield f"{module.steady}, {module.changing} of {len(module.launches)} launches run apart"
    if not set(module.held) | set(module.rows) <= set(module.inputs):
        yield f"{[*module.held, *module.rows]} are not all inputs"
    if not (math.isfinite(module.work_seconds) and module.work_seconds >= 0):
        yield f"work takes {module.work_seconds} s"
    if module.shaders and len(module.shaders) != len(module.functions):
        yield f"{len(module.shaders)} shaders of {len(module.functions)} functions"
    for number, place in enumerate(module.functions):
        if not 0 <= place < len(module.code):
            yield f"function {number} at {place} lies outside of the code"
    for name, shape in module.parameters.items():
        if not all(0 <= extent <= MEMORY_BYTES_MAX for extent in shape):
            yield f"parameter {name!r} has shape {shape}"
    for number, slot in enumerate(module.slots):
        for fault in _slot_faults(module, slot):
            yield f"slot {number}: {fault}"
    for number, region in enumerate(module.regions):
        if (region.kernel not in range(len(module.kernels))) != (region.form == "host"):
            yield f"region {number}: there is no kernel {region.kernel} of the form {region.form}"
    for number, launch in enumerate(module.launches):
        for fault in _launch_faults(module, launch):
            yield f"launch {number}: {fault}"
    yield from _barrier_faults(module)
    places = [("input", module.inputs.values()), ("output", module.outputs.values()),
              *((f"region {number}", region.results)
                for number, region in enumerate(module.regions))]
    for what, found in places:
        for each in found:
            if fault := _place_fault(each, module.arena_bytes):
                yield f"{what}: {fault}"


def _slot_faults(module: Module, slot: WeightSlot) -> Iterator[str]:
    words = slot.dtype in FORMATS and slot.packing is not None and bool(slot.name)
    if slot.dtype not in DTYPES and not words or slot.stored and slot.stored not in DTYPES:
        yield f"dtype {slot.dtype!r}, stored as {slot.stored!r}"
        return
    if slot.name and slot.name not in module.parameters:
        yield f"there is no parameter {slot.name!r}"
        return
    item = 4 if words else np.dtype(DTYPES[slot.dtype]).itemsize
    size = math.prod(module.parameters[slot.name]) if slot.name else len(module.constants) // item
    if not 0 <= slot.bytes <= MEMORY_BYTES_MAX:
        yield f"{slot.bytes} bytes"
    read = 0 if slot.packing else slot.bytes // np.dtype(
        DTYPES[slot.stored or slot.dtype]).itemsize
    if slot.start < 0 or slot.start + read > size:
        yield f"elements from {slot.start} lie outside of {slot.name!r}"
    yield from _packing_faults(module, slot, size)
    if (f := slot.winograd) is not None:
        start = _element(slot)
        if f.size not in (2, 4) or len(f.shape) != 4 or f.shape[2:] != (3, 3) \
                or len(f.strides) != 4 or min(f.shape + f.strides) < 0 \
                or start + _reach(f.shape, f.strides) > size:
            yield f"winograd of {f.shape}, {f.strides}"


def _packing_faults(module: Module, slot: WeightSlot, size: int) -> Iterator[str]:
    packing = slot.packing
    if isinstance(packing, CodePacking) and not (0 <= packing.function < len(module.functions)
                                                 and 0 <= packing.panels <= TILES_MAX):
        yield f"packing function {packing.function}, {packing.panels} panels"
    if not isinstance(packing, ArrayPacking):
        return
    layout = packing.layout
    extents = (layout.parts, layout.o, layout.c, layout.taps, layout.rows, layout.columns)
    if len(packing.shape) != len(packing.strides) or min(
            (0, *packing.shape, *packing.strides, *extents)) < 0 \
            or _element(slot) + _reach(packing.shape, packing.strides) > size:
        yield f"packing of {packing.shape}, {packing.strides}"
    elif isinstance(layout, PackedGroups):
        if layout.format != slot.dtype or layout.format not in FORMATS \
                or not _whole_groups(layout, packing, slot):
            yield f"packing to {layout}"
    elif layout.dtype not in DTYPES or layout.bytes != slot.bytes \
            or math.prod(extents[:4]) != math.prod(packing.shape) \
            or layout.taps * layout.c > layout.rows or layout.o > layout.columns \
            or layout.block < 1 or layout.rows % layout.block \
            or isinstance(layout, PackedBytes) and (
                slot.dtype not in FACTORS or layout.block % WORD_OF_BYTES):
        yield f"packing to {layout}"


def _element(slot: WeightSlot) -> int:
    """The element of its parameter that a slot begins with."""
    if slot.dtype not in FORMATS:
        return slot.start
    return slot.start // FORMATS[slot.dtype].words * FORMATS[slot.dtype].group


def _whole_groups(layout: PackedGroups, packing: ArrayPacking, slot: WeightSlot) -> bool:
    """Whether a quantised weight is what its layout and its view say, and that whole groups."""
    form = layout.form
    window = layout.c * layout.taps
    return (min(packing.shape, default=0) > 0 and packing.strides[0] % form.group == 0
            and window % form.group == layout.c % form.group == slot.start % form.words == 0
            and packing.shape[0] == layout.parts * layout.o
            and math.prod(packing.shape[1:]) == window == _reach(packing.shape[1:],
                                                                 packing.strides[1:])
            and layout.o <= layout.columns and layout.bytes == slot.bytes)


def _launch_faults(module: Module, launch: Launch | HostCall) -> Iterator[str]:
    if not 0 <= launch.region < len(module.regions):
        yield f"there is no region {launch.region}"
    if isinstance(launch, HostCall):
        yield from _call_faults(module, launch)
        return
    if not 0 <= launch.function < len(module.functions):
        yield f"there is no function {launch.function}"
    if not 0 <= launch.first <= launch.tiles <= TILES_MAX:
        yield f"tiles {launch.first} to {launch.tiles}"
    if module.shaders and 0 <= launch.function < len(module.shaders) \
            and len(launch.operands) != len(module.shaders[launch.function].bindings):
        yield f"{len(launch.operands)} operands"
    for kind, number, at in launch.operands:
        if kind == SLOT and 0 <= number < len(module.slots):
            end = module.slots[number].bytes
        else:
            end = module.arena_bytes if (kind, number) == (ARENA, 0) else -1
        if not 0 <= at <= end:
            yield f"operand at {kind} {number}, {at}"
    yield from _segment_faults(module, launch)


def _segment_faults(module: Module, launch: Launch) -> Iterator[str]:
    """Where a launch of a GPU reads across the end of a buffer."""
    segment = module.segment_bytes
    if not segment or not 0 <= launch.function < len(module.shaders):
        return
    for (kind, _, at), use in zip(launch.operands, module.shaders[launch.function].bindings):
        if kind == ARENA and use.bytes and at // segment != (at + use.bytes - 1) // segment:
            yield f"{use.bytes} bytes at {at} lie in two segments of {segment}"


def _barrier_faults(module: Module) -> Iterator[str]:
    """Where the caller goes on, or calls the host, all threads have to have met."""
    ends = {module.steady, module.changing, len(module.launches)} | {
        number for number, launch in enumerate(module.launches) if isinstance(launch, HostCall)}
    for end in sorted(ends - {0}):
        before = module.launches[end - 1]
        if isinstance(before, Launch) and not before.barrier:
            yield f"there is no barrier behind launch {end - 1}"


def _call_faults(module: Module, call: HostCall) -> Iterator[str]:
    operation, types = OPERATIONS.get(call.operation), []
    if operation is None:
        yield f"there is no operation {call.operation!r}"
        return
    for operand in call.operands:
        if operand.slot >= len(module.slots):
            yield f"there is no slot {operand.slot}"
            return
        end = module.arena_bytes if operand.slot < 0 else module.slots[operand.slot].bytes
        if fault := _place_fault(operand.place, end):
            yield f"operand of {call.operation}: {fault}"
            return
        types.append(Type(operand.place.shape, operand.place.known_as))
    if fault := _place_fault(call.result, module.arena_bytes):
        yield f"result of {call.operation}: {fault}"
    try:
        found = operation.infer(types, operation.complete(call.attributes))
    except (LookupError, TypeError, ValueError, InputError) as error:
        yield f"{call.operation}: {error}"
        return
    if found != Type(call.result.shape, call.result.known_as):
        yield f"{call.operation} gives {found}"


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """One more than the last element, in the unit of the strides; 0 without elements."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def _place_fault(place: Place, end: int) -> str:
    """What is wrong with a place in memory of `end` bytes; empty when nothing is."""
    if place.dtype not in DTYPES or place.known_as not in DTYPES:
        return f"dtype {place.dtype!r}, known as {place.host_dtype!r}"
    if len(place.shape) != len(place.strides) or min((0, place.offset, *place.shape,
                                                      *place.strides)) < 0:
        return f"offset {place.offset}, shape {place.shape}, strides {place.strides}"
    size = np.dtype(DTYPES[place.dtype]).itemsize
    reach = _reach(place.shape, place.strides)
    if reach and place.offset + reach - 1 + size > end:
        return f"it reaches beyond the {end} bytes of the arena"
    return ""
