"""Activations."""

from __future__ import annotations

from smalti.graph import Value


def relu(x: Value) -> Value:
    """max(x, 0), element by element.

    >>> from smalti.graph import Graph
    >>> relu(Graph().input("x", (2, 3)))
    <result of relu f32[2, 3]>
    """
    return x.graph.apply("relu", x)


def leaky_relu(x: Value, slope: float) -> Value:
    """max(x, 0) + slope * min(x, 0) for a slope of at most 1 (Maas et al. 2013).

    >>> from smalti.graph import Graph
    >>> leaky_relu(Graph().input("x", (2, 3)), 0.2)
    <result of max f32[2, 3]>
    """
    return x.graph.apply("max", x, x * slope)


def prelu(x: Value, name: str) -> Value:
    """max(x, 0) + slope * min(x, 0), with a slope for each channel: x [n, c, h, w].

    Reads `name.weight` [c]. He et al. 2015, arXiv:1502.01852.

    >>> from smalti.graph import Graph
    >>> prelu(Graph().input("x", (1, 64, 8, 8)), "act")
    <result of add f32[1, 64, 8, 8]>
    """
    g = x.graph
    with g.scope(name):
        slope = g.parameter("weight", x.shape[1:2]).reshape(-1, 1, 1)
    return relu(x) + slope * g.apply("min", x, g.constant(0.0))


def relu6(x: Value) -> Value:
    """min(max(x, 0), 6), element by element (Krizhevsky 2010, Convolutional deep belief networks).

    >>> from smalti.graph import Graph
    >>> relu6(Graph().input("x", (2, 3)))
    <result of min f32[2, 3]>
    """
    g = x.graph
    return g.apply("min", g.apply("relu", x), g.constant(6.0))


def silu(x: Value) -> Value:
    """x * sigmoid(x), element by element (Elfwing et al. 2018, arXiv:1702.03118).

    >>> from smalti.graph import Graph
    >>> silu(Graph().input("x", (2, 3)))
    <result of silu f32[2, 3]>
    """
    return x.graph.apply("silu", x)


def gelu(x: Value) -> Value:
    """x * Phi(x) with the exact error function (Hendrycks & Gimpel 2016, arXiv:1606.08415).

    >>> from smalti.graph import Graph
    >>> gelu(Graph().input("x", (2, 3)))
    <result of gelu f32[2, 3]>
    """
    return x.graph.apply("gelu", x)


def gelu_tanh(x: Value) -> Value:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, the approximation in the paper of `gelu`.

    >>> from smalti.graph import Graph
    >>> gelu_tanh(Graph().input("x", (2, 3)))
    <result of gelu_tanh f32[2, 3]>
    """
    return x.graph.apply("gelu_tanh", x)


def quick_gelu(x: Value) -> Value:
    """x * sigmoid(1.702 x), the activation of OpenAI's CLIP (the paper of `gelu`, section 2).

    >>> from smalti.graph import Graph
    >>> quick_gelu(Graph().input("x", (2, 3)))
    <result of quick_gelu f32[2, 3]>
    """
    return x.graph.apply("quick_gelu", x)
