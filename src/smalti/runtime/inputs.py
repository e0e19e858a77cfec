"""What programs are given, checked: names, shapes, dtypes, and numbers that can be held."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import DTYPES, FLOATS

NUMBERS = frozenset(map(np.dtype, DTYPES.values()))
INTEGERS = frozenset(name for name in DTYPES if name == "bool" or name[0] in "iu")
"""Dtypes of inputs that take whole numbers only, whatever array holds them."""


def finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor Inf; integers hold none."""
    array = np.asarray(array)
    floats = any(array.dtype == DTYPES[dtype] for dtype in FLOATS)
    return not floats or bool(np.isfinite(array).all())


def checked_input(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An input as a numpy array of `dtype`. Raises InputError for another shape, and for numbers
    that `dtype` cannot hold: texts, complex ones, and as integers those that are none."""
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        array = np.from_dlpack(array)
    array = np.asarray(array)
    if array.shape != shape:
        raise InputError(f"input {name!r} has shape {list(array.shape)}, the program expects "
                         f"{list(shape)}")
    if array.dtype == DTYPES[dtype]:
        return array
    known = array.dtype.newbyteorder("=") in NUMBERS
    if known and np.can_cast(array.dtype, DTYPES[dtype], "unsafe"):
        with np.errstate(invalid="ignore"):
            held = array.astype(DTYPES[dtype])
        if dtype in INTEGERS and (held.astype(np.float64) != array.astype(np.float64)).any():
            raise InputError(f"input {name!r} holds {array.dtype} numbers that are no {dtype}, "
                             f"which the program expects; convert them first")
        return held
    raise InputError(f"input {name!r} is of {array.dtype}, the program expects {dtype}")


def check_rows(name: str, array: np.ndarray, extent: int) -> None:
    """Raise InputError unless all numbers of an input are those of a table's `extent` rows."""
    array = np.asarray(array)
    if array.size and not 0 <= array.min() <= array.max() < extent:
        raise InputError(f"input {name!r} holds numbers from {array.min()} to {array.max()}; rows "
                         f"0 to {extent - 1} of a table are expected")


def all_given(inputs: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Raise InputError unless the inputs that are given are those that are wanted."""
    if set(inputs) != set(wanted):
        raise InputError(f"inputs {sorted(inputs)} are given, {sorted(wanted)} are expected")
