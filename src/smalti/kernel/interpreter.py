"""The meaning of a kernel: every stage evaluated with numpy, in order. Written to be read.

Each axis is an array along a dimension of its own: axes y < 2 and x < 3 are arrays of the shapes
[2, 1] and [1, 3]. Indices, loads and functions of them then broadcast to all points by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from smalti.errors import InputError, VerificationError
from smalti.graph.operation import DTYPES, OPERATIONS
from smalti.graph.operations.contraction import rounded
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import (
    Const,
    Expr,
    Index,
    Kernel,
    Load,
    Stage,
    paired_weights,
    rounded_weights,
    weight_steps,
)
from smalti.kernel.text import show_stage

Arrays = Mapping[str, np.ndarray]


def run(kernel: Kernel, arrays: Arrays) -> dict[str, np.ndarray]:
    """The outputs of `kernel`, by name and in their logical shapes.

    `arrays` holds an array in its logical shape for each input and parameter; strides play no
    part. Sums are made in float64 and rounded once, to the dtype of their buffer. Raises
    InputError for a missing array or one of another shape, VerificationError for a read outside a
    buffer.

    >>> from smalti.kernel.form import Buffer, axis
    >>> x, out = Buffer("x", "input", (2, 3), (3, 1)), Buffer("out", "output", (2,), (1,))
    >>> rows = Stage("out", (("r", 2),), Load("x", (axis("r"), axis("c"))), (("c", 3),), "sum")
    >>> run(Kernel("map", (x, out), (rows,)), {"x": np.ones((2, 3))})
    {'out': array([3., 3.], dtype=float32)}
    """
    known: dict[str, np.ndarray] = {}
    for buffer in kernel.buffers:
        if buffer.role in ("input", "parameter"):
            if buffer.name not in arrays:
                raise InputError(f"{buffer.role} {buffer.name!r} of the kernel is missing")
            array = as_stored(arrays[buffer.name], buffer.dtype)
            if array.shape != buffer.shape:
                raise InputError(f"{buffer.role} {buffer.name!r} is {array.shape}, expected "
                                 f"{buffer.shape}")
            known[buffer.name] = array
    if rounded_weights(kernel) and kernel.buffer("weight").dtype not in FORMATS:
        # [o, c, r, s], with a scale for each o
        whole, scale = rounded(known["weight"], (1, 2, 3), 1 if paired_weights(kernel) else None,
                               weight_steps(kernel))
        known["weight"] = whole.astype(np.float64) * scale
    for stage in kernel.stages:
        known[stage.result] = as_stored(_stage(stage, known), kernel.buffer(stage.result).dtype)
    return {b.name: known[b.name] for b in kernel.buffers if b.role == "output"}


def as_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` after being stored in a buffer of `dtype` and read again, as a kernel sees them.

    Halves and quantised weights come as the float32 numbers that they stand for.

    Rounding is to the nearest, ties to even; NaN stays NaN.

    >>> (as_stored(np.array([1 + 2**-8, 1 + 3 * 2**-8, 1e39]), "bf16") - 1).tolist()
    [0.0, 0.015625, inf]
    """
    if dtype == "f16":
        return np.asarray(values, np.float16).astype(np.float32)
    if dtype in FORMATS:
        return np.asarray(values, np.float32)
    if dtype != "bf16":
        return np.asarray(values, DTYPES[dtype])
    with np.errstate(over="ignore"):
        exact = np.ascontiguousarray(values, np.float32)
    bits = exact.view(np.uint32)
    even = bits + 0x7FFF + ((bits >> 16) & 1)
    rounded = (even & 0xFFFF0000).view(np.float32).reshape(np.shape(values))
    return np.where(np.isnan(exact).reshape(rounded.shape), np.float32(np.nan), rounded)


def _stage(stage: Stage, known: Arrays) -> np.ndarray:
    """The array that a stage computes; `outside` where a guard does not hold."""
    extents = [extent for _, extent in stage.axes]
    total = None
    for grid in _grids(stage):
        inside = _inside(stage, grid)
        value = _value(stage.value, stage, grid, inside, known)
        if stage.reducer:
            value = np.broadcast_to(value, [*extents, stage.reduced[-1][1]])
            if stage.reducer == "max":
                part = value.max(axis=-1)
                total = part if total is None else np.maximum(total, part)
            else:
                part = value.sum(axis=-1, dtype=np.float64)
                total = part if total is None else total + part
            inside = inside[..., 0]
        else:
            total = np.broadcast_to(value, extents)
    return np.where(inside, total, np.float32(stage.outside))


def _grids(stage: Stage) -> Iterator[dict[str, np.ndarray]]:
    """All points of a stage in parts: dicts from each axis to its array, as said at the top.

    The last reduced axis has the last dimension. Along the other reduced axes each part has one
    point only, so that arrays stay small.
    """
    axes = [*stage.axes, *stage.reduced[-1:]]
    grid = {name: np.arange(extent).reshape([extent if k == dimension else 1
                                             for k in range(len(axes))])
            for dimension, (name, extent) in enumerate(axes)}
    walked = stage.reduced[:-1]
    for point in np.ndindex(*(extent for _, extent in walked)):
        yield {**grid, **{name: np.array(at) for (name, _), at in zip(walked, point)}}


def _inside(stage: Stage, grid: Arrays) -> np.ndarray:
    """True where all guards hold: an array with a dimension for each axis of the grid."""
    dimensions = len(stage.axes) + bool(stage.reduced)
    inside = np.ones([1] * dimensions, bool)
    for index, extent in stage.guards:
        at = _affine(index, grid)
        inside = inside & (0 <= at) & (at < extent)
    return inside


def _affine(index: Index, grid: Arrays) -> np.ndarray:
    total = np.array(index.offset)
    for name, coefficient in index.terms:
        total = total + coefficient * grid[name]
    return total // index.divisor


def _value(expr: Expr, stage: Stage, grid: Arrays, inside: np.ndarray,
           known: Arrays) -> np.ndarray:
    """The expression at every point of the grid; where a guard does not hold, any number."""
    if isinstance(expr, Const):
        return np.asarray(expr.value, np.float32)
    if isinstance(expr, Load):
        read = known[expr.buffer][tuple(_place(expr, stage, grid, inside, known))]
        if expr is stage.value and expr.buffer == "sum":
            return read  # stored as it is: i32 that f32 does not hold stay exact
        return read.astype(np.float32) if np.issubdtype(read.dtype, np.integer) else read
    arguments = [_value(argument, stage, grid, inside, known) for argument in expr.arguments]
    return OPERATIONS[expr.function].meaning(*arguments)


def _place(load: Load, stage: Stage, grid: Arrays, inside: np.ndarray,
           known: Arrays) -> Iterator[np.ndarray]:
    """The array of each index of a load; 0 where a guard does not hold and nothing is read."""
    for index, extent in zip(load.index, known[load.buffer].shape):
        if isinstance(index, Load):
            at = known[index.buffer][tuple(_place(index, stage, grid, inside, known))]
        else:
            at = _affine(index, grid)
        at = np.where(inside, at, 0) if stage.guards else at
        if at.size and not (0 <= at.min() and at.max() < extent):
            raise VerificationError(f"{load.buffer} {known[load.buffer].shape} is read from "
                                    f"{at.min()} to {at.max()} by\n{show_stage(stage)}")
        yield at
