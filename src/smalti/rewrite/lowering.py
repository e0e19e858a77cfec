"""Rules that write operations which no kernel computes with operations that kernels do compute.

`LOWERINGS` hold for every target. The others depend on the target: `lowering(computes)` asks
`computes(node)` whether its kernels compute a node as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from smalti.graph import OPERATIONS, Graph, Node, Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operations.indexing import wrapped
from smalti.rewrite import integers
from smalti.rewrite.liveness import remove_dead_nodes
from smalti.rewrite.recurrent import unrolled
from smalti.rewrite.rules import Made, Procedure, Rule, apply_rules

Computes = Callable[[Node], bool]


def in_a_row(value: Value, made: Made) -> Value | None:
    """A convolution of an image that is one column wide, as one of an image of a single row.

    Kernels run along rows, so a column would give them one pixel at a time.

    >>> g = Graph()
    >>> x, w = g.input("x", (1, 8, 16, 1)), g.parameter("w", (4, 8, 3, 1))
    >>> in_a_row(g.apply("conv", x, w), lambda value: value).node.inputs
    (<result of conv f32[1, 4, 1, 14]>,)
    """
    (x, w, *bias), a = value.node.inputs, value.node.attributes
    if len(x.shape) != 4 or not x.shape[3] == value.shape[3] == w.shape[3] == 1 < x.shape[2]:
        return None

    def turned(image: Value) -> Value:
        return made(image.reshape(*image.shape[:2], 1, image.shape[2]))

    top, left, bottom, right = a["pads"]
    row = made(value.graph.apply(
        "conv", turned(x), turned(w), *bias, strides=a["strides"][::-1], group=a["group"],
        dilations=a["dilations"][::-1], pads=(left, top, right, bottom)))
    return made(row.reshape(*value.shape))


LOWERINGS = (
    Procedure(("conv",), in_a_row),
    Rule("softmax(x, axis=k)",
         "exp(x - reduce_max(x, axes=a)) / reduce_sum(exp(x - reduce_max(x, axes=a)), axes=a)",
         derive=lambda bound: {"a": (bound["k"],)}, example={"k": 1}),
)


# ---------------------------------------------------------------------- for a target


def lowering(computes: Computes) -> Procedure:
    """The rule that replaces an f32 or bool operation for which `computes` is False: by its entry
    in `WAYS` if it has one, else by the decomposition in its record."""
    def applied(value: Value, made: Made) -> Value | None:
        node = value.node
        name = node.operation.name
        known = value.dtype in ("f32", "bool") or name == "cast" or name in integers.WAYS
        if computes(node) or not known or not value.type.size:
            return None
        if node.operation.name in WAYS:
            return WAYS[node.operation.name](value.graph, node, *node.inputs)
        if node.operation.decompose is None or value.dtype != "f32":
            return None
        return node.operation.decompose(value.graph, *node.inputs, **node.attributes)

    return Procedure(tuple(OPERATIONS), applied)


def _cast(g: Graph, node: Node, x: Value) -> Value | None:
    """Casts between bool and f32, and from bool to integers by way of f32; None for others."""
    kinds = (x.dtype, node.output.dtype)
    if kinds == ("bool", "f32"):
        return g.apply("where", x, g.constant(1.0), g.constant(0.0))
    if x.dtype == "bool" and node.output.dtype in ("u8", "i8", "i32"):
        return g.apply("cast", g.apply("cast", x, to="f32"), to=node.output.dtype)
    if kinds == ("f32", "bool"):
        return g.apply("not", g.apply("equal", x, g.constant(0.0)))
    return None


def padded(g: Graph, x: Value, axis: int, before: int, behind: int, number: float) -> Value:
    """`x` padded along `axis`: `before` copies of `number` in front, `behind` after."""
    def numbers(count: int) -> list[Value]:
        shape = tuple(count if k == axis else n for k, n in enumerate(x.shape))
        return [g.apply("expand", g.constant(number), shape=shape)] if count else []

    parts = [*numbers(before), x, *numbers(behind)]
    return x if len(parts) == 1 else g.apply("concat", *parts, axis=axis)


SLICES_MAX = 8
"""Up to so many elements along an axis are each taken by a slice; more by one gather."""


def _pad(g: Graph, node: Node, x: Value) -> Value | None:
    """A pad as concats, axis by axis; None where pads are negative, which crops."""
    a, rank = node.attributes, len(x.shape)
    pads, mode = a["pads"], a["mode"]
    if x.dtype != "f32" or min(pads, default=0) < 0:
        return None
    for axis in range(rank):
        around = pads[axis], pads[rank + axis]
        if mode == "constant":
            x = padded(g, x, axis, *around, a["value"])
        elif any(around):
            places = np.pad(np.arange(x.shape[axis]), around, mode=mode)
            front, behind = np.split(places, [around[0], around[0] + x.shape[axis]])[::2]
            x = g.apply("concat", *taken(g, x, axis, front), x, *taken(g, x, axis, behind),
                        axis=axis)
    return x


def taken(g: Graph, x: Value, axis: int, places: np.ndarray) -> list[Value]:
    """The elements of `x` at `places` along `axis`, as values that are to be joined there."""
    if len(places) <= SLICES_MAX:
        return [g.apply("slice", x, axis=axis, start=int(i), end=int(i) + 1) for i in places]
    order = [axis, *(k for k in range(len(x.shape)) if k != axis)]
    turned = x.transpose(*order)
    table = turned.reshape(x.shape[axis], x.type.size // x.shape[axis])
    rows = g.apply("gather", table, g.constant(places.astype(np.int32)))
    back = [order.index(k) for k in range(len(order))]
    return [rows.reshape(len(places), *turned.shape[1:]).transpose(*back)]


def _resample(g: Graph, node: Node, x: Value, indices: Value, weights: Value) -> Value | None:
    """y[i] = sum over t of weights[i, t] * x[indices[i, t]] with a gather for each tap t.

    x is made a matrix whose rows are gathered: for an image, the channels of a pixel are a row.
    None where indices or weights are not constant, or their table would be too large.
    """
    rank, axis = len(x.shape), node.attributes["axis"] % len(x.shape)
    if x.dtype != "f32" or not indices.kind == weights.kind == "constant":
        return None
    order = (0, 2, 3, 1) if rank == 4 else tuple(range(rank))
    turned = x.transpose(*order)
    at = order.index(axis)
    outer, inner = math.prod(turned.shape[:at]), math.prod(turned.shape[at + 1:])
    extent, (after, taps) = x.shape[axis], indices.shape
    if outer * after > CONSTANT_ELEMENTS_MAX:
        return None
    table = turned.reshape(outer * extent, inner)
    first = np.arange(outer)[:, None] * extent
    parts = []
    for t in range(taps):
        places = first + wrapped(indices.data[:, t], extent)
        rows = g.apply("gather", table, g.constant(places.astype(np.int32)))
        parts.append(rows * g.constant(weights.data[:, t].reshape(after, 1)))
    total = reduce(lambda left, right: left + right, parts)
    whole = total.reshape(*turned.shape[:at], after, *turned.shape[at + 1:])
    return whole.transpose(*(order.index(k) for k in range(rank)))


def _reduce_min(g: Graph, node: Node, x: Value) -> Value | None:
    """min(x) = -max(-x)."""
    if x.dtype != "f32" or not node.attributes["axes"]:
        return None
    return g.apply("neg", g.apply("reduce_max", g.apply("neg", x), **node.attributes))


def _mat_mul(g: Graph, node: Node, a: Value, b: Value) -> Value | None:
    """A product of matrices along three or more batch axes, with these joined to a single one."""
    outer = node.output.shape[:-2]
    if len(outer) < 3:
        return None

    def flat(x: Value) -> Value:
        if math.prod(x.shape[:-2]) == 1:
            return x.reshape(1, *x.shape[-2:])
        whole = g.apply("expand", x, shape=(*outer, *x.shape[-2:]))
        return whole.reshape(math.prod(outer), *x.shape[-2:])

    return g.apply("mat_mul", flat(a), flat(b)).reshape(*node.output.shape)


def _pool(g: Graph, node: Node, x: Value) -> Value | None:
    """Pooling of a line or of a volume with poolings of images.

    A line is an image of one row. A volume is pooled over its last two axes first, then over the
    first one.
    """
    a, rank = node.attributes, len(x.shape) - 2
    if x.dtype != "f32" or rank not in (1, 3):
        return None

    def pooled(image: Value, axes: tuple[int | None, int | None]) -> Value:
        def pick(name: str, none: int, offset: int = 0) -> tuple[int, ...]:
            return tuple(none if k is None else a[name][k + offset] for k in axes)

        more = {name: a[name] for name in ("ceil_mode", "count_include_pad") if name in a}
        return g.apply(node.operation.name, image, kernel_shape=pick("kernel_shape", 1),
                       strides=pick("strides", 1), dilations=pick("dilations", 1),
                       pads=pick("pads", 0) + pick("pads", 0, rank), **more)

    n, c, *extents = x.shape
    if rank == 1:
        return pooled(x.reshape(n, c, 1, *extents), (None, 0)).reshape(*node.output.shape)
    flat = pooled(x.reshape(n, c * extents[0], *extents[1:]), (1, 2))
    lines = flat.reshape(n, c, extents[0], flat.shape[2] * flat.shape[3])
    return pooled(lines, (0, None)).reshape(*node.output.shape)


def _conv(g: Graph, node: Node, x: Value, w: Value, *bias: Value) -> Value | None:
    """A convolution of a line as one of an image of one row; of a volume: see `_conv_of_blocks`."""
    a = node.attributes
    if len(x.shape) == 5 and x.dtype == "f32":
        return _conv_of_blocks(g, node, x, w, *bias)
    if len(x.shape) != 3 or x.dtype != "f32":
        return None
    (n, c, extent), (o, each, taps) = x.shape, w.shape
    y = g.apply("conv", x.reshape(n, c, 1, extent), w.reshape(o, each, 1, taps), *bias,
                strides=(1, *a["strides"]), dilations=(1, *a["dilations"]), group=a["group"],
                pads=(0, a["pads"][0], 0, a["pads"][1]))
    return y.reshape(*node.output.shape)


def _conv_of_blocks(g: Graph, node: Node, x: Value, w: Value, *bias: Value) -> Value:
    """A convolution of a volume [n, c, depth, h, w] as one of images.

    Each layer of the result (each index along depth) is an image of its own; the layers of the
    input that its window reads become channels of that image.
    """
    a, (n, c, _, *image), (o, each, layers, *window) = node.attributes, x.shape, w.shape
    made, step = node.output.shape[2], a["strides"][0]
    last = (layers - 1) * a["dilations"][0] + made * step
    x = padded(g, x, 2, a["pads"][0], max(0, last - a["pads"][0] - x.shape[2]), 0.0)
    parts = []
    for layer in range(layers):
        first = layer * a["dilations"][0]
        part = g.apply("slice", x, axis=2, start=first, end=first + made * step)
        part = g.apply("slice", part.reshape(n, c, made, step, *image), axis=3, start=0, end=1)
        parts.append(part.reshape(n, c, 1, made, *image))
    read = g.apply("concat", *parts, axis=2).transpose(0, 3, 1, 2, 4, 5)
    images = read.reshape(n * made, c * layers, *image)
    y = g.apply("conv", images, w.reshape(o, each * layers, *window), *bias,
                strides=a["strides"][1:], dilations=a["dilations"][1:], group=a["group"],
                pads=(*a["pads"][1:3], *a["pads"][4:]))
    return y.reshape(n, made, o, *y.shape[2:]).transpose(0, 2, 1, 3, 4)


def _conv_transpose(g: Graph, node: Node, x: Value, w: Value, *bias: Value) -> Value | None:
    """A transposed convolution as one matrix product, whose results are shifted and added up.

    The product gives what each input element contributes to every tap of the kernel. Along an axis
    tap t = a * stride + b of input element i goes to output i * stride + t = (i + a) * stride + b:
    for each a, the contributions of all elements tile the output without overlap, shifted by a
    blocks of `stride`. These shifted tilings are padded to the same size and added.
    """
    a, rank = node.attributes, len(x.shape) - 2
    (n, c, *extents), (_, o, *kernel), strides = x.shape, w.shape, a["strides"]
    if a["group"] != 1 or any(d != 1 for d in a["dilations"]) or x.dtype != "f32":
        return None
    counts = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    for k, (count, s) in enumerate(zip(counts, strides, strict=True)):
        w = padded(g, w, k + 2, 0, count * s - w.shape[k + 2], 0.0)
    pixels = x.reshape(n, c, math.prod(extents)).transpose(0, 2, 1)
    blocks = g.apply("mat_mul", pixels, w.reshape(c, math.prod(w.shape[1:])))
    blocks = blocks.reshape(n, *extents, o, *itertools.chain(*zip(counts, strides, strict=True)))
    parts = []
    for place in itertools.product(*map(range, counts)):
        part = blocks
        for k, at in enumerate(place):
            part = g.apply("slice", part, axis=rank + 2 + 2 * k, start=at, end=at + 1)
        part = part.reshape(n, *extents, o, *strides).transpose(
            0, rank + 1, *itertools.chain(*((1 + k, rank + 2 + k) for k in range(rank))))
        part = part.reshape(n, o, *(e * s for e, s in zip(extents, strides, strict=True)))
        for k, (at, count, s) in enumerate(zip(place, counts, strides, strict=True)):
            part = padded(g, part, k + 2, at * s, (count - 1 - at) * s, 0.0)
        parts.append(part)
    total = reduce(lambda left, right: left + right, parts)
    for k, (first, extent) in enumerate(zip(a["pads"], node.output.shape[2:], strict=False)):
        total = padded(g, total, k + 2, 0, max(0, first + extent - total.shape[k + 2]), 0.0)
        total = g.apply("slice", total, axis=k + 2, start=first, end=first + extent)
    return total + bias[0].reshape(o, *(1,) * rank) if bias else total


WAYS: dict[str, Callable[..., Value | None]] = {
    "cast": _cast, "pad": _pad, "reduce_min": _reduce_min, "mat_mul": _mat_mul,
    "average_pool": _pool, "max_pool": _pool, "conv": _conv,
    "conv_transpose": _conv_transpose, "resample": _resample,
    **integers.WAYS, **dict.fromkeys(("rnn", "gru", "lstm"), unrolled),
}


def lowered(graph: Graph, computes: Computes) -> Graph:
    """`graph` with operations that no kernel computes replaced, repeatedly, where there is a way.

    >>> g = Graph()
    >>> g.output("y", g.apply("reduce_min", g.input("x", (2, 3)), axes=(1,)))
    >>> parts = lowered(g, lambda node: node.operation.name != "reduce_min").nodes
    >>> [node.operation.name for node in parts]
    ['neg', 'reduce_max', 'neg']
    """
    rules = (*LOWERINGS, lowering(computes))
    while not all(map(computes, graph.nodes)):
        result = remove_dead_nodes(apply_rules(graph, rules))
        if [node.operation for node in result.nodes] == [node.operation for node in graph.nodes]:
            break
        graph = result
    return graph
