"""Views against numpy's strided arrays: what a view says is where numpy finds the element."""

from __future__ import annotations

import math

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from smalti.fuse import View
from smalti.fuse.view import Storage, row_major, stored

EXAMPLES = 200


def array(view: View, memory: np.ndarray) -> np.ndarray:
    """The elements of a view; a stride outside of the memory raises."""
    strides = tuple(memory.itemsize * s for s in view.strides)
    return np.ndarray(view.shape, memory.dtype, memory.data, memory.itemsize * view.offset, strides)


def dense(shape: tuple[int, ...]) -> tuple[View, np.ndarray]:
    size = math.prod(shape)
    return View(Storage("arena", size), 0, shape, stored(shape)), np.arange(size)


def factors(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of `size` elements."""
    shape = []
    while size > 1 and len(shape) < 4:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return tuple([*shape, size])


@examples(EXAMPLES)
@given(st.data())
def test_any_chain_of_views_is_what_numpy_says(data: st.DataObject) -> None:
    view, memory = dense(data.draw(st.sampled_from([(2, 3, 4), (12,), (2, 4, 3, 5), (1, 6, 1),
                                                    (3, 1, 2, 2)])))
    expected = array(view, memory)
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["transpose", "slice", "expand", "reshape"]))
        if kind == "transpose":
            perm = data.draw(st.permutations(range(len(view.shape))))
            view, expected = view.transpose(perm), expected.transpose(perm)
        elif kind == "slice":
            axis = data.draw(st.integers(0, len(view.shape) - 1))
            end = data.draw(st.integers(1, view.shape[axis]))
            start = data.draw(st.integers(0, end - 1))
            view = view.slice(axis, start, end)
            expected = expected[(slice(None),) * axis + (slice(start, end),)]
        elif kind == "expand" and expected.size < 200:
            shape = [data.draw(st.integers(1, 3)) if n == 1 else n for n in view.shape]
            shape = [2] * data.draw(st.integers(0, 1)) + shape
            view, expected = view.expand(shape), np.broadcast_to(expected, shape)
        elif kind == "reshape":
            shape = factors(data.draw, expected.size)
            found = view.reshape(shape)
            if found is None:  # numpy needs a copy, too
                with pytest.raises(ValueError, match="without copying|copy"):
                    np.reshape(expected, shape, copy=False)
                continue
            view, expected = found, expected.reshape(shape)
        np.testing.assert_array_equal(array(view, memory), expected)


def test_a_reshape_that_strides_cannot_express() -> None:
    view, _ = dense((4, 6))
    assert view.transpose((1, 0)).reshape((24,)) is None
    assert view.transpose((1, 0)).reshape((2, 3, 4)).strides == (3, 1, 6)
    assert view.slice(1, 0, 3).reshape((12,)) is None
    assert view.slice(0, 1, 3).reshape((12,)).offset == 6


def test_images_are_stored_channels_last_and_all_else_in_order() -> None:
    assert stored((2, 3, 8, 9)) == (216, 1, 27, 3)
    assert stored((2, 3, 8)) == row_major((2, 3, 8)) == (24, 8, 1)
    assert stored(()) == ()
    view, _ = dense((2, 3, 8, 9))
    tokens = view.reshape((2, 3, 72)).transpose((0, 2, 1))
    assert tokens.strides == row_major((2, 72, 3))
