"""Shapes of any rank in four dimensions, against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from smalti.export.ggml import layout

extents = st.lists(st.integers(1, 3), min_size=1, max_size=7)


@st.composite
def permutations(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(extents)
    return tuple(shape), tuple(draw(st.permutations(range(len(shape)))))


@given(extents)
def test_dimensions_hold_all_elements_in_four(shape: list[int]) -> None:
    dims = layout.dimensions(shape)
    assert 1 <= len(dims) <= 4 and np.prod(dims) == np.prod(shape)
    assert len(dims) == 1 or dims[0] > 1


@given(permutations())
def test_steps_transpose(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, perm = case
    array = np.arange(np.prod(shape)).reshape(shape)
    moved = array
    for dims, order in layout.steps(shape, perm):
        assert len(dims) <= 4 and 1 not in dims
        moved = moved.reshape(dims).transpose(order)
    assert (moved.reshape(-1) == array.transpose(perm).reshape(-1)).all()


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, and the result."""
    result = draw(extents)
    shapes = []
    for _ in range(2):
        start = draw(st.integers(0, len(result)))
        shapes.append(tuple(draw(st.sampled_from([n, 1])) for n in result[start:]))
    return *shapes, tuple(np.broadcast_shapes(*shapes))


@given(broadcasts())
def test_aligned_shapes_broadcast_alike(case: tuple) -> None:
    *shapes, result = case
    found = layout.aligned(shapes, result)
    arrays = [np.arange(np.prod(shape, dtype=int)).reshape(shape) for shape in shapes]
    expected = (arrays[0] * 100 + arrays[1]).reshape(-1)
    if found is None:
        assert len(result) > 4
        arrays = [array.reshape(-1) for array in (repeated(a, result) for a in arrays)]
    else:
        assert all(len(shape) <= 4 for shape in found)
        arrays = [array.reshape(shape) for array, shape in zip(arrays, found[:2], strict=True)]
    assert ((arrays[0] * 100 + arrays[1]).reshape(-1) == expected).all()


def repeated(array: np.ndarray, result: tuple[int, ...]) -> np.ndarray:
    for dims, full in layout.repetitions(array.shape, result):
        assert len(full) <= 4 and len(dims) == len(full)
        array = np.broadcast_to(array.reshape(dims), full)
    return array


@given(broadcasts())
def test_repetitions_broadcast(case: tuple) -> None:
    shape, _, _ = case
    result = tuple(np.broadcast_shapes(shape, case[1], case[2]))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    assert (repeated(array, result).reshape(-1)
            == np.broadcast_to(array, result).reshape(-1)).all()
