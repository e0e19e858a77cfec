"""Binding: parameters read from wherever they are, checked, and packed as the schedules want."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.compiler.module import CodePacking, Module, WeightSlot
from smalti.errors import DeviceError, InputError, NumericsError
from smalti.graph.operation import DTYPES, FLOATS, HALVES
from smalti.graph.quantised import FORMATS, Quantised, quantised
from smalti.runtime.conversion import converted
from smalti.runtime.guard import ERROR_MAX, sampled, winograd_error
from smalti.runtime.memory import anonymous
from smalti.runtime.sources import Done, Read

ALIGNMENT = 128
"""Between slots, and behind each: kernels may read a vector beyond its end."""
LARGE_BYTES = 1 << 18
Pack = Callable[[CodePacking, int, int], None]
Room = Callable[[int], np.ndarray]
BEHIND_BYTES = 16
"""What packing may read behind halves."""
BLOCK = 1 << 18
"""Elements that are looked at while they are in the cache."""
INFINITIES = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}
"""The bits of infinity; those of NaN are larger."""


def fresh(size: int) -> np.ndarray:
    """New memory."""
    return np.empty(size, np.uint8)


def allocated(module: Module, given: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Memory for each slot, which is `given` for some by their number.

    Large ones have memory of their own, which goes back to the system when nobody uses it any more;
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
    """Fill `memory` (of `allocated`) with the parameters that `read(name)` gives.

    Slots whose numbers are in `filled` are left as they are. Parameters may be of any dtype that
    converts to their own, and views of a file: nothing of them is kept, and `done(name)` is called
    when one is no longer needed.
    `pack(packing, source address, target address)` runs a packing function. `threads`
    parameters are read and packed at a time. Where it is `guarded`, gives the weights whose layers
    use an F(m) that is too imprecise for them, and the next smaller m, 0 for none. Raises
    InputError for a parameter of another shape, or with values that are none of the halves that it
    is to be held as, NumericsError for NaN or Inf in one, and DeviceError when the system gives no
    threads.
    """
    by_name: dict[str, list[tuple[WeightSlot, np.ndarray]]] = {}
    for number, slot in enumerate(module.slots):
        if number not in filled:
            by_name.setdefault(slot.name, []).append((slot, memory[number]))
    local, too_imprecise = threading.local(), {}

    def room(size: int) -> np.ndarray:
        """Memory of this thread for `size` bytes, used again for each parameter."""
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
            if slot.packing is not None:
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
    """The weights whose layers use an F(m) that is too imprecise for them, as `bind` finds them;
    only those `among` some."""
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
    """Those output channels of a quantised weight that the guard looks at, as f32."""
    form, (outputs, *inner) = FORMATS[slot.dtype], slot.winograd.shape
    size, stride = (form.words_of(n) for n in (math.prod(inner), slot.winograd.strides[0]))
    rows = [words[at:at + size] for at in slot.start + stride * sampled(outputs)]
    groups = np.concatenate(rows).reshape(-1, form.words)
    return Quantised(slot.dtype, groups, (len(rows), *inner)).floats()


def checked(name: str, values: np.ndarray, shape: tuple[int, ...], dtype: str = "f32",
            room: Room = fresh) -> np.ndarray:
    """`values` as a dense array of `shape` and `dtype`, finite; copies lie in `room(bytes)`.

    Quantised ones are given as their words, [groups, words of a group]; where halves are wanted,
    they are rounded, which is far less than they were.

    Raises InputError for another shape or for values that `dtype`, one of halves, does not have;
    NumericsError for NaN or Inf.
    """
    if isinstance(values, Quantised) and values.dtype != dtype:
        values = values.floats()
        if dtype in HALVES:
            values = converted(values, dtype)
    array = values if isinstance(values, Quantised) else np.asarray(values)
    if array.shape != shape:
        raise InputError(f"weight {name!r} has shape {list(array.shape)}, the program expects "
                         f"{list(shape)}")
    if dtype in FORMATS:
        return _checked_words(name, array, dtype)
    if dtype in HALVES:
        return _checked_halves(name, array, dtype, room)
    if array.dtype != DTYPES[dtype] or not array.flags.c_contiguous:
        kind = np.dtype(DTYPES[dtype])
        dense = room(kind.itemsize * array.size).view(kind).reshape(shape)
        dense[...] = array
        array = dense
    if dtype == "f32":
        flat = array.reshape(-1)
        if any(_nonfinite(flat[i:i + BLOCK], dtype) for i in range(0, flat.size, BLOCK)):
            _require_finite(name, array)
    elif dtype in FLOATS:
        _require_finite(name, array)
    return array


def _checked_words(name: str, given: np.ndarray | Quantised, dtype: str) -> np.ndarray:
    """The words of a weight, which is rounded to `dtype` where it is given as floats."""
    if not isinstance(given, Quantised):
        _require_finite(name, given)
        given = quantised(given, dtype)
    form, count = FORMATS[dtype], math.prod(given.shape)
    if given.words.shape != (count // form.group, form.words) or count % form.group \
            or given.words.dtype != np.uint32:
        raise InputError(f"weight {name!r} has words {list(given.words.shape)} of "
                         f"{given.words.dtype}, which are none of {dtype} for {list(given.shape)}")
    if not np.isfinite(given.bounds).all():
        with np.errstate(over="ignore", invalid="ignore"):
            _require_finite(name, given.floats())
    return np.ascontiguousarray(given.words)


def _checked_halves(name: str, array: np.ndarray, dtype: str, room: Room) -> np.ndarray:
    """A copy of `array` as f16 or bf16, block by block, which are looked at while in cache."""
    halves = array
    if array.dtype != DTYPES[dtype]:
        with np.errstate(over="ignore"):
            halves = array.astype(DTYPES[dtype])
        if (halves.astype(np.float32) != array).any():
            _require_finite(name, array)
            raise InputError(f"weight {name!r} holds values that {dtype} does not have, and the "
                             f"program holds it as {dtype}; compile the model for f32 weights")
    dense = room(2 * array.size).view(DTYPES[dtype]).reshape(array.shape)
    source, target = np.ascontiguousarray(halves).reshape(-1), dense.reshape(-1)
    for start in range(0, target.size, BLOCK):
        block = target[start:start + BLOCK]
        block[:] = source[start:start + BLOCK]
        if _nonfinite(block, dtype):
            _require_finite(name, halves)
    return dense


def _nonfinite(block: np.ndarray, dtype: str) -> bool:
    """Whether NaN or Inf is among values of one of `INFINITIES`, which are side by side."""
    size, infinity = block.itemsize, INFINITIES[dtype]
    sign = 1 << 8 * size - 1  # negative ones are the largest as unsigned, and the least as signed
    return bool(block.view(f"u{size}").max() >= infinity + sign
                or block.view(f"i{size}").max() >= infinity)


def _require_finite(name: str, array: np.ndarray) -> None:
    """Raise NumericsError naming the weight and the first place of NaN or Inf in it."""
    bad = np.flatnonzero(~np.isfinite(array.reshape(-1)))
    if len(bad):
        where = [int(i) for i in np.unravel_index(bad[0], array.shape)]
        raise NumericsError(f"weight {name!r} holds {len(bad)} values that are NaN or infinite, "
                            f"the first at {where}; the model file is damaged or its training "
                            f"diverged, use another copy")
