"""Binding: parameters read from wherever they are, checked, and packed as the schedules want."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.errors import DeviceError, InputError, NumericsError
from smalti.graph.operation import DTYPES, FLOATS
from smalti.runtime.guard import ERROR_MAX, filtering_error
from smalti.runtime.image import Image, Slot
from smalti.runtime.memory import anonymous
from smalti.runtime.sources import Done, Read

Pack = Callable[[Slot, int, int], None]


def bind(image: Image, memory: np.ndarray, read: Read, done: Done, pack: Pack,
         threads: int) -> dict[str, int]:
    """Fill `memory` (uint8, `image.weights_bytes`) with the parameters that `read(name)` gives.

    They may be of any dtype that converts to their own, and views of a file: nothing of them is
    kept, and `done(name)` is called when a parameter is no longer needed.
    `pack(slot, source address, target address)` runs the packing function of a slot. `threads`
    parameters are read and packed at a time. Gives the weights whose layers use an F(m) that is
    too imprecise for them, and the next smaller m, 0 for none. Raises InputError for a parameter
    of another shape, NumericsError for NaN or Inf in one, and DeviceError when the system gives no
    threads.
    """
    by_name: dict[str, list[Slot]] = {}
    for slot in image.slots:
        by_name.setdefault(slot.name, []).append(slot)
    local, imprecise = threading.local(), {}

    def room(size: int) -> np.ndarray:
        """Memory of this thread for `size` f32, used again for each parameter."""
        if getattr(local, "room", None) is None or local.room.size < size:
            local.room = anonymous(4 * max(size, 1)).view(np.float32)
        return local.room[:size]

    def load(name: str) -> None:
        slots = by_name[name]
        if name:
            values = checked(name, read(name), image.parameters[name], slots[0].dtype, room)
        else:
            values = np.frombuffer(image.constants, np.uint8)
        values = values.reshape(-1)
        for slot in slots:
            values = values.view(DTYPES[slot.dtype])
            if slot.kind == "packed":
                pack(slot, values.ctypes.data + 4 * slot.start, memory.ctypes.data + slot.offset)
                if slot.filtering is not None and _error(slot, values) > ERROR_MAX:
                    imprecise[name] = slot.filtering.size // 4 * 2
            else:
                target = memory[slot.offset:slot.offset + slot.bytes].view(values.dtype)
                target[:] = values[slot.start:slot.start + len(target)]
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
