"""Operators that move elements without computing."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.graph import Value
from smalti.graph.operation import DTYPES

CONCAT_MAX = 64
"""The most values that one concat joins; more are joined in groups, and the groups in turn."""


def empty(call: NodeCall, shape: tuple[int, ...], dtype: str) -> Value:
    """A constant without elements: one extent of `shape` is 0."""
    return call.constant(np.zeros(shape, DTYPES[dtype]), dtype)


def part(call: NodeCall, x: Value, axis: int, start: int, end: int) -> Value:
    """The elements from `start` to `end` of one axis."""
    if (start, end) == (0, x.shape[axis]):
        return x
    if start >= end:
        shape = tuple(0 if i == axis else n for i, n in enumerate(x.shape))
        return empty(call, shape, x.dtype)
    return call.apply("slice", x, axis=axis, start=start, end=end)


def taken(call: NodeCall, x: Value, axis: int, indices: Value) -> Value:
    """numpy.take: x at `indices` along `axis`; negative indices count from the end."""
    rest = [i for i in range(len(x.shape)) if i != axis]
    extents = [x.shape[i] for i in rest]
    result = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])
    if math.prod(result) == 0:
        return empty(call, result, x.dtype)
    if x.kind != "parameter" and indices.kind != "constant":  # token numbers are not negative
        extent = call.constant(x.shape[axis], indices.dtype)
        below = call.apply("less", indices, call.constant(0, indices.dtype))
        indices = call.apply("where", below, indices + extent, indices)
    rows = x if axis == 0 else x.transpose(axis, *rest)
    table = rows.reshape(x.shape[axis], math.prod(extents))
    found = call.apply("gather", table, indices).reshape(*indices.shape, *extents)
    if axis == 0:
        return found
    count = len(indices.shape)
    perm = [count + i for i in range(axis)] + list(range(count)) \
        + [count + i for i in range(axis, len(extents))]
    return found.transpose(*perm)


def taken_at(call: NodeCall, x: Value, axis: int, indices: np.ndarray) -> Value:
    """`taken` for known indices; consecutive ones become a slice."""
    extent = x.shape[axis]
    if indices.size and not -extent <= indices.min() <= indices.max() < extent:
        raise InputError(f"elements {indices.min()} to {indices.max()} of axis {axis} are asked "
                         f"of {x.type}")
    indices = np.where(indices < 0, indices + extent, indices).astype(np.int64)
    flat = indices.reshape(-1)
    if flat.size and np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
        found = part(call, x, axis, int(flat[0]), int(flat[0]) + flat.size)
        return found.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1:]) \
            if indices.ndim != 1 else found
    return taken(call, x, axis, call.constant(indices, "i64"))


@rule("Reshape")
def reshape(call: NodeCall) -> Value:
    x = call[0]
    shape = list(call.integers_of("shape", 1))
    if not call.integer("allowzero", 0):
        if any(n == 0 and i >= len(x.shape) for i, n in enumerate(shape)):
            raise InputError(f"{x.type} has no extents to keep in {shape}")
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    if shape.count(-1) == 1 and 0 in shape:
        shape[shape.index(-1)] = 0 if not call.integer("allowzero", 0) else -1
    return x if tuple(shape) == x.shape else call.apply("reshape", x, shape=tuple(shape))


@rule("Flatten")
def flatten(call: NodeCall) -> Value:
    x, axis = call[0], call.integer("axis")
    if not -len(x.shape) <= axis <= len(x.shape):
        raise InputError(f"axis {axis} does not exist in {x.type}")
    axis += len(x.shape) if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@rule("Squeeze")
def squeeze(call: NodeCall) -> Value:
    x = call[0]
    axes = call.integers_of("axes", 1, None)
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    gone = {call.axis(x, axis) for axis in axes}
    if any(x.shape[i] != 1 for i in gone):
        raise InputError(f"axes {list(axes)} of {x.type} are not all of extent 1")
    return x.reshape(*(n for i, n in enumerate(x.shape) if i not in gone))


@rule("Unsqueeze")
def unsqueeze(call: NodeCall) -> Value:
    x, axes = call[0], call.integers_of("axes", 1)
    rank = len(x.shape) + len(axes)
    if any(not -rank <= axis < rank for axis in axes) \
            or len({axis % rank for axis in axes}) < len(axes):
        raise InputError(f"axes {list(axes)} are no new axes of {x.type}")
    extents = iter(x.shape)
    made = {axis % rank for axis in axes}
    return x.reshape(*(1 if i in made else next(extents) for i in range(rank)))


@rule("Transpose")
def transpose(call: NodeCall) -> Value:
    rank = len(call[0].shape)
    return call[0].transpose(*call.integers("perm", tuple(reversed(range(rank)))))


@rule("Concat")
def concat(call: NodeCall) -> Value:
    values = [call[i] for i in range(len(call.operands))]
    if not values:
        raise InputError("there is nothing to concatenate")
    axis = call.axis(values[0], call.integer("axis", 1))
    return joined(call, values, axis)


def joined(call: NodeCall, values: list[Value], axis: int) -> Value:
    """The values concatenated along `axis`."""
    full = [v for v in values if v.type.size] or values[:1]
    while len(full) > CONCAT_MAX:
        full = [call.apply("concat", *full[i:i + CONCAT_MAX], axis=axis)
                for i in range(0, len(full), CONCAT_MAX)]
    return full[0] if len(full) == 1 else call.apply("concat", *full, axis=axis)


@rule("Split")
def split(call: NodeCall) -> list[Value]:
    x = call[0]
    axis = call.axis(x, call.integer("axis"))
    sizes = call.integers_of("split", 1, None)
    if sizes is None:
        count = call.integer("num_outputs", len(call.results))
        if count < 1 or count > max(1, len(call.results)):
            raise InputError(f"{count} parts of {x.type} are asked for")
        size = -(-x.shape[axis] // count)
        sizes = [max(0, min(size, x.shape[axis] - i * size)) for i in range(count)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise InputError(f"parts of {list(sizes)} are no split of axis {axis} of {x.type}")
    ends = np.cumsum(sizes).tolist()
    return [part(call, x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@rule("Slice")
def cut(call: NodeCall) -> Value:
    x = call[0]
    starts, ends = call.integers_of("starts", 1), call.integers_of("ends", 2)
    axes = call.integers_of("axes", 3, tuple(range(len(starts))))
    steps = call.known_integers(4, (1,) * len(starts))
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise InputError(f"starts {starts}, ends {ends}, axes {axes}, steps {steps} do not fit "
                         f"each other")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = call.axis(x, axis)
        first, last, stride = slice(start, end, step).indices(x.shape[axis])
        if stride == 1:
            x = part(call, x, axis, first, max(first, last))
        else:
            count = len(range(first, last, stride))
            x = taken_at(call, x, axis, first + stride * call.counted(count))
    return x


@rule("Gather")
def gather(call: NodeCall) -> Value:
    x, indices = call[0], call[1]
    axis = call.axis(x, call.integer("axis"))
    if indices.dtype not in ("i32", "i64"):
        raise InputError(f"the indices are {indices.type}; integers are expected")
    if indices.kind == "constant":
        return taken_at(call, x, axis, indices.data)
    return taken(call, x, axis, indices)


@rule("Expand")
def expand(call: NodeCall) -> Value:
    x = call[0]
    wanted = call.known_integers(1)
    try:
        shape = np.broadcast_shapes(x.shape, wanted)
    except ValueError as error:
        raise InputError(f"{x.type} cannot be expanded to {list(wanted)}: {error}") from None
    return x if shape == x.shape else call.apply("expand", x, shape=tuple(map(int, shape)))


@rule("Tile")
def tile(call: NodeCall) -> Value:
    x, repeats = call[0], call.known_integers(1)
    if len(repeats) != len(x.shape) or any(n < 0 for n in repeats):
        raise InputError(f"{x.type} cannot be repeated {list(repeats)} times")
    result = tuple(n * r for n, r in zip(x.shape, repeats, strict=True))
    if 0 in result:
        return empty(call, result, x.dtype)
    if all(r == 1 for r in repeats):
        return x
    apart = x.reshape(*(k for n in x.shape for k in (1, n)))
    wide = tuple(k for pair in zip(repeats, x.shape, strict=True) for k in pair)
    return call.apply("expand", apart, shape=wide).reshape(*result)


@rule("DepthToSpace")
def depth_to_space(call: NodeCall) -> Value:
    x, size = call[0], call.integer("blocksize")
    if len(x.shape) != 4 or size < 1 or x.shape[1] % size ** 2:
        raise InputError(f"{x.type} cannot be spread to blocks of {size} x {size}")
    n, c, h, w = x.shape
    c //= size ** 2
    if call.text("mode", "DCR") == "CRD":
        y = x.reshape(n, c, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        y = x.reshape(n, size, size, c, h, w).transpose(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c, h * size, w * size)


@rule("SpaceToDepth")
def space_to_depth(call: NodeCall) -> Value:
    x, size = call[0], call.integer("blocksize")
    if len(x.shape) != 4 or size < 1 or x.shape[2] % size or x.shape[3] % size:
        raise InputError(f"{x.type} cannot be gathered from blocks of {size} x {size}")
    n, c, h, w = x.shape
    apart = x.reshape(n, c, h // size, size, w // size, size)
    perm = (0, 1, 3, 5, 2, 4) if call.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return apart.transpose(*perm).reshape(n, c * size ** 2, h // size, w // size)


@rule("CenterCropPad")
def centred(call: NodeCall) -> Value:
    x, extents = call[0], call.known_integers(1)
    axes = [call.axis(x, axis) for axis in call.integers("axes", tuple(range(len(x.shape))))]
    if len(axes) != len(extents) or min(extents, default=0) < 0:
        raise InputError(f"extents {list(extents)} for the axes {axes} of {x.type}")
    fronts, backs = [0] * len(x.shape), [0] * len(x.shape)
    for axis, extent in zip(axes, extents, strict=True):
        missing = extent - x.shape[axis]
        if missing < 0:
            x = part(call, x, axis, -missing // 2, -missing // 2 + extent)
        else:
            fronts[axis], backs[axis] = missing // 2, missing - missing // 2
    result = tuple(sum(n) for n in zip(x.shape, fronts, backs))
    if result == x.shape:
        return x
    if x.type.size == 0:
        return call.filled(result, 0, x.dtype)
    return call.apply("pad", x, pads=(*fronts, *backs), mode="constant", value=0.0)


@rule("Pad")
def pad(call: NodeCall) -> Value:
    x, mode = call[0], call.text("mode")
    pads = call.integers_of("pads", 1)
    axes = call.known_integers(3, tuple(range(len(x.shape))))
    if len(pads) != 2 * len(axes) or mode not in ("constant", "reflect", "edge", "wrap"):
        raise InputError(f"{x.type} cannot be padded by {list(pads)} in mode {mode!r}")
    number = call.known_or(2, np.float64(call.number("value", 0.0)))
    full = [(0, 0)] * len(x.shape)
    for i, axis in enumerate(axes):
        full[call.axis(x, axis)] = (pads[i], pads[len(axes) + i])
    for axis, (before, after) in enumerate(full):
        if before < 0 or after < 0:
            first, last = max(0, -before), x.shape[axis] - max(0, -after)
            x = part(call, x, axis, first, max(first, last))
    full = [(max(0, before), max(0, after)) for before, after in full]
    if not any(map(any, full)):
        return x
    return call.apply("pad", x, pads=(*(b for b, _ in full), *(a for _, a in full)), mode=mode,
                      value=np.asarray(number).reshape(-1)[0].item() if mode == "constant" else 0)
