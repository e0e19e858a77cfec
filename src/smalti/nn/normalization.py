"""Layers that normalise."""

from __future__ import annotations

import numpy as np

from smalti.graph import Value
from smalti.nn.activation import silu
from smalti.nn.linear import linear


def batch_norm(x: Value, name: str, eps: float = 1e-5) -> Value:
    """x [n, c, h, w] with the mean and variance that training gathered taken off each channel.

    Reads `name.weight`, `name.bias`, `name.running_mean` and `name.running_var`, all [c]. One
    multiply-add: its factors depend on parameters only. Ioffe & Szegedy 2015, arXiv:1502.03167.

    >>> from smalti.graph import Graph
    >>> batch_norm(Graph().input("x", (1, 64, 8, 8)), "norm")
    <result of add f32[1, 64, 8, 8]>
    """
    g = x.graph
    with g.scope(name):
        weight, bias, mean, variance = (
            g.parameter(part, x.shape[1:2])
            for part in ("weight", "bias", "running_mean", "running_var"))
        scale = weight / g.apply("sqrt", variance + eps)
        shift = bias - mean * scale
        return x * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)


def group_norm(x: Value, name: str, groups: int, eps: float) -> Value:
    """Normalise x [n, c, h, w] over groups of neighbouring channels and all positions.

    Reads `name.weight` [c] and `name.bias` [c]. Raises InputError when c does not divide by
    `groups`. Wu & He 2018, arXiv:1803.08494.

    >>> from smalti.graph import Graph
    >>> group_norm(Graph().input("x", (1, 64, 8, 8)), "norm", groups=32, eps=1e-6)
    <result of group_normalization f32[1, 64, 8, 8]>
    """
    g = x.graph
    with g.scope(name):
        channels = x.shape[1:2]
        return g.apply("group_normalization", x, g.parameter("weight", channels),
                       g.parameter("bias", channels), num_groups=groups, epsilon=eps)


def layer_norm(x: Value, name: str, eps: float = 1e-5) -> Value:
    """Normalise x [..., c] over its last axis.

    Reads `name.weight` [c] and `name.bias` [c]. Ba et al. 2016, arXiv:1607.06450.

    >>> from smalti.graph import Graph
    >>> layer_norm(Graph().input("x", (1, 77, 48)), "norm1")
    <result of layer_normalization f32[1, 77, 48]>
    """
    g = x.graph
    with g.scope(name):
        features = x.shape[-1:]
        return g.apply("layer_normalization", x, g.parameter("weight", features),
                       g.parameter("bias", features), axis=-1, epsilon=eps)


def modulated_norm(x: Value, shift: Value | None, scale: Value, eps: float = 1e-6) -> Value:
    """Normalise x [n, t, c] over c without learned weights, then times 1 + scale, plus shift.

    shift and scale are [n, c], made of what the block is conditioned on ("adaLN", Peebles & Xie
    2022, arXiv:2212.09748); some models have no shift.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> modulated_norm(g.input("x", (1, 64, 48)), g.input("a", (1, 48)), g.input("b", (1, 48)))
    <result of add f32[1, 64, 48]>
    """
    g, (n, _, width) = x.graph, x.shape
    ones, zeros = (g.constant(np.full(width, value, np.float32)) for value in (1, 0))
    normal = g.apply("layer_normalization", x, ones, zeros, axis=-1, epsilon=eps)
    scaled = normal * (scale.reshape(n, 1, width) + 1.0)
    return scaled if shift is None else scaled + shift.reshape(n, 1, width)


def modulation(vec: Value, name: str, count: int, *, bias: bool = True) -> list[Value]:
    """`count` vectors [n, c] that modulate a block, of what it is conditioned on, vec [n, c].

    They go in threes: shift, scale and gate; where only two are asked for there is no gate. Reads
    `name.weight` [count * c, c] and, with `bias`, `name.bias`. Peebles & Xie 2022, as
    `modulated_norm`.

    >>> from smalti.graph import Graph
    >>> [part.shape for part in modulation(Graph().input("vec", (2, 48)), "lin", 3)]
    [(2, 48), (2, 48), (2, 48)]
    """
    width = vec.shape[1]
    parts = linear(silu(vec), name, count * width, bias=bias)
    return [vec.graph.apply("slice", parts, axis=1, start=i * width, end=(i + 1) * width)
            for i in range(count)]


def rms_norm(x: Value, name: str, eps: float = 1e-6, weight: str = "weight",
             added: float = 0.0) -> Value:
    """x [..., c] over its root mean square along the last axis.

    Reads `name.weight` [c], or what `weight` calls it, to which a number may be `added`. Zhang &
    Sennrich 2019, arXiv:1910.07467.

    >>> from smalti.graph import Graph
    >>> rms_norm(Graph().input("x", (1, 77, 48)), "norm1")
    <result of rms_normalization f32[1, 77, 48]>
    """
    g = x.graph
    with g.scope(name):
        factors = g.parameter(weight, x.shape[-1:])
        return g.apply("rms_normalization", x, factors + added if added else factors, epsilon=eps)
