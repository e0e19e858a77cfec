"""Elements that move: reshape, transpose, concat, slice, expand, pad, resize, gather."""

from __future__ import annotations

import math

import numpy as np

from smalti.export.ggml import layout
from smalti.export.ggml.builder import GgmlBuilder, Lowering, NotExportable
from smalti.export.ggml.code import Tensor, call
from smalti.export.ggml.layout import Shape
from smalti.graph import Node, Value


def _reshape(b: GgmlBuilder, node: Node) -> Tensor:
    return b.tensor(node.inputs[0])


def _transpose(b: GgmlBuilder, node: Node) -> Tensor:
    (x,) = node.inputs
    return b.transposed(b.tensor(x), x.shape, node.attributes["perm"])


def _around(shape: Shape, axis: int) -> tuple[Shape, int]:
    """`shape` with the axes in front of `axis`, and those behind it, as one where need be; and the
    number that ggml has for `axis`."""
    if len(shape) <= layout.RANK_MAX:
        return shape, len(shape) - 1 - axis
    return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])), 1


def _concat(b: GgmlBuilder, node: Node) -> Tensor:
    axis = node.attributes["axis"] % len(node.output.shape)
    dims, dim = _around(node.output.shape, axis)
    parts = [b.shaped(x, *_around(x.shape, axis)[0]) for x in node.inputs]
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return Tensor(call("ggml_concat", "ctx", *parts, dim), dims, parts[0].dtype)
    listed = call("", *parts)[1:-1]
    return Tensor(("ops::concat(ctx, {", *listed, f"}}, {dim})"), dims, parts[0].dtype)


def _slice(b: GgmlBuilder, node: Node) -> Tensor:
    (x,), axis = node.inputs, node.attributes["axis"]
    before, dim = _around(x.shape, axis)
    tensor = b.shaped(x, *before)
    code = call("ops::slice", "ctx", tensor, dim, node.attributes["start"], node.attributes["end"])
    return Tensor(code, _around(node.output.shape, axis)[0], tensor.dtype)


def _expand(b: GgmlBuilder, node: Node) -> Tensor:
    (x,) = node.inputs
    return b.expanded(b.tensor(x), x.shape, node.output.shape)


def _resize(b: GgmlBuilder, node: Node) -> Tensor:
    (x,), result = node.inputs, node.output.shape
    if len(result) <= layout.RANK_MAX:
        inner = [*result[::-1], 1, 1, 1][:4]
        return Tensor(call("ggml_interpolate", "ctx", b.shaped(x, *x.shape), *inner,
                           "GGML_SCALE_MODE_NEAREST"), result)
    tensor, now = b.tensor(x), list(x.shape)
    for axis, scale in enumerate(map(int, node.attributes["scales"])):
        outer, inner_size = math.prod(now[:axis + 1]), math.prod(now[axis + 1:])
        tensor = b.expanded(tensor, (outer, 1, inner_size), (outer, scale, inner_size))
        now[axis] *= scale
    return tensor


def _gather(b: GgmlBuilder, node: Node) -> Tensor:
    table, indices = node.inputs
    if b.tensor(table).dtype != "f32":
        raise NotExportable(f"a table of {table.dtype}; floats are expected")
    count, width = indices.type.size, table.shape[1]
    code = call("ggml_get_rows", "ctx", b.shaped(table, *table.shape), b.shaped(indices, count))
    return Tensor(code, (count, width))


# ---------------------------------------------------------------------- borders

def _pad(b: GgmlBuilder, node: Node) -> Tensor:
    (x,), pads, mode = node.inputs, node.attributes["pads"], node.attributes["mode"]
    rank = len(x.shape)
    fronts, backs = pads[:rank], pads[rank:]
    if mode == "constant" and rank <= layout.RANK_MAX:
        value = float(node.attributes["value"])
        return bordered(b, x, fronts, backs, value)
    tensor, now = b.tensor(x), list(x.shape)
    for axis in range(rank):
        if not fronts[axis] and not backs[axis]:
            continue
        if mode == "constant":
            raise NotExportable(f"constant borders of {rank} axes; at most 4 are expected")
        places = np.pad(np.arange(now[axis]), (fronts[axis], backs[axis]), mode=mode)
        tensor = b.let(_taken(b, tensor, now, axis, places), hint="pad")
        now[axis] = len(places)
    return tensor


def bordered(b: GgmlBuilder, x: Value, fronts: Shape, backs: Shape, value: float) -> Tensor:
    """`x`, of at most four axes, with `value` around it."""
    rank = len(x.shape)
    result = tuple(n + f + e for n, f, e in zip(x.shape, fronts, backs, strict=True))
    sides = [side for axis in reversed(range(rank)) for side in (fronts[axis], backs[axis])]
    padded = Tensor(call("ggml_pad_ext", "ctx", b.shaped(x, *x.shape),
                         *(sides + [0] * (8 - len(sides)))), result)
    if value == 0:
        return padded
    moved = [bool(f or e) for f, e in zip(fronts, backs, strict=True)]
    inside = tuple(slice(f, f + n) if m else slice(None)
                   for f, n, m in zip(fronts, x.shape, moved, strict=True))
    border = np.full([n if m else 1 for n, m in zip(result, moved, strict=True)], value)
    border[inside] = 0
    constant = b.constant(border, "border")
    return Tensor(call("ggml_add", "ctx", padded, constant.shaped(*border.shape)), result)


def _taken(b: GgmlBuilder, tensor: Tensor, shape: list[int], axis: int,
           places: np.ndarray) -> Tensor:
    """The elements at `places` along `axis`, a constant list of them."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1:])
    rows = b.constant(np.tile(places, (outer, 1)), "places", "i32")
    code = call("ggml_get_rows", "ctx", tensor.shaped(outer, shape[axis], inner),
                rows.shaped(outer, len(places)))
    return Tensor(code, (outer, len(places), inner))


MOVEMENT: dict[str, Lowering] = {
    "reshape": _reshape, "transpose": _transpose, "concat": _concat, "slice": _slice,
    "expand": _expand, "resize": _resize, "gather": _gather, "pad": _pad,
}
INTEGERS = frozenset(MOVEMENT) - {"pad", "resize"} | {"cast", "resample"}
"""Operations that move, make or go by integers; all others compute with floats only."""
