"""Embeddings: rows of a table, the sinusoids of a time step, and rotations by position."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.graph import Graph, Value


def embedding(indices: Value, name: str, rows: int, features: int) -> Value:
    """Rows of `name.weight` [rows, features]: indices i32[...] -> f32[..., features].

    Raises InputError when the indices are no integers.

    >>> from smalti.graph import Graph
    >>> embedding(Graph().input("tokens", (2, 77), "i32"), "token_embedding", 100, 48)
    <result of gather f32[2, 77, 48]>
    """
    g = indices.graph
    with g.scope(name):
        return g.apply("gather", g.parameter("weight", (rows, features)), indices)


def timestep_embedding(timesteps: Value, features: int, period_max: float = 10000.0,
                       sines_first: bool = False) -> Value:
    """cos(t w_i), then sin(t w_i), with w_i = period_max^(-i / (features / 2)); some models have
    the sines first.

    timesteps f32[n] -> [n, features]; time is in training steps, 0 to 999. Raises InputError when
    `features` is odd. Vaswani et al. 2017, section 3.5, in the order of latent diffusion.

    >>> from smalti.graph import Graph
    >>> timestep_embedding(Graph().input("timesteps", (2,)), 320)
    <result of concat f32[2, 320]>
    """
    if features % 2:
        raise InputError(f"a timestep embedding has as many cosines as sines; {features} features "
                         f"is odd")
    g, half = timesteps.graph, features // 2
    frequencies = np.exp(np.arange(half) * (-math.log(period_max) / half)).astype(np.float32)
    angles = timesteps.reshape(-1, 1) * g.constant(frequencies)  # [n, features / 2]
    waves = g.apply("cos", angles), g.apply("sin", angles)
    return g.apply("concat", *(waves[::-1] if sines_first else waves), axis=1)


def rotary_embedding(x: Value, cos: Value, sin: Value, heads: int) -> Value:
    """Turn each pair of neighbouring channels by an angle of its token: x [n, t, heads * d].

    cos and sin are [n or 1, t, d / 2]. Raises InputError when d is odd. Su et al. 2021,
    arXiv:2104.09864.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> cos, sin = g.input("cos", (1, 64, 8)), g.input("sin", (1, 64, 8))
    >>> rotary_embedding(g.input("x", (2, 64, 48)), cos, sin, heads=3)
    <result of rotary_embedding f32[2, 64, 48]>
    """
    return x.graph.apply("rotary_embedding", x, cos, sin, interleaved=1, num_heads=heads)


def grid_angles(g: Graph, grid: tuple[int, ...], length: int, axes: tuple[int, ...],
                base: float = 10000.0, starts: tuple[int, ...] = (),
                spacing: tuple[float, ...] = ()) -> tuple[Value, Value]:
    """Cosines and sines [1, length + prod(grid), sum(axes) / 2] of rotations on several axes.

    Of each head axes[i] channels turn with the i-th coordinate; pair j of them by
    base^(-2 j / axes[i]) a step. The first `length` tokens stand at 0, those behind on the points
    of `grid`, whose extents belong to the last axes and begin at `starts`, or at 0; they are a
    step apart, or as far as `spacing` says. Raises InputError for odd axes.

    >>> cos, sin = grid_angles(Graph(), (2, 3), 4, (8, 28, 28))
    >>> cos.shape, sin.shape
    ((1, 10, 32), (1, 10, 32))
    """
    if any(width % 2 for width in axes):
        raise InputError(f"rotary axes of {axes} channels: pairs of channels turn")
    points, pairs, still = math.prod(grid), sum(axes) // 2, len(axes) - len(grid)
    tables = []
    for function, at_rest in ((np.cos, 1.0), (np.sin, 0.0)):
        parts = [_filled(g, at_rest, (*grid, sum(axes[:still]) // 2))] if still else []
        begins, apart = starts or (0,) * len(grid), spacing or (1,) * len(grid)
        for i, (extent, width, start, step) in enumerate(
                zip(grid, axes[still:], begins, apart, strict=True)):
            places = np.arange(start, start + extent) * step
            steps = places[:, None] * base ** (-np.arange(0, width, 2) / width)
            shape = [extent if j == i else 1 for j in range(len(grid))]
            table = g.constant(function(steps).astype(np.float32).reshape(*shape, width // 2))
            parts.append(g.apply("expand", table, shape=(*grid, width // 2)))
        table = g.apply("concat", *parts, axis=len(grid)).reshape(1, points, pairs)
        still_ones = [_filled(g, at_rest, (1, length, pairs))] if length else []
        tables.append(g.apply("concat", *still_ones, table, axis=1))
    return tables[0], tables[1]


def diagonal_angles(g: Graph, length: int, axes: tuple[int, ...], base: float = 10000.0,
                    start: int = 0, still: int = 0) -> tuple[Value, Value]:
    """Cosines and sines [1, length, sum(axes) / 2] as of `grid_angles`, of tokens of which the i-th
    stands at `start` + i on all axes but the first `still` ones, on which all stand at 0.

    >>> cos, sin = diagonal_angles(Graph(), 5, (8, 28, 28), still=1)
    >>> cos.shape, sin.shape
    ((1, 5, 32), (1, 5, 32))
    """
    line = np.arange(start, start + length)[:, None]
    angles = np.concatenate([
        (line if i >= still else line * 0) * base ** (-np.arange(0, width, 2) / width)
        for i, width in enumerate(axes)], axis=1)[None]
    cos, sin = (g.constant(function(angles).astype(np.float32)) for function in (np.cos, np.sin))
    return cos, sin


def _filled(g: Graph, value: float, shape: tuple[int, ...]) -> Value:
    return g.apply("expand", g.constant(value), shape=shape)
