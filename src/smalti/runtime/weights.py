"""Parameters as they are given, checked: shape, dtype, and that all of them are finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smalti.errors import InputError, NumericsError
from smalti.graph.operation import DTYPES, FLOATS, HALVES
from smalti.graph.quantised import FORMATS, Quantised
from smalti.runtime.cpu.conversion import coded, converted

Room = Callable[[int], np.ndarray]
BLOCK = 1 << 18
"""Elements that are looked at while they are in the cache."""
INFINITIES = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}
"""The bits of infinity; those of NaN are larger."""


def fresh(size: int) -> np.ndarray:
    """New memory."""
    return np.empty(size, np.uint8)
NO_NUMBERS = "cOSUmM"
"""Kinds of arrays that are no weights: complex numbers, objects, bytes, texts, spans, times."""


def checked(name: str, values: np.ndarray | Quantised, shape: tuple[int, ...],
            dtype: str = "f32", room: Room = fresh) -> np.ndarray:
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
    if not isinstance(array, Quantised) and array.dtype.kind in NO_NUMBERS:
        raise InputError(f"weight {name!r} is given as {array.dtype}; real numbers are expected")
    if dtype in FORMATS or isinstance(array, Quantised):
        return _checked_words(name, array, dtype, room)
    if dtype in HALVES:
        return _checked_halves(name, array, dtype, room)
    if array.dtype != DTYPES[dtype] or not array.flags.c_contiguous:
        kind = np.dtype(DTYPES[dtype])
        dense = room(kind.itemsize * array.size).view(kind).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):  # what is lost is named below
            dense[...] = array
        array = dense
    if dtype in FLOATS:
        _require_finite_floats(name, array)
    return array


def _checked_words(name: str, given: np.ndarray | Quantised, dtype: str, room: Room
                   ) -> np.ndarray:
    """The words of a weight, which is rounded to `dtype` where it is given as floats."""
    if not isinstance(given, Quantised):
        _require_finite_floats(name, given)
        given = coded(given, dtype, room)
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


def _require_finite_floats(name: str, array: np.ndarray) -> None:
    """What `_require_finite` does, fast where the dtype is one of `INFINITIES`."""
    dtype = next((each for each in INFINITIES if DTYPES[each] == array.dtype), None)
    if dtype is not None and array.flags.c_contiguous:
        flat = array.reshape(-1)
        if not any(_nonfinite(flat[i:i + BLOCK], dtype) for i in range(0, flat.size, BLOCK)):
            return
    _require_finite(name, array)


def _require_finite(name: str, array: np.ndarray) -> None:
    """Raise NumericsError naming the weight and the first place of NaN or Inf in it."""
    bad = np.flatnonzero(~np.isfinite(array.reshape(-1)))
    if len(bad):
        where = [int(i) for i in np.unravel_index(bad[0], array.shape)]
        raise NumericsError(f"weight {name!r} holds {len(bad)} values that are NaN or infinite, "
                            f"the first at {where}; the model file is damaged or its training "
                            f"diverged, use another copy")
