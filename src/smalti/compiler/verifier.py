"""What must hold of an image: every number in it lies where code, memory and weights end.

Machine code itself cannot be checked; it is as trusted as any program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from smalti.compiler.module import HostCall, Image, Launch, Place, Slot
from smalti.errors import InputError, VerificationError
from smalti.graph.operation import DTYPES, OPERATIONS, Type
from smalti.graph.quantised import FORMATS

TILES_MAX = (1 << 31) - 1
MEMORY_BYTES_MAX = 1 << 46
KINDS = ("raw", "packed", "constant")


def verify(image: Image) -> None:
    """Raise VerificationError naming the first thing in `image` that points beyond its end."""
    for fault in _faults(image):
        raise VerificationError(f"program {image.name}: {fault}")


def _faults(image: Image) -> Iterator[str]:
    for name in ("arena_bytes", "scratch_bytes", "weights_bytes"):
        if not 0 <= getattr(image, name) <= MEMORY_BYTES_MAX:
            yield f"{name} is {getattr(image, name)}"
    if not 0 <= image.steady <= image.changing <= len(image.launches):
        yield f"{image.steady}, {image.changing} of {len(image.launches)} launches run apart"
    if not set(image.held) | set(image.rows) <= set(image.inputs):
        yield f"{[*image.held, *image.rows]} are not all inputs"
    if not (math.isfinite(image.work_seconds) and image.work_seconds >= 0):
        yield f"work takes {image.work_seconds} s"
    for number, place in enumerate(image.functions):
        if not 0 <= place < len(image.code):
            yield f"function {number} at {place} lies outside of the code"
    for name, shape in image.parameters.items():
        if not all(0 <= extent <= MEMORY_BYTES_MAX for extent in shape):
            yield f"parameter {name!r} has shape {shape}"
    for number, slot in enumerate(image.slots):
        for fault in _slot_faults(image, slot):
            yield f"slot {number}: {fault}"
    for number, region in enumerate(image.regions):
        if (region.kernel not in range(len(image.kernels))) != (region.form == "host"):
            yield f"region {number}: there is no kernel {region.kernel} of the form {region.form}"
    for number, launch in enumerate(image.launches):
        for fault in _launch_faults(image, launch):
            yield f"launch {number}: {fault}"
    yield from _barrier_faults(image)
    places = [("input", image.inputs.values()), ("output", image.outputs.values()),
              *((f"region {number}", region.results)
                for number, region in enumerate(image.regions))]
    for what, found in places:
        for place in found:
            if fault := _place_fault(place, image.arena_bytes):
                yield f"{what}: {fault}"


def _slot_faults(image: Image, slot: Slot) -> Iterator[str]:
    words = slot.dtype in FORMATS and slot.kind == "packed" and bool(slot.name)
    if slot.kind not in KINDS or slot.dtype not in DTYPES and not words:
        yield f"kind {slot.kind!r}, dtype {slot.dtype!r}"
        return
    if slot.name and slot.name not in image.parameters:
        yield f"there is no parameter {slot.name!r}"
        return
    item = 4 if words else np.dtype(DTYPES[slot.dtype]).itemsize
    size = math.prod(image.parameters[slot.name]) if slot.name else len(image.constants) // item
    if not 0 <= slot.bytes <= image.weights_bytes:
        yield f"{slot.bytes} of {image.weights_bytes} bytes"
    read = 0 if slot.kind == "packed" else slot.bytes // item
    if slot.start < 0 or slot.start + read > size:
        yield f"elements from {slot.start} lie outside of {slot.name!r}"
    if slot.kind == "packed" and not (0 <= slot.function < len(image.functions)
                                      and 0 <= slot.panels <= TILES_MAX):
        yield f"packing function {slot.function}, {slot.panels} panels"
    if (f := slot.winograd) is not None:
        start = slot.start
        if words:
            start = start // FORMATS[slot.dtype].words * FORMATS[slot.dtype].group
        if f.size not in (2, 4) or len(f.shape) != 4 or f.shape[2:] != (3, 3) \
                or len(f.strides) != 4 or min(f.shape + f.strides) < 0 \
                or start + _reach(f.shape, f.strides) > size:
            yield f"winograd of {f.shape}, {f.strides}"


def _launch_faults(image: Image, launch: Launch | HostCall) -> Iterator[str]:
    if not 0 <= launch.region < len(image.regions):
        yield f"there is no region {launch.region}"
    if isinstance(launch, HostCall):
        yield from _call_faults(image, launch)
        return
    if not 0 <= launch.function < len(image.functions):
        yield f"there is no function {launch.function}"
    if not 0 <= launch.first <= launch.tiles <= TILES_MAX:
        yield f"tiles {launch.first} to {launch.tiles}"
    ends = {"arena": image.arena_bytes + 1, "slot": len(image.slots)}
    for kind, at in launch.pointers:
        if not 0 <= at < ends.get(kind, 0):
            yield f"pointer to {kind} {at}"


def _barrier_faults(image: Image) -> Iterator[str]:
    """Where the caller goes on, or calls the host, all threads have to have met."""
    ends = {image.steady, image.changing, len(image.launches)} | {
        number for number, launch in enumerate(image.launches) if isinstance(launch, HostCall)}
    for end in sorted(ends - {0}):
        before = image.launches[end - 1]
        if isinstance(before, Launch) and not before.barrier:
            yield f"there is no barrier behind launch {end - 1}"


def _call_faults(image: Image, call: HostCall) -> Iterator[str]:
    operation, types = OPERATIONS.get(call.operation), []
    if operation is None:
        yield f"there is no operation {call.operation!r}"
        return
    for operand in call.operands:
        if operand.slot >= len(image.slots):
            yield f"there is no slot {operand.slot}"
            return
        end = image.arena_bytes if operand.slot < 0 else image.slots[operand.slot].bytes
        if fault := _place_fault(operand.place, end):
            yield f"operand of {call.operation}: {fault}"
            return
        types.append(Type(operand.place.shape, operand.place.dtype))
    if fault := _place_fault(call.result, image.arena_bytes):
        yield f"result of {call.operation}: {fault}"
    try:
        found = operation.infer(types, operation.complete(call.attributes))
    except (LookupError, TypeError, ValueError, InputError) as error:
        yield f"{call.operation}: {error}"
        return
    if found != Type(call.result.shape, call.result.dtype):
        yield f"{call.operation} gives {found}"


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """One more than the last element, in the unit of the strides; 0 without elements."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def _place_fault(place: Place, end: int) -> str:
    """What is wrong with a place in memory of `end` bytes; empty when nothing is."""
    if place.dtype not in DTYPES:
        return f"dtype {place.dtype!r}"
    if len(place.shape) != len(place.strides) or min((0, place.offset, *place.shape,
                                                      *place.strides)) < 0:
        return f"offset {place.offset}, shape {place.shape}, strides {place.strides}"
    size = np.dtype(DTYPES[place.dtype]).itemsize
    reach = _reach(place.shape, place.strides)
    if reach and place.offset + reach - 1 + size > end:
        return f"it reaches beyond the {end} bytes of the arena"
    return ""
