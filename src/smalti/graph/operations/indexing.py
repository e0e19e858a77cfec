"""Operations that gather and scatter elements by indices; negative ones count from the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define

INDICES = ("i32", "i64")
REDUCTIONS: dict[str, np.ufunc | None] = {
    "none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def axis_of(name: str, x: Type, axis: int) -> int:
    """`axis` of `x` counted from the front. Raises InputError if x has no such axis."""
    if not -len(x.shape) <= axis < len(x.shape):
        raise InputError(f"{name} axis {axis} does not exist in {x}")
    return axis % len(x.shape)


def wrapped(indices: np.ndarray, extent: int | np.ndarray) -> np.ndarray:
    """Indices counted from the front. Raises InputError for one outside [-extent, extent)."""
    indices = np.asarray(indices)
    if ((indices < -extent) | (indices >= extent)).any():
        raise InputError(f"indices {indices.min()} to {indices.max()} are asked of {extent}")
    return np.where(indices < 0, indices + extent, indices)


def _moves(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    return 0


# ---------------------------------------------------------------- by one axis


def _gather_elements_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, indices = types
    axis = axis_of("gather_elements", x, attributes["axis"])
    if indices.dtype not in INDICES or len(indices.shape) != len(x.shape) or any(
            n > m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True))
            if i != axis):
        raise InputError(f"gather_elements from {x} by {indices} along axis {axis}: integers of "
                         f"the same rank, no larger along other axes, are expected")
    return Type(indices.shape, x.dtype)


def _within(x: np.ndarray, shape: Sequence[int], axis: int) -> np.ndarray:
    """x cropped to `shape` along all axes but `axis`."""
    return x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(shape))]


def gather_elements(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    """y[i, j, …] = x[i, indices[i, j, …], …] where `axis` is 1; y has the shape of indices."""
    axis %= x.ndim
    return np.take_along_axis(_within(x, indices.shape, axis), wrapped(indices, x.shape[axis]),
                              axis)


define(name="gather_elements", inputs=(2, 2), attributes={"axis": REQUIRED}, flops=_moves,
       shape=_gather_elements_rule, meaning=gather_elements)


def _reduction_of(name: str, attributes: Mapping[str, Any]) -> None:
    if attributes["reduction"] not in REDUCTIONS:
        raise InputError(f"{name} has no reduction {attributes['reduction']!r}; there are "
                         f"{sorted(REDUCTIONS)}")


def _scatter_elements_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, indices, updates = types
    _reduction_of("scatter_elements", attributes)
    axis = axis_of("scatter_elements", x, attributes["axis"])
    if (indices.dtype not in INDICES or updates != Type(indices.shape, x.dtype)
            or len(indices.shape) != len(x.shape) or any(
                n > m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True))
                if i != axis)):
        raise InputError(f"scatter_elements of {updates} by {indices} into {x} along axis {axis}: "
                         f"integers and updates of one shape, no larger along other axes, are "
                         f"expected")
    return x


def scatter_elements(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int,
                     reduction: str) -> np.ndarray:
    """A copy y of x with y[i, indices[i, j, …], …] = updates[i, j, …] if `axis` is 1.

    With a reduction each update is combined with the element that is there ("add", "mul", "max",
    "min"); without one ("none") the last update of an element counts.
    """
    axis %= x.ndim
    places: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
    places[axis] = wrapped(indices, x.shape[axis])
    return _placed(x, tuple(places), updates, reduction)


def _placed(x: np.ndarray, places: tuple[np.ndarray, ...], updates: np.ndarray,
            reduction: str) -> np.ndarray:
    y, combine = x.copy(), REDUCTIONS[reduction]
    if combine is None:
        y[places] = updates
    else:
        combine.at(y, places, updates)
    return y


define(name="scatter_elements", inputs=(3, 3), shape=_scatter_elements_rule,
       meaning=scatter_elements, attributes={"axis": REQUIRED, "reduction": "none"},
       flops=lambda types, result, attributes: types[2].size)


# ---------------------------------------------------------------- by several axes


def _gather_nd_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, indices = types
    batch = attributes["batch_dims"]
    depth = indices.shape[-1] if indices.shape else 0
    if (indices.dtype not in INDICES or not indices.shape or batch < 0 or depth < 1
            or batch + depth > len(x.shape) or batch >= len(indices.shape)
            or x.shape[:batch] != indices.shape[:batch]):
        raise InputError(f"gather_nd from {x} by {indices} with {batch} batch dimensions: integers "
                         f"[..., d] with d axes to pick from are expected")
    return Type((*indices.shape[:-1], *x.shape[batch + depth:]), x.dtype)


def gather_nd(x: np.ndarray, indices: np.ndarray, *, batch_dims: int) -> np.ndarray:
    """y[b, i, …] = x[b, *indices[b, i], …]: the last axis of indices holds coordinates in x, and b
    stands for the first `batch_dims` axes."""
    depth = indices.shape[-1]
    batch: Sequence[np.ndarray] = (
        np.indices(x.shape[:batch_dims], sparse=True) if batch_dims else ())
    between = (1,) * (indices.ndim - 1 - batch_dims)
    places = [place.reshape(place.shape + between) for place in batch]
    places += [wrapped(indices[..., k], x.shape[batch_dims + k]) for k in range(depth)]
    return x[tuple(places)]


define(name="gather_nd", inputs=(2, 2), attributes={"batch_dims": 0}, flops=_moves,
       shape=_gather_nd_rule, meaning=gather_nd)


def _scatter_nd_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, indices, updates = types
    _reduction_of("scatter_nd", attributes)
    depth = indices.shape[-1] if indices.shape else 0
    if (indices.dtype not in INDICES or not 1 <= depth <= len(x.shape)
            or updates != Type((*indices.shape[:-1], *x.shape[depth:]), x.dtype)):
        raise InputError(f"scatter_nd of {updates} by {indices} into {x}: integers [..., d] and an "
                         f"update for each are expected")
    return x


def scatter_nd(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *,
               reduction: str) -> np.ndarray:
    """A copy y of x with y[*indices[i], …] = updates[i, …]; `reduction` is as in
    `scatter_elements`."""
    places = tuple(wrapped(indices[..., k], x.shape[k]) for k in range(indices.shape[-1]))
    return _placed(x, places, updates, reduction)


define(name="scatter_nd", inputs=(3, 3), attributes={"reduction": "none"}, shape=_scatter_nd_rule,
       meaning=scatter_nd, flops=lambda types, result, attributes: types[2].size)


# ---------------------------------------------------------------- reversal


def _reverse_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, lengths = types
    batch, time = attributes["batch_axis"], attributes["time_axis"]
    if (len(x.shape) < 2 or sorted((batch, time)) != [0, 1] or lengths.dtype not in INDICES
            or lengths.shape != (x.shape[batch],)):
        raise InputError(f"reverse_sequence of {x} by {lengths}, batch axis {batch} and time axis "
                         f"{time}: one length a sequence and the axes 0 and 1 are expected")
    return x


def reverse_sequence(x: np.ndarray, lengths: np.ndarray, *, batch_axis: int,
                     time_axis: int) -> np.ndarray:
    """x with the first lengths[b] steps of each sequence b reversed, the others unchanged."""
    steps = np.arange(x.shape[time_axis])
    ends = np.asarray(lengths)[:, None]
    rows = np.where(steps < ends, ends - 1 - steps, steps)  # [batch, time]
    if (np.asarray(lengths) > x.shape[time_axis]).any():
        raise InputError(f"lengths up to {lengths.max()} of sequences of {x.shape[time_axis]}")
    rows = rows.reshape(rows.shape + (1,) * (x.ndim - 2))
    return np.take_along_axis(x, rows if batch_axis == 0 else rows.swapaxes(0, 1), time_axis)


define(name="reverse_sequence", inputs=(2, 2), attributes={"batch_axis": 1, "time_axis": 0},
       shape=_reverse_rule, meaning=reverse_sequence, flops=_moves)
