"""Small graphs that become every form of kernel, in the ways in which each is written differently.

Those in `EXPLORED` are small enough that code is made of them under many schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from contraction_graphs import CONVS, PRODUCTS, Conv, linear
from kernel_strategies import image_graph, token_graph
from reduction_graphs import OPERATIONS, reduced

from smalti.graph import Graph

Shape = tuple[int, ...]


def alone(operation: str, *shapes: Shape, dtype: str = "f32", parameters: int = 0,
          **attributes: object) -> Graph:
    """One operation on inputs, or on parameters as the last so many operands."""
    g, given = Graph(operation), []
    for number, shape in enumerate(shapes):
        if number < len(shapes) - parameters:
            given.append(g.input(f"x{number}", shape, dtype))
        else:
            given.append(g.parameter(f"w{number}", shape))
    g.output("y", g.apply(operation, *given, **attributes))
    return g


def product(left: Shape, right: Shape) -> Graph:
    """A matrix product of two inputs."""
    return alone("mat_mul", left, right)


def pointwise() -> Graph:
    """Every pointwise function that images and tokens are given, one after the other."""
    g = Graph("pointwise")
    x, row = g.input("x", (3, 5, 37)), g.parameter("row", (37,))
    for name in ("exp", "sin", "cos", "tanh", "erf", "sqrt", "abs", "sigmoid", "relu", "silu",
                 "gelu", "floor", "neg", "reciprocal", "log"):
        g.output(name, g.apply(name, x) * row + 1.0)
    both = g.apply("max", g.apply("min", x, row), x - row)
    g.output("chosen", g.apply("where", g.apply("less", x, row), both / 3.0, x))
    return g


def depthwise(channels: int, stride: int, size: int = 3) -> Graph:
    """A depthwise convolution between a pointwise function and its bias."""
    g = Graph("depthwise")
    x = g.apply("silu", g.input("x", (2, channels, 11, 14)))
    y = g.apply("conv", x, g.parameter("w", (channels, 1, size, size)), g.parameter(
        "b", (channels,)), strides=(stride, stride), pads=(size // 2,) * 4, group=channels)
    g.output("y", g.apply("relu", y))
    return g


def embedded() -> Graph:
    """Rows of a table by their numbers, normalised."""
    g = Graph("embedded")
    x = g.apply("gather", g.parameter("table", (50, 24)), g.input("ids", (2, 7), "i32"))
    g.output("y", g.apply("layer_normalization", x, g.parameter("s", (24,)),
                          g.parameter("b", (24,))))
    return g


def moved() -> Graph:
    """Transposition, slices, concatenation, repetition: what only moves data."""
    g = Graph("moved")
    x = g.input("x", (2, 6, 33, 40))
    turned = g.apply("transpose", x, perm=(0, 3, 2, 1))
    g.output("turned", turned * 1.0)
    parts = [g.apply("slice", x, axis=3, start=at, end=at + 13) for at in (0, 20)]
    g.output("joined", g.apply("concat", *parts, axis=1))
    g.output("wide", g.apply("resize", x, scales=(1, 1, 2, 2)))
    g.output("repeated", g.apply("expand", g.input("y", (6, 1, 40)), shape=(2, 6, 3, 40)) + 1.0)
    return g


def held_back() -> Graph:
    """Work that depends on weights alone, on a held input, and on all."""
    g = Graph("held")
    w, context = g.parameter("w", (24, 24)), g.input("context", (1, 5, 24))
    weights = g.apply("mat_mul", w, g.parameter("down", (24, 24))) * 0.5
    keys = g.apply("mat_mul", context, weights)
    x = g.input("x", (1, 9, 24))
    g.output("y", g.apply("attention", x, keys, keys, num_heads=2))
    return g


def hosted() -> Graph:
    """An operation that no kernel computes, between two that kernels do."""
    g = Graph("hosted")
    x = g.apply("silu", g.input("x", (3, 4, 4)))
    g.output("y", g.apply("det", x) * 2.0)
    return g


GRAPHS: dict[str, Callable[[], Graph]] = {
    "image": image_graph,
    "tokens": token_graph,
    **{f"conv {number}": case.graph for number, case in enumerate(CONVS)},
    **{f"product {left} {right}": partial(product, left, right) for left, right in PRODUCTS},
    **{f"linear {behind or 'alone'}": partial(linear, (70,), 96, 64, behind)
       for behind in ("", "residual", "normalized", "gathered", "geglu", "embedded")},
    "linear of one row": partial(linear, (1,), 640, 320),
    "linear, straight": partial(linear, (2, 33), 48, 40, "", False),
    **{f"{name} {axes}": partial(reduced, (6, 7, 40), axes, name)
       for name in OPERATIONS for axes in ((2,), (0, 1))},
    "reduction of all": partial(reduced, (3, 4000), (0, 1), "reduce_sum", 0, "silu", "relu"),
    "softmax": partial(alone, "softmax", (3, 77, 77), axis=-1),
    "group normalization": partial(alone, "group_normalization", (2, 32, 12, 10), (32,), (32,),
                                   parameters=2, num_groups=8),
    "layer normalization": partial(alone, "layer_normalization", (2, 9, 320), (320,), (320,),
                                   parameters=2),
    "rms normalization": partial(alone, "rms_normalization", (2, 9, 64), (64,), parameters=1),
    "attention": partial(alone, "attention", (2, 64, 80), (2, 77, 80), (2, 77, 80), num_heads=2),
    "attention, causal": partial(alone, "attention", (1, 77, 64), (1, 77, 64), (1, 77, 64),
                                 num_heads=1, is_causal=1),
    "attention of one head of 512": partial(alone, "attention", (1, 48, 512), (1, 48, 512),
                                            (1, 48, 512), num_heads=1),
    "rotary embedding": partial(alone, "rotary_embedding", (1, 9, 64), (1, 9, 16), (1, 9, 16),
                                num_heads=2),
    **{f"{kind} pool": partial(alone, f"{kind}_pool", (2, 20, 13, 15), kernel_shape=(3, 3),
                               strides=(2, 2), dilations=(1, 1),
                               pads=(1, 1, 1, 1)) for kind in ("max", "average")},
    "depthwise": partial(depthwise, 40, 1),
    "depthwise, by 2": partial(depthwise, 24, 2, 5),
    "conv in groups": partial(alone, "conv", (1, 24, 9, 9), (32, 12, 3, 3), (32,), parameters=2,
                              group=2, pads=(1, 1, 1, 1)),
    "pointwise": pointwise,
    "embedded": embedded,
    "moved": moved,
    "held back": held_back,
    "hosted": hosted,
}

EXPLORED: dict[str, Callable[[], Graph]] = {
    "a convolution": Conv(32, 16, 16, 48, behind="residual").graph,
    "a stem": Conv(3, 24, 24, 16).graph,
    "a convolution of 1x1": Conv(64, 9, 9, 40, (1, 1), pads=(0, 0, 0, 0)).graph,
    "a convolution by 2": Conv(20, 12, 12, 32, strides=(2, 2)).graph,
    "a product": partial(linear, (70,), 96, 64, "residual"),
    "an attention": GRAPHS["attention"],
    "a depthwise convolution": GRAPHS["depthwise"],
    "a softmax": GRAPHS["softmax"],
    "a group normalization": GRAPHS["group normalization"],
}
