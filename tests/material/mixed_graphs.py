"""Random graphs of every kind of operation that the native target computes."""

from __future__ import annotations

from hypothesis import strategies as st

from smalti.graph import Graph, Value


@st.composite
def mixed_graphs(draw: st.DrawFn) -> Graph:
    """Small graphs of every kind of operation, on one image and what is made of it."""
    g = Graph("mixed")
    side = draw(st.sampled_from([2, 3, 4]))
    images = [g.input("x", (draw(st.integers(1, 2)), draw(st.sampled_from([1, 4, 6])), side, side))]
    for number in range(draw(st.integers(1, 9))):
        x = draw(st.sampled_from(images))
        images.append(_layer(draw, g, images, x, f"n{number}"))
    for number, value in enumerate({images[-1], draw(st.sampled_from(images))}):
        g.output(f"y{number}", value * 2.0 if value.node is None else value)
    return g


def _layer(draw: st.DrawFn, g: Graph, images: list[Value], x: Value, name: str) -> Value:
    n, c, h, w = x.shape
    kind = draw(st.sampled_from(["conv", "pointwise", "sum", "norm", "resize", "concat", "slice",
                                 "tokens", "turn", "linear", "attention", "layer", "depthwise",
                                 "reduce"]))
    if kind == "conv":
        weight = g.parameter(name, (draw(st.sampled_from([1, 4, 6])), c, 3, 3))
        return g.apply("conv", x, weight, pads=(1, 1, 1, 1))
    if kind == "depthwise":
        return g.apply("conv", x, g.parameter(name, (c, 1, 3, 3)), pads=(1, 1, 1, 1), group=c)
    if kind == "reduce":
        axes = draw(st.sampled_from([(1,), (2, 3), (3,)]))
        name = draw(st.sampled_from(["reduce_mean", "reduce_max"]))
        return x - g.apply(name, x, axes=axes)
    if kind == "sum":
        same = [v for v in images if v.shape == x.shape]
        return x + g.apply("tanh", draw(st.sampled_from(same)))
    if kind == "norm":
        return g.apply("group_normalization", x, g.parameter(name + "s", (c,)),
                       g.parameter(name + "b", (c,)), num_groups=1)
    if kind == "resize" and h < 8:
        return g.apply("resize", x, scales=(1, 1, 2, 1))
    if kind == "concat" and c < 12:
        same = [v for v in images if v.shape == x.shape]
        return g.apply("concat", x, draw(st.sampled_from(same)), axis=1)
    if kind == "slice" and h > 1:
        return g.apply("slice", x, axis=2, start=1, end=h)
    if kind == "turn" and h == w:
        return x + g.apply("relu", x).transpose(0, 1, 3, 2)
    tokens = x.reshape(n, c, h * w).transpose(0, 2, 1)
    if kind == "linear":
        tokens = g.apply("mat_mul", tokens, g.parameter(name, (c, c)))
    elif kind == "attention":
        tokens = g.apply("attention", tokens, tokens, g.apply("tanh", tokens), num_heads=1)
    elif kind == "layer" and c > 3:
        tokens = g.apply("layer_normalization", tokens, g.parameter(name + "s", (c,)),
                         g.parameter(name + "b", (c,)))
    elif kind != "tokens":
        return g.apply("silu", x)
    return tokens.transpose(0, 2, 1).reshape(n, c, h, w)
