"""Each operation of the graph in terms of ggml's; `ops.h` has those that are several of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smalti.export.ggml import layout
from smalti.export.ggml.builder import Builder, Refused, rows, scalar
from smalti.export.ggml.code import Tensor, call
from smalti.export.ggml.layout import Shape
from smalti.graph import Node, Value

Lowering = Callable[[Builder, Node], Tensor]

UNARY = {
    "neg": "ggml_neg", "abs": "ggml_abs", "exp": "ggml_exp", "sin": "ggml_sin", "cos": "ggml_cos",
    "sqrt": "ggml_sqrt", "tanh": "ggml_tanh", "sigmoid": "ggml_sigmoid", "relu": "ggml_relu",
    "silu": "ggml_silu", "gelu": "ggml_gelu_erf", "gelu_tanh": "ops::gelu_tanh",
    "quick_gelu": "ops::quick_gelu", "erf": "ops::erf",
}
BINARY = {"add": "ggml_add", "sub": "ggml_sub", "mul": "ggml_mul", "div": "ggml_div"}
EXTREMES = {"max": "ops::max", "min": "ops::min"}
REDUCTIONS = {"reduce_sum": "ggml_sum_rows", "reduce_mean": "ggml_mean",
              "reduce_max": "ops::max_rows"}


# ---------------------------------------------------------------------- element by element

def _unary(b: Builder, node: Node) -> Tensor:
    x = b.tensor(node.inputs[0])
    return Tensor(call(UNARY[node.operation.name], "ctx", x), x.dims)


def _binary(b: Builder, node: Node) -> Tensor:
    x, y = node.inputs
    name, result = node.operation.name, node.output.shape
    by_number = _with_number(b, name, x, y)
    if by_number is not None:
        return by_number
    full = [math.prod(value.shape) == math.prod(result) for value in (x, y)]
    if node.operation.commutative and not full[0] and full[1]:
        x, y = y, x
    first, second = b.tensor(x), b.tensor(y)
    shapes = layout.aligned([x.shape, y.shape], result)
    if shapes is None:
        first, second = b.expanded(first, x.shape, result), b.expanded(second, y.shape, result)
        shapes = [first.dims, first.dims, first.dims]
    elif math.prod(shapes[0]) != math.prod(result):
        first = b.expanded(first, x.shape, result)
        shapes[0] = shapes[2]
    code = call(BINARY[name], "ctx", first.shaped(*shapes[0]), second.shaped(*shapes[1]))
    return Tensor(code, shapes[2])


def _with_number(b: Builder, name: str, x: Value, y: Value) -> Tensor | None:
    """The result where one operand is a constant of one element, as far as ggml can scale by it."""
    left, right = scalar(x), scalar(y)
    if right is not None:
        factor, offset = {"add": (1.0, right), "sub": (1.0, -right), "mul": (right, 0.0),
                          "div": (1 / right if right else math.inf, 0.0)}[name]
        operand = b.tensor(x)
    elif left is not None and name != "div":
        factor, offset = {"add": (1.0, left), "sub": (-1.0, left), "mul": (left, 0.0)}[name]
        operand = b.tensor(y)
    else:
        return None
    if not math.isfinite(factor) or not math.isfinite(offset):
        return None
    if offset == 0:
        return Tensor(call("ggml_scale", "ctx", operand, factor), operand.dims)
    return Tensor(call("ggml_scale_bias", "ctx", operand, factor, offset), operand.dims)


def _reciprocal(b: Builder, node: Node) -> Tensor:
    x = b.tensor(node.inputs[0])
    ones = Tensor(call("ggml_repeat", "ctx", b.constant(np.ones(1), "one"), x), x.dims)
    return Tensor(call("ggml_div", "ctx", ones, x), x.dims)


def _extreme(b: Builder, node: Node) -> Tensor:
    x, y = node.inputs
    if scalar(x) is not None:
        x, y = y, x
    limit = scalar(y)
    if limit is not None:
        low, high = (limit, math.inf) if node.operation.name == "max" else (-math.inf, limit)
        operand = b.tensor(x)
        return Tensor(call("ops::clamp", "ctx", operand, low, high), operand.dims)
    result = node.output.shape
    first, second = (b.let(b.expanded(b.tensor(v), v.shape, result)).shaped(
        *layout.dimensions(result)) for v in (x, y))
    return Tensor(call(EXTREMES[node.operation.name], "ctx", first, second), first.dims)


def _cast(b: Builder, node: Node) -> Tensor:
    x, to = b.tensor(node.inputs[0]), node.output
    if x.dtype == "f32" and to.dtype == "bool":
        return Tensor(call("ggml_abs", "ctx", Tensor(call("ggml_sgn", "ctx", x), x.dims)), x.dims)
    kind = "f32" if to.dtype in ("f32", "f16", "bf16", "bool") else "i32"
    if kind == x.dtype:
        return x
    return Tensor(call("ggml_cast", "ctx", x, f"GGML_TYPE_{kind.upper()}"), x.dims, kind)


# ---------------------------------------------------------------------- sums of products

def is_swap(perm: tuple[int, ...]) -> bool:
    """Whether `perm` exchanges the last two axes and leaves all others.

    >>> is_swap((0, 2, 1)), is_swap((1, 2, 0))
    (True, False)
    """
    rank = len(perm)
    return rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)


def _columns_first(b: Builder, value: Value) -> Tensor:
    """A second factor [..., k, n] as ggml multiplies by it: [..., n, k]."""
    shape = (*value.shape[:-2], value.shape[-1], value.shape[-2])
    if value.kind == "parameter" and value.name in b.swapped:
        return Tensor(b.tensor(value).code, shape)
    if value.kind == "constant":
        return b.constant(value.data.swapaxes(-1, -2), "matrix")
    node = value.node
    if node is not None and node.operation.name == "transpose" and is_swap(node.attributes["perm"]):
        return Tensor(b.tensor(node.inputs[0]).code, b.tensor(node.inputs[0]).dims)
    rank = len(shape)
    return b.transposed(b.tensor(value), value.shape, (*range(rank - 2), rank - 1, rank - 2))


def _mat_mul(b: Builder, node: Node) -> Tensor:
    x, y = node.inputs
    result = node.output.shape
    batch, (m, n), k = result[:-2], result[-2:], x.shape[-1]
    second = _columns_first(b, y)
    if math.prod(y.shape[:-2]) == 1:
        dims = layout.dimensions(x.shape)
        return Tensor(call("ops::mul_mat", "ctx", second.shaped(n, k), b.shaped(x, *dims)),
                      (*dims[:-1], n) if len(dims) > 1 else (m, n))
    first = b.tensor(x)
    if x.shape[:-2] != batch:
        first = b.expanded(first, x.shape, (*batch, m, k))
    count = math.prod(batch)
    if y.shape[:-2] != batch:
        second = b.expanded(second.shaped(*layout.dimensions((*y.shape[:-2], n, k))),
                            (*y.shape[:-2], n, k), (*batch, n, k))
    return Tensor(call("ops::mul_mat", "ctx", second.shaped(count, n, k),
                       first.shaped(count, m, k)), (count, m, n))


def _conv(b: Builder, node: Node) -> Tensor:
    x, kernel, *bias = node.inputs
    if len(x.shape) not in (3, 4):
        raise Refused(f"{len(x.shape) - 2} spatial axes; 1 or 2 are expected")
    line = len(x.shape) == 3
    attributes = {name: tuple(node.attributes[name]) for name in ("strides", "pads", "dilations")}
    if line:
        (left, right) = attributes["pads"]
        attributes = {"pads": (0, left, 0, right), "strides": (1, *attributes["strides"]),
                      "dilations": (1, *attributes["dilations"])}

    def image(shape: Shape) -> Shape:
        return (*shape[:2], 1, shape[2]) if line else shape

    group, (out, depth) = node.attributes["group"], kernel.shape[:2]
    first, second = b.shaped(x, *image(x.shape)), b.shaped(kernel, *image(kernel.shape))
    window = _window(**attributes)
    if group == 1:
        code = call("ops::conv_2d", "g", second, first, *window)
    elif depth == 1 and out % group == 0:
        if out > group:
            n, c, *size = image(x.shape)
            many = b.expanded(first, (n * c, 1, math.prod(size)), (n * c, out // c, math.prod(size)))
            first = many.shaped(n, out, *size)
        code = call("ops::conv_2d_depthwise", "g", second, first, *window)
    else:
        code = call("ops::conv_2d_grouped", "g", second, first, group, *window)
    result = Tensor(code, image(node.output.shape))
    if not bias:
        return result
    result = b.let(result, hint=node.operation.name, shape=node.output.shape)
    return Tensor(call("ggml_add", "ctx", result, b.shaped(bias[0], out, 1, 1)), result.dims)


def _window(strides: Shape, pads: Shape, dilations: Shape) -> list[str]:
    """The initialiser of ops::Window, without what it has by itself."""
    fields, defaults = [pads, strides, dilations], [(0,) * 4, (1, 1), (1, 1)]
    while fields and fields[-1] == defaults[len(fields) - 1]:
        fields.pop()
    texts = ["{%s}" % ", ".join(map(str, field)) for field in fields]
    return ["{%s}" % ", ".join(texts)] if texts else []


def _attention(b: Builder, node: Node) -> Tensor:
    q, k, v = node.inputs[:3]
    heads, scale = node.attributes["num_heads"], node.attributes["scale"]
    (batch, t, width), s = q.shape, k.shape[1]
    mask: Tensor | str = "nullptr"
    if node.attributes["is_causal"]:
        later = np.triu(np.ones((t, s), bool), 1)
        mask = b.constant(np.where(later, -np.inf, 0), "causal_mask")
    factor = 1 / math.sqrt(width // heads) if scale is None else scale
    code = call("ops::attention", "ctx", *(b.shaped(x, *x.shape) for x in (q, k, v)), mask, heads,
                float(factor))
    return Tensor(code, (batch, t, v.shape[2]))


def _rotary_embedding(b: Builder, node: Node) -> Tensor:
    x, cos, sin = node.inputs
    heads = node.attributes["num_heads"]
    n, tokens, half = cos.shape
    dims = (*x.shape[:2], heads, 2 * half) if heads else x.shape
    table = (n, tokens, 1, half) if heads else (n, 1, tokens, half)
    code = call("ops::rotary_embedding", "ctx", b.shaped(x, *dims), b.shaped(cos, *table),
                b.shaped(sin, *table), bool(node.attributes["interleaved"]))
    return Tensor(code, dims)


# ---------------------------------------------------------------------- reductions and norms

def _reduce(b: Builder, node: Node) -> Tensor:
    (x,) = node.inputs
    rank = len(x.shape)
    axes = sorted(axis % rank for axis in node.attributes["axes"])
    kept = [axis for axis in range(rank) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in axes)
    tensor = b.transposed(b.tensor(x), x.shape, (*kept, *axes))
    lines = x.type.size // count
    code = call(REDUCTIONS[node.operation.name], "ctx", tensor.shaped(lines, count))
    return Tensor(code, (lines, 1))


def _softmax(b: Builder, node: Node) -> Tensor:
    (x,) = node.inputs
    rank = len(x.shape)
    axis = node.attributes["axis"] % rank
    if axis == rank - 1:
        tensor = b.shaped(x)
        return Tensor(call("ggml_soft_max", "ctx", tensor), tensor.dims)
    order = (*(i for i in range(rank) if i != axis), axis)
    shape = tuple(x.shape[i] for i in order)
    tensor = b.transposed(b.tensor(x), x.shape, order).shaped(*layout.dimensions(shape))
    shares = b.let(Tensor(call("ggml_soft_max", "ctx", tensor), tensor.dims), hint="softmax")
    return b.transposed(shares, shape, tuple(int(i) for i in np.argsort(order)))


def _row_norm(b: Builder, node: Node) -> Tensor:
    """Layer and RMS normalisation."""
    x, *weights = node.inputs
    axis = node.attributes["axis"] % len(x.shape)
    dims = rows(x.shape, axis)
    if axis == len(x.shape) - 1:
        dims = layout.dimensions(x.shape)
    function = {"layer_normalization": "ops::layer_norm", "rms_normalization": "ops::rms_norm"}
    code = call(function[node.operation.name], "ctx", b.shaped(x, *dims),
                *(b.shaped(w, dims[-1]) for w in weights), float(node.attributes["epsilon"]))
    return Tensor(code, dims)


def _group_normalization(b: Builder, node: Node) -> Tensor:
    x, scale, bias = node.inputs
    n, c, *size = x.shape
    dims = (n, c, *rows(tuple(size), len(size) - 1))
    code = call("ops::group_norm", "ctx", b.shaped(x, *dims), b.tensor(scale), b.tensor(bias),
                node.attributes["num_groups"], float(node.attributes["epsilon"]))
    return Tensor(code, dims)


# ---------------------------------------------------------------------- movement

def _reshape(b: Builder, node: Node) -> Tensor:
    return b.tensor(node.inputs[0])


def _transpose(b: Builder, node: Node) -> Tensor:
    (x,) = node.inputs
    return b.transposed(b.tensor(x), x.shape, node.attributes["perm"])


def _around(shape: Shape, axis: int) -> Shape:
    """`shape` with the axes in front of `axis`, and those behind it, as one where need be."""
    if len(shape) <= layout.RANK_MAX:
        return shape
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])


def _concat(b: Builder, node: Node) -> Tensor:
    rank = len(node.output.shape)
    axis = node.attributes["axis"] % rank
    dims = _around(node.output.shape, axis)
    parts = [b.shaped(x, *_around(x.shape, axis)) for x in node.inputs]
    if len(parts) == 1:
        return parts[0]
    dim = len(dims) - 1 - (axis if len(dims) == rank else 1)
    if len(parts) == 2:
        return Tensor(call("ggml_concat", "ctx", *parts, dim), dims, parts[0].dtype)
    listed = call("", *parts)[1:-1]
    return Tensor(("ops::concat(ctx, {", *listed, "}", f", {dim})"), dims, parts[0].dtype)


def _slice(b: Builder, node: Node) -> Tensor:
    (x,), axis = node.inputs, node.attributes["axis"]
    start, end = node.attributes["start"], node.attributes["end"]
    before, after = _around(x.shape, axis), _around(node.output.shape, axis)
    tensor = b.shaped(x, *before)
    dim = len(before) - 1 - (axis if len(before) == len(x.shape) else 1)
    return Tensor(call("ops::slice", "ctx", tensor, dim, start, end), after, tensor.dtype)


def _expand(b: Builder, node: Node) -> Tensor:
    (x,) = node.inputs
    return b.expanded(b.tensor(x), x.shape, node.output.shape)


def _resize(b: Builder, node: Node) -> Tensor:
    (x,), result = node.inputs, node.output.shape
    if len(result) <= layout.RANK_MAX:
        inner = [*result[::-1], 1, 1, 1][:4]
        return Tensor(call("ggml_interpolate", "ctx", b.shaped(x, *x.shape), *inner,
                           "GGML_SCALE_MODE_NEAREST"), result)
    tensor, now = b.tensor(x), list(x.shape)
    for axis, scale in enumerate(node.attributes["scales"]):
        outer, inner_size = math.prod(now[:axis + 1]), math.prod(now[axis + 1:])
        tensor = b.expanded(tensor, (outer, 1, inner_size), (outer, int(scale), inner_size))
        now[axis] *= int(scale)
    return tensor


def _gather(b: Builder, node: Node) -> Tensor:
    table, indices = node.inputs
    count, width = indices.type.size, table.shape[1]
    code = call("ggml_get_rows", "ctx", b.shaped(table, *table.shape), b.shaped(indices, count))
    return Tensor(code, (count, width))


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(EXTREMES, _extreme),
    **dict.fromkeys(REDUCTIONS, _reduce),
    "reciprocal": _reciprocal, "cast": _cast, "mat_mul": _mat_mul, "conv": _conv,
    "attention": _attention, "rotary_embedding": _rotary_embedding, "softmax": _softmax,
    "layer_normalization": _row_norm, "rms_normalization": _row_norm,
    "group_normalization": _group_normalization, "reshape": _reshape, "transpose": _transpose,
    "concat": _concat, "slice": _slice, "expand": _expand, "resize": _resize, "gather": _gather,
}
INTEGERS = {"reshape", "transpose", "concat", "slice", "expand", "gather", "cast"}
"""Operations that take integers; all others compute with floats."""
