"""The gated feed-forward layer of transformer blocks."""

from __future__ import annotations

from smalti.graph import Value
from smalti.nn.activation import gelu
from smalti.nn.linear import linear


def geglu_feed_forward(x: Value, multiple: int = 4) -> Value:
    """(h * gelu(gate)) @ W with [h | gate] = x @ V + b: x [n, t, c] -> [n, t, c].

    Reads `net.0.proj` [2 * multiple * c, c], its first half of rows for h, and `net.2`
    [c, multiple * c]. Shazeer 2020, arXiv:2002.05202.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> geglu_feed_forward(g.input("x", (2, 64, 48)))
    <result of add f32[2, 64, 48]>
    >>> g.parameters["net.0.proj.weight"].shape, g.parameters["net.2.weight"].shape
    ((384, 48), (48, 192))
    """
    g, width = x.graph, x.shape[-1]
    inner = multiple * width
    both = linear(x, "net.0.proj", 2 * inner)                         # [n, t, 2 * inner]
    hidden = g.apply("slice", both, axis=2, start=0, end=inner)       # [n, t, inner]
    gate = g.apply("slice", both, axis=2, start=inner, end=2 * inner)  # [n, t, inner]
    return linear(hidden * gelu(gate), "net.2", width)
