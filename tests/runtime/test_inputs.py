"""What programs are given: which numbers their dtypes hold, and what is refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smalti.errors import InputError
from smalti.graph.operation import DTYPES
from smalti.runtime.inputs import INTEGERS, checked_input

VALUES = (0, 1, -1, 2, 7, 8, -8, 15, 16, 127, 128, -128, -129, 255, 256, 2**11 + 1, 2**24 + 1,
          2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 0.5, -0.5, 1e300, 1e-300, 6e4,
          65520.0, 3.4e38, 3.5e38, 448.0, 500.0, math.inf, math.nan)
"""Ends of ranges and of exactness of the dtypes, and what lies just behind them."""


def given(value: float, dtype: str) -> np.ndarray:
    """One number as an array of a dtype, whatever becomes of it there."""
    wide = np.uint64 if isinstance(value, int) and value >= 2**63 else None
    with np.errstate(all="ignore"):
        return np.array([value], wide).astype(DTYPES[dtype])


def number(array: np.ndarray, dtype: str) -> float:
    return int(array[0]) if dtype in INTEGERS else float(array[0])


@pytest.mark.sampled
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("wanted", DTYPES)
def test_a_number_is_kept_or_refused(source: str, wanted: str) -> None:
    """Exactly, where integers are on either side; floats are rounded, but not to infinity."""
    for value in VALUES:
        try:
            array = given(value, source)
            with np.errstate(all="ignore"):
                plain = number(array.astype(DTYPES[wanted]), wanted)
        except TypeError:  # ml_dtypes does not convert everything, nor do we
            continue
        before = number(array, source)
        if source in INTEGERS or wanted in INTEGERS:
            kept = before == plain
        else:
            kept = math.isfinite(plain) or not math.isfinite(before)
        try:
            found = checked_input("x", array, (1,), wanted)
        except InputError as error:
            assert not kept, (value, error)
        else:
            assert kept, (value, found)
            np.testing.assert_equal(number(found, wanted), plain)


@pytest.mark.parametrize("array, dtype, said", [
    (np.array([1, 1e300]), "f32", "holds 1e+300 at [1], which f32 (up to 3.40282e+38) cannot hold"),
    (np.array([16777217]), "f32", "16777217 at [0], which f32 cannot hold exactly (the nearest is "
                                  "16777216.0); give floats"),
    (np.array([1e5], np.float32), "f16", "100000.0 at [0], which f16 (up to 65504) cannot hold; "
                                         "scale or clip"),
    (np.array([[0, math.nan]]), "i64", "holds nan at [0, 1], which i64 (whole numbers from "),
    (np.array([300]), "u8", "holds 300 at [0], which u8 (whole numbers from 0 to 255) cannot hold"),
    (np.array([2**53 + 1]), "f64", "which f64 cannot hold exactly"),
    (np.array(2), "bool", "holds 2, which bool (whole numbers from 0 to 1) cannot hold"),
    (np.array([1 + 2j]), "f32", "is of complex128, the program expects f32 numbers of shape [1]"),
    (None, "f32", "input 'x' is None, the program expects f32 numbers of shape []"),
    ([[1], [2, 3]], "f32", "is a list that is no array"),
    ({}, "f32", "is a dict, the program expects f32"),
    (["a"], "f32", "is of <U1, the program expects f32 numbers"),
])
def test_refusals_name_the_number_and_say_what_to_do(array: object, dtype: str,
                                                     said: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_input("x", array, np.shape(array) if not isinstance(array, list) else (1,), dtype)
    assert said in str(caught.value)
