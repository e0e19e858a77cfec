"""Small graphs that become kernels of every form, in the ways in which each is written differently.

They are what a new target is tried with (`check.py`), so each is small enough for an interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from smalti.graph import Graph, Value

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


def convolution(channels: int, side: int, out: int, window: int = 3, stride: int = 1,
                before: str = "", residual: bool = False) -> Graph:
    """A convolution behind a function or an enlargement, in front of a sum and a function."""
    g = Graph("convolution")
    x = g.input("x", (1, channels, side, side))
    if before == "resize":
        x = g.apply("resize", x, scales=(1, 1, 2, 2))
    elif before:
        x = g.apply(before, x)
    y = g.apply("conv", x, g.parameter("w", (out, channels, window, window)),
                g.parameter("b", (out,)), strides=(stride, stride), pads=(window // 2,) * 4)
    g.output("y", g.apply("silu", y + g.input("r", y.shape)) if residual else y)
    return g


def product(rows: Shape, channels: int, out: int, before: str = "", behind: str = "") -> Graph:
    """Rows times a weight and a bias, behind a normalisation, in front of a gate or a sum."""
    g = Graph("product")
    x = g.input("x", (*rows, channels))
    if before:
        x = g.apply("layer_normalization", x, g.parameter("s", (channels,)),
                    g.parameter("h", (channels,)))
    y = g.apply("mat_mul", x, g.parameter("w", (out, channels)).transpose(1, 0))
    y = y + g.parameter("b", (out,))
    if behind == "geglu":
        half = out // 2
        y, gate = (g.apply("slice", y, axis=len(rows), start=at, end=at + half) for at in (0, half))
        y = y * g.apply("gelu", gate)
    elif behind == "residual":
        y = g.apply("gelu", y) + g.input("r", y.shape)
    g.output("y", y)
    return g


def normalised(kind: str, shape: Shape, channels: int, **attributes: int) -> Graph:
    """A normalisation, whose statistics are a kernel of their own."""
    g = Graph(kind)
    names = "s" if kind == "rms_normalization" else "sb"
    parameters = [g.parameter(name, (channels,)) for name in names]
    g.output("y", g.apply(kind, g.input("x", shape), *parameters, **attributes))
    return g


def depthwise(channels: int, behind: bool, size: int = 3, stride: int = 1) -> Graph:
    """A depthwise convolution, and what may be fused behind it."""
    g = Graph("depthwise")
    y = g.apply("conv", g.input("x", (2, channels, 9, 11)),
                g.parameter("w", (channels, 1, size, size)), g.parameter("b", (channels,)),
                strides=(stride, stride), pads=(size // 2,) * 4, group=channels)
    g.output("y", g.apply("silu", y + g.input("r", y.shape)) if behind else y)
    return g


def written(build: Callable[[Graph], Value]) -> Graph:
    """A graph of what `build` gives."""
    g = Graph("written")
    g.output("y", build(g))
    return g


def table(rows: int = 9) -> Graph:
    """Rows of a table that is a parameter, by their numbers."""
    g = Graph("table")
    g.output("y", g.apply("gather", g.parameter("t", (rows, 20)), g.input("i", (5,), "i32")))
    return g



SAMPLES: dict[str, Callable[[], Graph]] = {
    "convolution": partial(convolution, 20, 10, 33, residual=True),
    "convolution of few channels": partial(convolution, 3, 13, 16),
    "convolution by 2": partial(convolution, 16, 12, 24, stride=2, before="silu"),
    "convolution behind an enlargement": partial(convolution, 16, 6, 20, before="resize"),
    "convolution of 1 x 1": partial(convolution, 36, 9, 40, 1),
    "wide convolution": partial(convolution, 64, 16, 64),
    "product": partial(product, (37,), 70, 45, behind="residual"),
    "product of one row": partial(product, (1,), 128, 96),
    "product of normalised rows": partial(product, (2, 17), 48, 64, "layer", "geglu"),
    "product with a straight weight": lambda: written(lambda g: g.apply("mat_mul", g.input(
        "x", (2, 33, 48)), g.parameter("w", (48, 40)))),
    "product of inputs": partial(alone, "mat_mul", (3, 5, 7), (3, 7, 9)),
    "product of integers": lambda: written(lambda g: g.apply("cast", g.apply(
        "mat_mul_integer", g.input("x", (37, 70), "u8"), g.parameter("w", (70, 45), "i8"),
        g.constant(1, "u8"), g.constant(0, "i8")), to="f32") * 2.0 ** -12
        * g.parameter("s", (45,))),
    "product of bytes": lambda: written(lambda g: g.apply("cast", g.apply(
        "mat_mul_integer", g.input("x", (37, 72), "u8"), g.parameter("w", (72, 48), "i8"),
        g.constant(1, "u8"), g.constant(0, "i8")), to="f32") * 2.0 ** -12
        * g.parameter("s", (48,))),
    "product of rounded weights": lambda: written(lambda g: g.apply("mat_mul_rounded", g.input(
        "x", (37, 70), "u8"), g.parameter("w", (70, 45)), g.constant(1, "u8")) * g.parameter(
            "s", (45,))),
    "product of rounded weights in pairs": lambda: written(lambda g: g.apply(
        "mat_mul_rounded", g.input("x", (37, 70), "u8"), g.parameter("w", (70, 45)),
        g.constant(128, "u8"), paired=1)),
    "product of rounded words": lambda: written(lambda g: g.apply(
        "mat_mul_rounded", g.input("x", (37, 70), "i16"), g.parameter("w", (70, 45)),
        g.constant(0, "i16")) * 2.0),
    "pointwise": lambda: written(lambda g: g.apply("gelu", g.input("x", (3, 70)) * g.parameter(
        "s", (70,)))),
    "wide pointwise": lambda: written(lambda g: g.apply("silu", g.input(
        "x", (130, 256))) + g.parameter("b", (256,))),
    "transposition": lambda: written(
        lambda g: g.input("x", (5, 7, 12)).transpose(2, 0, 1) * 2.0),
    "across": lambda: written(lambda g: g.input("x", (2, 40, 36)).transpose(0, 2, 1) + g.input(
        "y", (36, 40))),
    "enlargement": lambda: written(lambda g: g.apply("resize", g.input(
        "x", (1, 8, 3, 4)), scales=(1, 1, 2, 2)) + 1.0),
    "rows of a table": table,
    "concatenation": lambda: written(lambda g: g.apply("concat", g.input("x", (3, 9)), g.input(
        "y", (3, 4)), axis=1) * 2.0),
    "sums of rows": partial(alone, "reduce_sum", (70, 203), axes=(1,), keepdims=0),
    "largest of columns": partial(alone, "reduce_max", (203, 72), axes=(0,), keepdims=0),
    "mean of all": partial(alone, "reduce_mean", (32, 32, 33), axes=(0, 1, 2), keepdims=0),
    "softmax": partial(alone, "softmax", (2, 33, 77), axis=-1),
    "group normalisation": partial(normalised, "group_normalization", (2, 64, 5, 7), 64,
                                   num_groups=8),
    "large group": partial(normalised, "group_normalization", (1, 64, 48, 48), 64, num_groups=4),
    "layer normalisation": partial(normalised, "layer_normalization", (77, 320), 320),
    "root mean square": partial(normalised, "rms_normalization", (77, 48), 48),
    "depthwise": partial(depthwise, 12, True), "odd depthwise": partial(depthwise, 5, False),
    "depthwise by 2": partial(depthwise, 24, False, 5, 2),
    "largest of windows": partial(alone, "max_pool", (2, 19, 13, 17), kernel_shape=(3, 3),
                                  pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1), ceil_mode=1),
    "mean of windows": partial(alone, "average_pool", (1, 20, 13, 15), kernel_shape=(3, 3),
                               pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1)),
    "attention": partial(alone, "attention", (2, 40, 80), (2, 77, 80), (2, 77, 80), num_heads=2),
    "causal attention": partial(alone, "attention", (1, 45, 64), (1, 45, 64), (1, 45, 64),
                                num_heads=1, is_causal=1),
    "rotary embedding": partial(alone, "rotary_embedding", (1, 9, 64), (1, 9, 16), (1, 9, 16),
                                num_heads=2),
}
