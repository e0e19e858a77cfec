"""Graphs of one convolution or matrix product each, with what is fused with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from smalti.graph import Graph, Value


@dataclass(frozen=True)
class Conv:
    """A convolution; `before` and `behind` say what is fused with it."""

    channels: int
    height: int
    width: int
    out: int
    window: tuple[int, int] = (3, 3)
    batch: int = 1
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    before: str = ""
    behind: str = ""
    bias: bool = True

    def graph(self) -> Graph:
        g = Graph("conv")
        x = _before(g, self.before, g.input("x", (self.batch, self.channels, self.height,
                                                  self.width)))
        w = g.parameter("w", (self.out, self.channels, *self.window))
        bias = [g.parameter("b", (self.out,))] if self.bias else []
        y = g.apply("conv", x, w, *bias, strides=self.strides, dilations=self.dilations,
                    pads=self.pads)
        g.output("y", _behind(g, self.behind, y))
        return g


def _before(g: Graph, kind: str, x: Value) -> Value:
    channels = x.shape[1]
    if kind == "resize":
        return g.apply("resize", x, scales=(1, 1, 2, 2))
    if kind == "cos, resize":  # cos(0) is not 0: pads must stay zero
        return g.apply("resize", g.apply("cos", x), scales=(1, 1, 2, 2))
    if kind == "normalized":
        scale, bias = g.parameter("scale", (channels,)), g.parameter("shift", (channels,))
        return g.apply("silu", g.apply("group_normalization", x, scale, bias, num_groups=1))
    if kind == "concat":
        return g.apply("concat", g.apply("silu", x), x, axis=0)
    if kind == "slice":
        return g.apply("slice", x, axis=3, start=0, end=max(1, x.shape[3] - 1))
    if kind == "tokens":
        n, c, h, w = x.shape
        return x.reshape(n, c, h * w).transpose(0, 2, 1).reshape(n, h, w, c).transpose(0, 3, 1, 2)
    return x


def _behind(g: Graph, kind: str, y: Value) -> Value:
    n, c = y.shape[:2]
    if kind == "residual":
        return g.apply("silu", y + g.input("r", y.shape))
    if kind == "time":
        return y + g.input("t", (n, c)).reshape(n, c, 1, 1)
    if kind == "gate":
        return g.apply("gelu", g.input("r", (1, 1, *y.shape[2:]))) * y * 2.0
    if kind == "resized" and y.shape[2] % 2 == y.shape[3] % 2 == 0:
        small = g.input("r", (n, c, y.shape[2] // 2, y.shape[3] // 2))
        return y + g.apply("resize", small, scales=(1, 1, 2, 2))
    if kind == "tokens":
        return y.reshape(n, c, -1).transpose(0, 2, 1) * 2.0
    return y


CONVS = [
    Conv(1, 1, 1, 1, (1, 1), pads=(0, 0, 0, 0)),
    Conv(3, 9, 70, 5),
    Conv(4, 8, 8, 32, before="normalized"),
    Conv(7, 5, 6, 33, (5, 5), pads=(2, 2, 2, 2)),
    Conv(16, 6, 10, 20, before="cos, resize"),
    Conv(20, 7, 9, 16, batch=2, strides=(2, 2), pads=(0, 0, 1, 1)),
    Conv(33, 6, 5, 40, dilations=(2, 1), pads=(2, 0, 1, 3), behind="residual"),
    Conv(40, 9, 4, 7, (1, 5), pads=(0, 2, 0, 2), behind="time"),
    Conv(32, 16, 16, 64, (1, 1), batch=3, pads=(0, 0, 0, 0), behind="gate"),
    Conv(100, 8, 8, 48, behind="residual", before="normalized"),
    Conv(640, 6, 6, 33),
    Conv(1300, 3, 3, 20),
    Conv(8, 6, 6, 16, before="concat"), Conv(8, 6, 6, 16, before="slice"),
    Conv(8, 6, 6, 16, before="tokens", behind="tokens"), Conv(8, 6, 6, 16, behind="resized"),
    Conv(5, 1, 70, 3, (1, 3), pads=(0, 4, 0, 0)),
    Conv(16, 1, 1, 16, (3, 3)),
    Conv(6, 3, 3, 24, (2, 2), pads=(3, 3, 0, 0), strides=(3, 2)),
]

CONV_CASES = st.builds(
    Conv, channels=st.sampled_from([1, 3, 4, 7, 16, 20, 33, 40]), height=st.integers(3, 12),
    width=st.integers(3, 20), out=st.sampled_from([1, 3, 4, 7, 16, 20, 33, 40, 65]),
    window=st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 3])),
    batch=st.integers(1, 3), strides=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    before=st.sampled_from(["", "resize", "cos, resize", "normalized", "concat", "slice",
                            "tokens"]),
    behind=st.sampled_from(["", "residual", "time", "gate", "resized", "tokens"]),
    bias=st.booleans())


def fitting(case: Conv) -> Conv:
    """The case with pads large enough for its window."""
    reach = [d * (k - 1) for d, k in zip(case.dilations, case.window, strict=True)]
    top, left = (max(pad, n) for pad, n in zip(case.pads, reach, strict=False))
    return replace(case, pads=(top, left, *case.pads[2:]))


def linear(rows: tuple[int, ...], channels: int, out: int, behind: str = "",
           turned: bool = True) -> Graph:
    """x [rows..., channels] times a weight, which is stored [out, channels] when `turned`."""
    g = Graph("linear")
    x = g.input("x", (*rows, channels))
    w = (g.parameter("w", (out, channels)).transpose(1, 0) if turned
         else g.parameter("w", (channels, out)))
    if behind == "normalized":
        x = g.apply("layer_normalization", x, g.parameter("s", (channels,)),
                    g.parameter("h", (channels,)))
    if behind == "gathered":
        x = g.apply("silu", g.apply("gather", g.parameter("t", (9, channels)),
                                    g.input("i", rows, "i32")))
    if behind == "resized":
        x = g.apply("resize", x, scales=(1,) * (len(rows) - 1) + (2, 1))
    y = g.apply("mat_mul", x, w) + g.parameter("b", (out,))
    if behind == "geglu":
        half = out // 2
        y, gate = (g.apply("slice", y, axis=len(rows), start=at, end=at + half) for at in (0, half))
        y = y * g.apply("gelu", gate)
    elif behind == "embedded":
        y = y + g.apply("gather", g.parameter("t", (9, out)), g.input("i", rows, "i32"))
    elif behind:
        y = g.apply("gelu", y) + g.input("r", y.shape)
    g.output("y", y)
    return g


PRODUCTS = [((5, 7), (7, 9)), ((130, 300), (300, 70)), ((3, 5, 7), (3, 7, 9)), ((5, 7), (3, 7, 9)),
            ((2, 3, 40, 6), (2, 3, 6, 17)), ((1, 3, 5, 7), (2, 1, 7, 9)), ((2, 3, 5, 7), (7, 40))]
