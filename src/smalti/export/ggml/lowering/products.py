"""Sums of products: matrices, windows, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.export.ggml import layout
from smalti.export.ggml.builder import GgmlBuilder, Lowering, NotExportable
from smalti.export.ggml.code import Tensor, braces, call
from smalti.export.ggml.layout import Shape
from smalti.graph import Node, Value


def is_swap(perm: tuple[int, ...]) -> bool:
    """Whether `perm` exchanges the last two axes and leaves all others.

    >>> is_swap((0, 2, 1)), is_swap((1, 2, 0))
    (True, False)
    """
    rank = len(perm)
    return rank > 1 and tuple(perm) == _swap(rank)


def _swap(rank: int) -> tuple[int, ...]:
    return *range(rank - 2), rank - 1, rank - 2


# ---------------------------------------------------------------------- matrices

def _columns_first(b: GgmlBuilder, value: Value) -> Tensor:
    """A second factor [..., k, n] as ggml multiplies by it: [..., n, k]."""
    if value.kind == "parameter" and value.name in b.swapped:
        return Tensor(b.tensor(value).code, value.shape[::-1])
    if value.kind == "constant":
        return b.constant(value.data.swapaxes(-1, -2), "matrix")
    node = value.node
    if node is not None and node.operation.name == "transpose" and is_swap(node.attributes["perm"]):
        return b.tensor(node.inputs[0])
    return b.transposed(b.tensor(value), value.shape, _swap(len(value.shape)))


def _mat_mul(b: GgmlBuilder, node: Node) -> Tensor:
    x, y = node.inputs
    batch, (m, n), k = node.output.shape[:-2], node.output.shape[-2:], x.shape[-1]
    second = _columns_first(b, y)
    if math.prod(y.shape[:-2]) == 1:
        dims = layout.dimensions(x.shape)
        dims = dims if len(dims) > 1 else (m, k)
        return Tensor(call("ops::mul_mat", "ctx", second.shaped(n, k), b.shaped(x, *dims)),
                      (*dims[:-1], n))
    first = b.expanded(b.tensor(x), x.shape, (*batch, m, k))
    second = b.expanded(second, (*y.shape[:-2], n, k), (*batch, n, k))
    count = math.prod(batch)
    return Tensor(call("ops::mul_mat", "ctx", second.shaped(count, n, k),
                       first.shaped(count, m, k)), (count, m, n))


def _resample(b: GgmlBuilder, node: Node) -> Tensor:
    """Along one axis every result is a sum of a few elements: a product with a matrix."""
    x, indices, weights = node.inputs
    if indices.kind != "constant" or weights.kind != "constant":
        raise NotExportable("places and weights are computed; constants are expected")
    rank, axis = len(x.shape), node.attributes["axis"] % len(x.shape)
    extent, count = x.shape[axis], node.output.shape[axis]
    matrix = np.zeros((count, extent), np.float32)
    for places, shares in zip(indices.data.T, weights.data.T, strict=True):
        np.add.at(matrix, (np.arange(count), places % extent), shares)
    order = (*(i for i in range(rank) if i != axis), axis)
    tensor = b.transposed(b.tensor(x), x.shape, order).shaped(x.type.size // extent, extent)
    made = b.let(Tensor(call("ops::mul_mat", "ctx", b.constant(matrix, "matrix"), tensor),
                        (x.type.size // extent, count)), hint="resample")
    shape = (*(x.shape[i] for i in order[:-1]), count)
    return b.transposed(made, shape, tuple(int(i) for i in np.argsort(order)))


# ---------------------------------------------------------------------- windows

@dataclass(frozen=True)
class _Windows:
    """A convolution's shapes and attributes as those of an image; a line is one row of pixels."""

    x: Shape
    kernel: Shape
    result: Shape
    pads: Shape
    strides: Shape
    dilations: Shape

    @staticmethod
    def of(node: Node) -> _Windows:
        """Those of `node`. Raises NotExportable for more than two spatial axes."""
        x, kernel, result = node.inputs[0].shape, node.inputs[1].shape, node.output.shape
        rank = len(x) - 2
        if rank > 2:
            raise NotExportable(f"{rank} spatial axes; 1 to 3 are expected")
        pads, strides, dilations = (
            tuple(node.attributes[name]) for name in ("pads", "strides", "dilations"))
        if rank == 1:
            x, kernel, result = ((*shape[:2], 1, shape[2]) for shape in (x, kernel, result))
            pads, strides, dilations = (0, pads[0], 0, pads[1]), (1, *strides), (1, *dilations)
        return _Windows(x, kernel, result, pads, strides, dilations)


def is_depthwise(node: Node) -> bool:
    """Whether `node` is a convolution of every channel by itself."""
    return node.operation.name == "conv" and node.inputs[1].shape[1] == 1


def _conv(b: GgmlBuilder, node: Node) -> Tensor:
    windows, group = _Windows.of(node), node.attributes["group"]
    x, kernel, *bias = node.inputs
    out = windows.kernel[0]
    first, second = b.shaped(x, *windows.x), b.shaped(kernel, *windows.kernel)
    window = _window(windows.pads, windows.strides, windows.dilations)
    if group == 1:
        code = call("ops::conv_2d", "g", second, first, *window)
    elif is_depthwise(node):
        if out > group:
            (n, c, *size), area = windows.x, math.prod(windows.x[2:])
            first = b.expanded(first, (n * c, 1, area), (n * c, out // c, area)).shaped(
                n, out, *size)
        code = call("ops::conv_2d_depthwise", "g", second, first, *window)
    else:
        code = call("ops::conv_2d_grouped", "g", second, first, group, *window)
    return _with_bias(b, node, Tensor(code, windows.result), bias)


def _with_bias(b: GgmlBuilder, node: Node, result: Tensor, bias: Sequence[Value]) -> Tensor:
    if not bias:
        return result
    result = b.let(result, hint=node.operation.name, shape=node.output.shape)
    column = b.shaped(bias[0], result.dims[1], 1, 1)
    return Tensor(call("ggml_add", "ctx", result, column), result.dims)


def _window(pads: Shape, strides: Shape, dilations: Shape) -> list[str]:
    """The initialiser of ops::Window, without what it has by itself."""
    fields, defaults = [pads, strides, dilations], [(0,) * 4, (1, 1), (1, 1)]
    while fields and fields[-1] == defaults[len(fields) - 1]:
        fields.pop()
    return [braces(map(braces, fields))] if fields else []


def _conv_transpose(b: GgmlBuilder, node: Node) -> Tensor:
    """A convolution of the image with zeros between its pixels, by the windows turned around."""
    windows, group = _Windows.of(node), node.attributes["group"]
    (_, c, *size), (_, depth, *window) = windows.x, windows.kernel
    image = _spaced(b, b.tensor(node.inputs[0]), windows)
    sides: list[tuple[int, int]] = []
    for axis in range(2):
        extent = size[axis] * windows.strides[axis]
        reach = windows.dilations[axis] * (window[axis] - 1)
        front = reach - windows.pads[axis]
        back = windows.result[2 + axis] + reach - extent - front
        sides.append((max(front, 0), max(back, 0)))
        start, end = max(-front, 0), extent - max(-back, 0)
        if (start, end) != (0, extent):
            dims = (*image.dims[:2 + axis], end - start, *image.dims[3 + axis:])
            image = Tensor(call("ops::slice", "ctx", image, 1 - axis, start, end), dims)
    area = math.prod(window)
    rows = b.transposed(b.tensor(node.inputs[1]), (group, c // group, depth, area), (3, 0, 2, 1))
    backwards = b.constant(np.arange(area)[::-1], "backwards", "i32")
    turned = Tensor(call("ggml_get_rows", "ctx", rows.shaped(area, c * depth), backwards),
                    (area, c * depth))
    turned = b.let(b.transposed(turned, (area, c * depth), (1, 0)), hint="turned")
    fields = _window((sides[0][0], sides[1][0], sides[0][1], sides[1][1]), (1, 1),
                     windows.dilations)
    code = call("ops::conv_2d_grouped", "g", turned.shaped(group * depth, c // group, *window),
                image, group, *fields) if group > 1 else \
        call("ops::conv_2d", "g", turned.shaped(depth, c, *window), image, *fields)
    return _with_bias(b, node, Tensor(code, windows.result), node.inputs[2:])


def _spaced(b: GgmlBuilder, x: Tensor, windows: _Windows) -> Tensor:
    """The image with zeros behind each pixel and each row: as many as the steps leave out."""
    (n, c, height, width), (down, right) = windows.x, windows.strides
    if right > 1:
        code = call("ggml_pad", "ctx", x.shaped(n * c * height, width, 1), right - 1, 0, 0, 0)
        x = b.let(Tensor(code, (n * c * height, width, right)), hint="spaced")
    if down > 1:
        code = call("ggml_pad", "ctx", x.shaped(n * c, height, 1, width * right), 0, down - 1, 0, 0)
        x = b.let(Tensor(code, (n * c, height, down, width * right)), hint="spaced")
    return x.shaped(n, c, height * down, width * right)


# ---------------------------------------------------------------------- attention

def _attention(b: GgmlBuilder, node: Node) -> Tensor:
    q, k, v, *given = node.inputs
    heads, scale = node.attributes["num_heads"], node.attributes["scale"]
    (_, t, width), s = q.shape, k.shape[1]
    mask: Tensor | str = "nullptr"
    later = np.where(np.triu(np.ones((t, s), bool), 1), -np.inf, 0)
    if given:
        shape = (*given[0].shape[:2], t, s)
        mask = b.expanded(b.tensor(given[0]), given[0].shape, shape).shaped(*shape)
        if node.attributes["is_causal"]:
            mask = Tensor(call("ggml_add", "ctx", mask, b.constant(later, "causal_mask")), shape)
    elif node.attributes["is_causal"]:
        mask = b.constant(later, "causal_mask")
    factor = 1 / math.sqrt(width // heads) if scale is None else scale
    code = call("ops::attention", "ctx", *(b.shaped(x, *x.shape) for x in (q, k, v)), mask, heads,
                float(factor))
    return Tensor(code, node.output.shape)


PRODUCTS: dict[str, Lowering] = {
    "mat_mul": _mat_mul, "conv": _conv, "conv_transpose": _conv_transpose, "resample": _resample,
    "attention": _attention,
}
