"""Kernels for tests: random ones for the notation, and those that the partition makes of small
graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from smalti.fuse import Region, partition
from smalti.graph import Graph
from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Kernel, Load, Stage

NAMES = ("x", "y", "over", "of", "sum", "max", "where", "inf2", "input", "_a1")
FUNCTIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "silu": 1, "neg": 1, "exp": 1}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-05, 1e16, -1e-300, 0.1, math.inf, -math.inf, 2**24 + 1.0)

names = st.sampled_from(NAMES)
numbers = st.sampled_from(SPECIAL) | st.floats(allow_nan=False)
indices = st.builds(
    Index, st.lists(st.tuples(names, st.integers(-5, 5)), max_size=3).map(tuple),
    st.integers(-100, 100), st.sampled_from([1, 1, 2, 7]))
axes = st.lists(st.tuples(names, st.integers(1, 99)), max_size=4).map(tuple)
shapes = st.lists(st.integers(1, 4096), max_size=4).map(tuple)


def _loads() -> st.SearchStrategy[Load]:
    plain = st.builds(Load, names, st.lists(indices, max_size=3).map(tuple))
    return st.builds(Load, names, st.lists(indices | plain, max_size=3).map(tuple))


def _calls(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Call]:
    return st.sampled_from(sorted(FUNCTIONS)).flatmap(lambda name: st.builds(
        Call, st.just(name), st.tuples(*[inner] * FUNCTIONS[name])))


expressions = st.recursive(st.builds(Const, numbers) | _loads(), _calls, max_leaves=8)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    """A stage of any axes and expression, whether they fit or not."""
    reducer = draw(st.sampled_from(["", "sum", "max"]))
    reduced = draw(axes.filter(len)) if reducer else ()
    guards = draw(st.lists(st.tuples(indices, st.integers(1, 99)), max_size=2).map(tuple))
    return Stage(draw(names), draw(axes), draw(expressions), reduced, reducer, guards)


@st.composite
def buffers(draw: st.DrawFn) -> Buffer:
    """A buffer of any role and shape."""
    role, shape = draw(st.sampled_from(["input", "parameter", "output", "local"])), draw(shapes)
    strides = () if role == "local" else tuple(draw(st.integers(0, 10**6)) for _ in shape)
    return Buffer(draw(names), role, shape, strides, draw(st.sampled_from(["f32", "i32"])))


kernels = st.builds(
    Kernel, names, st.lists(buffers(), max_size=4).map(tuple),
    st.lists(stages(), max_size=3).map(tuple),
    st.lists(st.tuples(names, numbers), max_size=2).map(tuple))


def image_graph() -> Graph:
    """What an image model is made of: convolutions of all kinds, norms, resize, concat."""
    g = Graph("image")
    x, scale = g.input("x", (2, 4, 6, 5)), g.input("scale", (2, 8))

    def conv(name: str, x, channels: int, size: int, stride: int = 1, bias: bool = True):
        shape = (channels, x.shape[1], size, size)
        parts = [g.parameter(f"{name}.weight", shape)]
        parts += [g.parameter(f"{name}.bias", (channels,))] if bias else []
        return g.apply("conv", x, *parts, strides=[stride] * 2, pads=[size // 2] * 4,
                       dilations=[1, 1], group=1)

    h = conv("a", x, 8, 3)
    h = g.apply("silu", h + scale.reshape(2, 8, 1, 1))
    normal = g.apply("group_normalization", h, g.parameter("gamma", (8,)),
                     g.parameter("beta", (8,)), num_groups=4, epsilon=1e-5)
    h = conv("b", g.apply("silu", normal), 8, 3) + h
    small = conv("c", h, 6, 3, stride=2, bias=False)
    large = conv("d", g.apply("resize", small, scales=[1, 1, 2, 2]), 3, 3)
    both = g.apply("concat", g.apply("slice", large, axis=3, start=0, end=5), x, axis=1)
    g.output("image", conv("e", both, 3, 1) * 0.5)
    return g


def token_graph() -> Graph:
    """What a text model is made of: tables, products, norms, attention."""
    g = Graph("tokens")
    ids = g.input("ids", (2, 5), "i32")
    table = g.parameter("table", (11, 16))
    x = g.apply("gather", table, ids) + g.parameter("position", (5, 16))
    normal = g.apply("layer_normalization", x, g.parameter("gamma", (16,)),
                     g.parameter("beta", (16,)), axis=-1, epsilon=1e-5)
    q, k, v = (g.apply("mat_mul", normal, g.parameter(name, (16, 16)).transpose(1, 0))
               for name in "qkv")
    heads = g.apply("rms_normalization", q.reshape(2, 5, 4, 4), g.parameter("root", (4,)))
    angles = (g.input(name, (1, 5, 2)) for name in ("cos", "sin"))
    q = g.apply("rotary_embedding", heads.reshape(2, 5, 16), *angles, interleaved=1, num_heads=4)
    for causal in (0, 1):
        mixed = g.apply("attention", q, k, v, num_heads=4, is_causal=causal, scale=None)
        g.output(f"causal {causal}", x + g.apply("gelu", mixed))
    return g


GRAPHS = (image_graph, token_graph)


def regions() -> Iterator[Region]:
    """Every region of the graphs above."""
    for build in GRAPHS:
        yield from partition(build()).regions


def inputs_for(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs; whole numbers from 0 to 10 where those are asked for."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(v.shape, np.float32) if v.dtype == "f32"
            else rng.integers(0, 11, v.shape, np.int32) for name, v in graph.inputs.items()}
