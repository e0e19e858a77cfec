"""Layers that normalise, each with a learned scale and bias."""

from __future__ import annotations

from smalti.graph import Value


def batch_norm(x: Value, name: str, eps: float = 1e-5) -> Value:
    """x [n, c, h, w] with the mean and variance that training gathered taken off each channel.

    Reads `name.weight`, `name.bias`, `name.running_mean` and `name.running_var`, all [c]. One
    multiply-add: its factors depend on parameters only. Ioffe & Szegedy 2015, arXiv:1502.03167.

    >>> from smalti.graph import Graph
    >>> batch_norm(Graph().input("x", (1, 64, 8, 8)), "norm")
    <result add f32[1, 64, 8, 8]>
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
    <result group_normalization f32[1, 64, 8, 8]>
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
    <result layer_normalization f32[1, 77, 48]>
    """
    g = x.graph
    with g.scope(name):
        features = x.shape[-1:]
        return g.apply("layer_normalization", x, g.parameter("weight", features),
                       g.parameter("bias", features), axis=-1, epsilon=eps)
