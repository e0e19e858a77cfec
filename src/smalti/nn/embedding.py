"""Embeddings: rows of a table, the sinusoids of a time step, and rotations by position."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.graph import Value


def embedding(indices: Value, name: str, rows: int, features: int) -> Value:
    """Rows of `name.weight` [rows, features]: indices i32[...] -> f32[..., features].

    Raises InputError when the indices are no integers.

    >>> from smalti.graph import Graph
    >>> embedding(Graph().input("tokens", (2, 77), "i32"), "token_embedding", 100, 48)
    <result gather f32[2, 77, 48]>
    """
    g = indices.graph
    with g.scope(name):
        return g.apply("gather", g.parameter("weight", (rows, features)), indices)


def timestep_embedding(timesteps: Value, features: int, period_max: float = 10000.0) -> Value:
    """cos(t w_i), then sin(t w_i), with w_i = period_max^(-i / (features / 2)).

    timesteps f32[n] -> [n, features]; time is in training steps, 0 to 999. Raises InputError when
    `features` is odd. Vaswani et al. 2017, section 3.5, in the order of latent diffusion.

    >>> from smalti.graph import Graph
    >>> timestep_embedding(Graph().input("timesteps", (2,)), 320)
    <result concat f32[2, 320]>
    """
    if features % 2:
        raise InputError(f"a timestep embedding has as many cosines as sines; {features} features "
                         f"is odd")
    g, half = timesteps.graph, features // 2
    frequencies = np.exp(np.arange(half) * (-math.log(period_max) / half)).astype(np.float32)
    angles = timesteps.reshape(-1, 1) * g.constant(frequencies)  # [n, features / 2]
    return g.apply("concat", g.apply("cos", angles), g.apply("sin", angles), axis=1)


def rotary_embedding(x: Value, cos: Value, sin: Value, heads: int) -> Value:
    """Turn each pair of neighbouring channels by an angle of its token: x [n, t, heads * d].

    cos and sin are [n or 1, t, d / 2]. Raises InputError when d is odd. Su et al. 2021,
    arXiv:2104.09864.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> cos, sin = g.input("cos", (1, 64, 8)), g.input("sin", (1, 64, 8))
    >>> rotary_embedding(g.input("x", (2, 64, 48)), cos, sin, heads=3)
    <result rotary_embedding f32[2, 64, 48]>
    """
    return x.graph.apply("rotary_embedding", x, cos, sin, interleaved=1, num_heads=heads)
