"""Binding: parameters read from wherever they are, checked, and packed as the schedules want."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.errors import DeviceError, InputError, NumericsError
from smalti.graph.operation import DTYPES, FLOATS
from smalti.runtime.guard import ERROR_MAX, filtering_error
from smalti.runtime.image import Image, Slot
from smalti.runtime.memory import anonymous
from smalti.runtime.sources import Done, Read

ALIGNMENT = 128
"""Between slots, and behind each: kernels may read a vector beyond its end."""
LARGE_BYTES = 1 << 18
Pack = Callable[[Slot, int, int], None]


def layout_of(image: Image, slot: Slot) -> tuple:
    """What the memory of a slot holds, and how; slots of equal layouts hold equal bytes."""
    layout = next((text for text, function in image.layouts.items() if function == slot.function),
                  "")
    return slot.name, slot.kind, slot.dtype, slot.start, slot.bytes, layout, slot.filtering


def allocated(image: Image, given: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Memory for each slot, which is `given` for some by their number.

    Large ones have memory of their own, which goes back to the system when nobody uses it any more;
    small ones share a block.
    """
    needed = {number: slot.bytes for number, slot in enumerate(image.slots) if number not in given}
    small = {number: size + -size % ALIGNMENT + ALIGNMENT for number, size in needed.items()
             if size < LARGE_BYTES}
    block, at, found = anonymous(sum(small.values())), 0, dict(given)
    for number, size in needed.items():
        if number in small:
            found[number] = block[at:at + small[number]]
            at += small[number]
        else:
            found[number] = anonymous(size + ALIGNMENT)
    return [found[number] for number in range(len(image.slots))]


def bind(image: Image, memory: Sequence[np.ndarray], filled: Container[int], read: Read, done: Done,
         pack: Pack, threads: int) -> dict[str, int]:
    """Fill `memory` (of `allocated`) with the parameters that `read(name)` gives.

    Slots whose numbers are in `filled` are left as they are. Parameters may be of any dtype that
    converts to their own, and views of a file: nothing of them is kept, and `done(name)` is called
    when one is no longer needed.
    `pack(slot, source address, target address)` runs the packing function of a slot. `threads`
    parameters are read and packed at a time. Gives the weights whose layers use an F(m) that is
    too imprecise for them, and the next smaller m, 0 for none. Raises InputError for a parameter
    of another shape, NumericsError for NaN or Inf in one, and DeviceError when the system gives no
    threads.
    """
    by_name: dict[str, list[tuple[Slot, np.ndarray]]] = {}
    for number, slot in enumerate(image.slots):
        if number not in filled:
            by_name.setdefault(slot.name, []).append((slot, memory[number]))
    local, imprecise = threading.local(), {}

    def room(size: int) -> np.ndarray:
        """Memory of this thread for `size` f32, used again for each parameter."""
        if getattr(local, "room", None) is None or local.room.size < size:
            local.room = anonymous(4 * max(size, 1)).view(np.float32)
        return local.room[:size]

    def load(name: str) -> None:
        slots = by_name[name]
        if name:
            values = checked(name, read(name), image.parameters[name], slots[0][0].dtype, room)
        else:
            values = np.frombuffer(image.constants, np.uint8)
        values = values.reshape(-1)
        for slot, target in slots:
            values = values.view(DTYPES[slot.dtype])
            if slot.kind == "packed":
                pack(slot, values.ctypes.data + 4 * slot.start, target.ctypes.data)
                if slot.filtering is not None and _error(slot, values) > ERROR_MAX:
                    imprecise[name] = slot.filtering.size // 4 * 2
            else:
                array = target[:slot.bytes].view(values.dtype)
                array[:] = values[slot.start:slot.start + len(array)]
        if name:
            done(name)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        try:
            loaded = pool.map(load, by_name)
        except RuntimeError as error:  # all threads start here; what `load` raises comes below
            raise DeviceError(f"the system gives no {threads} threads ({error}); ask for fewer "
                              f"with SMALTI_THREADS") from None
        for _ in loaded:
            pass
    return imprecise


def _error(slot: Slot, values: np.ndarray) -> float:
    """How far the filtering of a slot's layer is off with the weight among `values`."""
    f = slot.filtering
    strides = tuple(4 * stride for stride in f.strides)
    weight = np.ndarray(f.shape, np.float32, values.data, 4 * slot.start, strides)
    return filtering_error(weight, f.size, f.folded)


def checked(name: str, values: np.ndarray, shape: tuple[int, ...], dtype: str = "f32",
            room: Callable[[int], np.ndarray] | None = None) -> np.ndarray:
    """`values` as dense `dtype` of `shape`, finite; what is made f32 lies in `room(size)`.

    Raises InputError for another shape, NumericsError for NaN or Inf.
    """
    array = np.asarray(values)
    if array.shape != shape:
        raise InputError(f"weight {name!r} has shape {list(array.shape)}, the program expects "
                         f"{list(shape)}")
    if array.dtype != DTYPES[dtype] or not array.flags.c_contiguous:
        flat = np.empty(array.size, DTYPES[dtype]) if room is None or dtype != "f32" \
            else room(array.size)
        dense = flat.reshape(shape)
        dense[...] = array
        array = dense
    if dtype not in FLOATS:
        return array
    flat = array.reshape(-1)
    if dtype == "f32":
        with np.errstate(over="ignore", invalid="ignore"):  # a quick look: NaN and Inf spread
            total = np.dot(flat, flat)
        if np.isfinite(total):
            return array
    if not np.isfinite(flat).all():
        bad = np.flatnonzero(~np.isfinite(flat))
        where = [int(i) for i in np.unravel_index(bad[0], shape)]
        raise NumericsError(f"weight {name!r} holds {len(bad)} values that are NaN or infinite, "
                            f"the first at {where}; the model file is damaged or its training "
                            f"diverged, use another copy")
    return array
