"""What programs are given, checked: names, shapes, dtypes, and numbers that can be held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import ml_dtypes
import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import DTYPES, FLOATS

NUMBERS = frozenset(map(np.dtype, DTYPES.values()))
INTEGERS = frozenset(name for name in DTYPES if name == "bool" or name[0] in "iu")
"""Dtypes of inputs that take whole numbers only, whatever array holds them."""
NAMES = {np.dtype(kind): name for name, kind in DTYPES.items()}


def finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor Inf; integers hold none."""
    array = np.asarray(array)
    floats = any(array.dtype == DTYPES[dtype] for dtype in FLOATS)
    return not floats or bool(np.isfinite(array).all())


def checked_path(path: object, call: str, expected: str) -> str | PathLike:
    """`path` itself. Raises InputError unless it is a text or a path; `call` is what takes it."""
    if isinstance(path, str | PathLike):
        if "\0" in str(path):
            raise InputError(f"{call} is given {str(path)!r:.80}; a path has no NUL in it")
        return path
    raise InputError(f"{call} is given {described(path)}; expected {expected}")


def all_given(inputs: object, shapes: Mapping[str, Sequence[int]], program: str) -> None:
    """Raise InputError unless `inputs` maps the names of all inputs of a program, and no others."""
    if isinstance(inputs, Mapping) and inputs.keys() == shapes.keys():
        return
    listed = ", ".join(f"{name!r} of shape {list(shape)}" for name, shape in shapes.items())
    if not isinstance(inputs, Mapping):
        first = next(iter(shapes), "x")
        raise InputError(f"run is given {described(inputs)}; expected a mapping of arrays by "
                         f"name, such as run({{{first!r}: array}}). The inputs of {program} are "
                         f"{listed or 'none'}")
    faults = [f"{name!r} is missing" for name in shapes if name not in inputs]
    faults += [f"{name!r} is unknown" for name in inputs if name not in shapes]
    raise InputError(f"{', '.join(faults)}: the inputs of {program} are {listed or 'none'}")


def described(value: object) -> str:
    """What was given, in few words.

    >>> described(np.zeros((2, 3))), described([1]), described(None)
    ('an array of shape [2, 3]', 'a list', 'None')
    """
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def checked_input(name: str, array: object, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An input as a numpy array of `dtype`: arrays, scalars, lists of numbers, and what speaks
    dlpack.

    Floats are rounded to the nearest number of `dtype`; whole numbers are kept exactly. Raises
    InputError for another shape, for what is no number, and for numbers that `dtype` cannot hold:
    those beyond its range, and for integers also fractions, NaN and Inf.
    """
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        array = np.from_dlpack(array)
    try:
        given = np.asarray(array)
    except ValueError as error:
        raise InputError(f"input {name!r} is {described(array)} that is no array ({error}); give "
                         f"numbers of shape {list(shape)}") from None
    kind = given.dtype.newbyteorder("=")
    if kind not in NUMBERS or not np.can_cast(kind, DTYPES[dtype], "unsafe"):
        held = described(array) if kind.hasobject else f"of {given.dtype}"
        raise InputError(f"input {name!r} is {held}, the program expects {dtype} numbers of shape "
                         f"{list(shape)}")
    if given.shape != shape:
        raise InputError(f"input {name!r} has shape {list(given.shape)}, the program expects "
                         f"{list(shape)}")
    if kind == DTYPES[dtype]:
        return given
    with np.errstate(all="ignore"):
        taken = given.astype(DTYPES[dtype])
        wrong = _not_held(given, taken, dtype)
    if wrong.any():
        raise InputError(_refusal(name, given, taken, wrong, dtype))
    return taken


def _not_held(given: np.ndarray, held: np.ndarray, dtype: str) -> np.ndarray:
    """Where `held`, which is `given` as `dtype`, is another number than it may be."""
    integral = NAMES[given.dtype.newbyteorder("=")] in INTEGERS
    if dtype not in INTEGERS and not integral:  # rounded, but not to infinity
        return np.isfinite(given) & ~np.isfinite(held)
    if dtype in INTEGERS and integral:
        return held != given
    exact, other = (held, given) if integral else (given, held)
    return ~_same(exact, other)


def _same(floats: np.ndarray, integers: np.ndarray) -> np.ndarray:
    """Where floats and integers are the same numbers, exactly.

    Both as f64 and as integers they have to agree: 2**53 + 1 is 2**53 as f64, and 2**64 is 0 as
    u64.
    """
    wide = floats.astype(np.float64)
    return (wide == integers.astype(np.float64)) & (wide.astype(integers.dtype) == integers)


def _refusal(name: str, given: np.ndarray, held: np.ndarray, wrong: np.ndarray,
             dtype: str) -> str:
    """What cannot be held, where the first of it is, and what to do about it."""
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    value = given[at]
    place = f" at {list(map(int, at))}" if at else ""
    if dtype in INTEGERS:
        low, high = (0, 1) if dtype == "bool" else (
            ml_dtypes.iinfo(DTYPES[dtype]).min, ml_dtypes.iinfo(DTYPES[dtype]).max)
        why, advice = f"which {dtype} (whole numbers from {low} to {high}) cannot hold", \
            "round, clip or replace such numbers first"
    elif np.isfinite(held[at]):
        why, advice = f"which {dtype} cannot hold exactly (the nearest is {held[at]})", \
            "give floats if rounding does no harm, say by .astype(numpy.float64)"
    else:
        why = f"which {dtype} (up to {float(ml_dtypes.finfo(DTYPES[dtype]).max):.6g}) cannot hold"
        advice = "scale or clip the array first"
    return f"input {name!r} holds {value}{place}, {why}; {advice}"


def check_rows(name: str, array: np.ndarray, extent: int) -> None:
    """Raise InputError unless all numbers of an input are those of a table's `extent` rows."""
    array = np.asarray(array)
    if array.size and not 0 <= array.min() <= array.max() < extent:
        raise InputError(f"input {name!r} holds numbers from {array.min()} to {array.max()}; rows "
                         f"0 to {extent - 1} of a table are expected")
