"""Binding of weights: parameters are read, checked, and packed as the schedules want them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.compiler.module import CodePacking, Module, WeightSlot
from smalti.errors import DeviceError
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import FORMATS, Quantised
from smalti.runtime.cpu.guard import ERROR_MAX, sampled, winograd_error
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.sources import Done, Read
from smalti.runtime.weights import checked

ALIGNMENT = 128
"""Bytes to which slots are aligned, and by which each is padded: kernels may read a vector beyond
its end."""
LARGE_BYTES = 1 << 18
Pack = Callable[[CodePacking, int, int], None]
BEHIND_BYTES = 16
"""Bytes that packing may read beyond the end of halves."""


def allocated(module: Module, given: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Memory for each slot of a module; `given` has that of some slots, by their numbers.

    Large slots get memory of their own, which returns to the system when nothing uses it any more;
    small ones share a block.
    """
    needed = {number: slot.bytes for number, slot in enumerate(module.slots) if number not in given}
    small = {number: size + -size % ALIGNMENT + ALIGNMENT for number, size in needed.items()
             if size < LARGE_BYTES}
    block, at, found = anonymous(sum(small.values())), 0, dict(given)
    for number, size in needed.items():
        if number in small:
            found[number] = block[at:at + small[number]]
            at += small[number]
        else:
            found[number] = anonymous(size + ALIGNMENT)
    return [found[number] for number in range(len(module.slots))]


def bind(module: Module, memory: Sequence[np.ndarray], filled: Container[int], read: Read,
         done: Done, pack: Pack, threads: int, *, guarded: bool = True) -> dict[str, int]:
    """Fill `memory`, which `allocated` gave, with the parameters that `read(name)` gives.

    Slots whose numbers are in `filled` are left as they are. Parameters may be of any dtype that
    can be converted, and may be views of a file: they are not kept, and `done(name)` is called when
    one is no longer needed. `pack(packing, source address, target address)` runs a packing
    function. `threads` parameters are read and packed at a time.

    If `guarded`, returns the weights whose layers use an F(m) that is too imprecise for them, each
    with the next smaller m, 0 for the direct sum. Raises InputError for a parameter of another
    shape, or with values that the half in which it is to be stored does not have; NumericsError for
    NaN or Inf; DeviceError if the system gives no threads.
    """
    by_name: dict[str, list[tuple[WeightSlot, np.ndarray]]] = {}
    for number, slot in enumerate(module.slots):
        if number not in filled:
            by_name.setdefault(slot.name, []).append((slot, memory[number]))
    local, too_imprecise = threading.local(), {}

    def room(size: int) -> np.ndarray:
        """Memory of this thread of `size` bytes, which is reused for each parameter."""
        if getattr(local, "room", None) is None or local.room.size < size + BEHIND_BYTES:
            local.room = anonymous(size + BEHIND_BYTES)
        return local.room[:size]

    def load(name: str) -> None:
        slots = by_name[name]
        if name:
            values = checked(name, read(name), module.parameters[name], slots[0][0].dtype, room)
        else:
            values = np.frombuffer(module.constants, np.uint8)
        values = values.reshape(-1)
        for slot, target in slots:
            if slot.dtype not in FORMATS:
                values = values.view(DTYPES[slot.dtype])
            if isinstance(slot.packing, CodePacking):
                start = values.ctypes.data + values.itemsize * slot.start
                pack(slot.packing, start, target.ctypes.data)
                if guarded and slot.winograd is not None and _error(slot, values) > ERROR_MAX:
                    too_imprecise[name] = slot.winograd.size // 4 * 2
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
    return too_imprecise


def imprecise(module: Module, read: Read, done: Done,
              among: Container[str] | None = None) -> dict[str, int]:
    """The weights whose layers use an F(m) that is too imprecise for them, as `bind` returns them;
    only those in `among`, if that is given."""
    found = {}
    for name in dict.fromkeys(slot.name for slot in module.slots if slot.winograd and slot.name):
        if among is not None and name not in among:
            continue
        slots = [slot for slot in module.slots if slot.name == name and slot.winograd]
        values = checked(name, read(name), module.parameters[name], slots[0].dtype).reshape(-1)
        for slot in slots:
            if _error(slot, values) > ERROR_MAX:
                found[name] = slot.winograd.size // 4 * 2
        done(name)
    return found


def _error(slot: WeightSlot, values: np.ndarray) -> float:
    """The largest error of a slot's layer by Winograd's algorithm with the weight among
    `values`."""
    f = slot.winograd
    if slot.dtype in FORMATS:
        return winograd_error(_some_rows(slot, values), f.size, f.folded)
    size = values.itemsize
    weight = np.ndarray(f.shape, values.dtype, values.view(np.uint8).data, size * slot.start,
                        tuple(size * stride for stride in f.strides))
    return winograd_error(weight, f.size, f.folded)


def _some_rows(slot: WeightSlot, words: np.ndarray) -> np.ndarray:
    """The output channels of a quantised weight from which the guard estimates, as f32."""
    form, (outputs, *inner) = FORMATS[slot.dtype], slot.winograd.shape
    size, stride = (form.words_of(n) for n in (math.prod(inner), slot.winograd.strides[0]))
    rows = [words[at:at + size] for at in slot.start + stride * sampled(outputs)]
    groups = np.concatenate(rows).reshape(-1, form.words)
    return Quantised(slot.dtype, groups, (len(rows), *inner)).floats()
