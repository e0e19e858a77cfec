"""The attention layer of transformer blocks."""

from __future__ import annotations

from smalti.graph import Value
from smalti.nn.linear import linear


def cross_attention(x: Value, context: Value, heads: int) -> Value:
    """Multi-head attention of the tokens x [n, t, c] to the tokens context [n, s, d] -> [n, t, c].

    With `context` = x it is self-attention. Reads `to_q.weight` [c, c], `to_k.weight` and
    `to_v.weight` [c, d] without biases, and `to_out.0` with one. Raises InputError when c does not
    divide by `heads`. Vaswani et al. 2017, arXiv:1706.03762.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> x, context = g.input("x", (2, 64, 80)), g.input("context", (2, 77, 48))
    >>> cross_attention(x, context, heads=2)
    <result of add f32[2, 64, 80]>
    >>> g.parameters["to_k.weight"].shape
    (80, 48)
    """
    width = x.shape[-1]
    q = linear(x, "to_q", width, bias=False)        # [n, t, heads * d]
    k = linear(context, "to_k", width, bias=False)  # [n, s, heads * d]
    v = linear(context, "to_v", width, bias=False)  # [n, s, heads * d]
    return linear(x.graph.apply("attention", q, k, v, num_heads=heads), "to_out.0", width)
