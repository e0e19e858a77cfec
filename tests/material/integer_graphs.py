"""Graphs of products of integers, and operands for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.graph import Graph, Value
from smalti.graph.operation import DTYPES
from smalti.schedule import Limits


def finished(g: Graph, y: Value, behind: str) -> Graph:
    """`g` with sums as its output, or what layers make of them."""
    if behind:
        y = g.apply("cast", y, to="f32") * g.constant(2.0 ** -11)
    if behind == "bytes":
        y = g.apply("max", g.apply("round", y) + g.constant(99.0), g.constant(0.0))
        y = g.apply("cast", g.apply("min", y, g.constant(255.0)), to="u8")
    g.output("y", y)
    return g


def product(rows: int, depth: int, columns: int, dtypes: tuple[str, str] = ("u8", "i8"),
            zeros: tuple[int, int] = (3, 0), behind: str = "") -> Graph:
    """A matrix product of integers with a bound weight."""
    g = Graph("product")
    a, b = g.input("a", (rows, depth), dtypes[0]), g.parameter("b", (depth, columns), dtypes[1])
    points = [g.constant(zero, dtype) for zero, dtype in zip(zeros, dtypes, strict=True)]
    return finished(g, g.apply("mat_mul_integer", a, b, *points), behind)


def convolution(channels: int, size: int, out: int, dtypes: tuple[str, str] = ("u8", "i8"),
                zeros: tuple[int, int] = (3, 0), behind: str = "", window: int = 3,
                stride: int = 1, group: int = 1) -> Graph:
    """A convolution of integers, padded by its zero point."""
    g = Graph("convolution")
    x = g.input("x", (2, channels, size, size), dtypes[0])
    w = g.parameter("w", (out, channels // group, window, window), dtypes[1])
    points = [g.constant(zero, dtype) for zero, dtype in zip(zeros, dtypes, strict=True)]
    return finished(g, g.apply("conv_integer", x, w, *points, pads=(window // 2,) * 4,
                               strides=(stride, stride), group=group), behind)


def drawn_convolution(draw: Callable[..., Any], name: str, dtypes: tuple[str, str],
                      zeros: tuple[int, int], behind: str) -> tuple[Graph, Limits]:
    """Any such convolution, and limits of the level `name`, whose caches may be so small that sums
    go through many chunks."""
    channels, out = draw(st.integers(8, 90)), draw(st.integers(1, 80))
    window, size = draw(st.sampled_from([1, 3])), draw(st.integers(1, 9))
    graph = convolution(channels, size, out, dtypes, zeros, behind, window, draw(st.integers(1, 2)))
    threads, small = draw(st.integers(1, 3)), draw(st.sampled_from([4 << 10, 1 << 20]))
    return graph, limits(level(name), threads, 2 << 10, small)


def operands(graph: Graph, seed: int = 0) -> tuple[dict, dict]:
    """Inputs and parameters of any bytes."""
    rng = np.random.default_rng(seed)
    return tuple({name: rng.integers(0, 256, value.shape).astype(np.uint8).view(
        DTYPES[value.dtype]) for name, value in values.items()}
        for values in (graph.inputs, graph.parameters))


def code_product(rows: int, depth: int, columns: int, signed: bool = False,
                 form: str = "") -> Graph:
    """A product of bytes with numbers that are rounded, of one matrix or of two slices of it that
    are added."""
    g, kind = Graph("codes"), "i8" if signed else "u8"
    w = g.apply("transpose", g.parameter("w", (columns, depth)), perm=(1, 0))
    y = g.apply("mat_mul_rounded", g.input("x", (rows, depth), kind), w,
                g.constant(0 if signed else 128, kind))
    if form == "gated":
        half = columns // 2
        y = g.apply("slice", y, axis=1, start=0, end=half) + g.apply(
            "slice", y, axis=1, start=half, end=columns)
    g.output("y", y)
    return g
