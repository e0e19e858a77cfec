"""The attention layer of transformer blocks."""

from __future__ import annotations

import numpy as np

from smalti.graph import Value
from smalti.graph.operations.attention import key_heads
from smalti.nn.embedding import rotary_embedding
from smalti.nn.linear import linear
from smalti.nn.normalization import rms_norm

UNSEEN = 1e38
"""What is taken off the score of a masked token: attention reads it as minus infinity."""
UNSEEN_CAPPED = 1e4
"""The same where scores are capped, which are far from it: two of it fit f16."""


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


def turned_part(qkv: Value, number: int, norm: str, cos: Value, sin: Value, width: int, heads: int,
                eps: float, weight: str = "weight") -> Value:
    """The queries (number 0) or keys (1) of qkv [n, t, 3 width ...], normalised in each head, then
    turned by the angles of their tokens -> [n, t, width].

    cos and sin are [n or 1, t, d / 2] for heads of d channels; raises InputError for another d than
    width and heads give. Reads `norm.weight` [d], or what `weight` calls it. Dehghani et al. 2023,
    arXiv:2302.05442, section 2, and Su et al. 2021, arXiv:2104.09864.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> cos, sin = g.input("cos", (1, 64, 8)), g.input("sin", (1, 64, 8))
    >>> turned_part(g.input("qkv", (2, 64, 144)), 1, "k_norm", cos, sin, 48, heads=3, eps=1e-6)
    <result of rotary_embedding f32[2, 64, 48]>
    """
    part = qkv.graph.apply("slice", qkv, axis=2, start=number * width, end=(number + 1) * width)
    return normalised_and_turned(part, norm, cos, sin, heads, eps, weight)


def normalised_and_turned(x: Value, norm: str, cos: Value, sin: Value, heads: int, eps: float,
                          weight: str = "weight") -> Value:
    """Queries or keys x [n, t, c] as `turned_part` gives them, where they are a product of their
    own.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> cos, sin = g.input("cos", (1, 64, 8)), g.input("sin", (1, 64, 8))
    >>> normalised_and_turned(g.input("q", (2, 64, 48)), "norm_q", cos, sin, heads=3, eps=1e-6)
    <result of rotary_embedding f32[2, 64, 48]>
    """
    n, tokens, width = x.shape
    y = rms_norm(x.reshape(n, tokens, heads, width // heads), norm, eps, weight)
    return rotary_embedding(y.reshape(n, tokens, width), cos, sin, heads)


def capped_attention(q: Value, k: Value, v: Value, *mask: Value, heads: int, cap: float,
                     scale: float, window: int = 0) -> Value:
    """Attention of tokens to themselves and those before them, at most `window` of these where that
    is not 0, with scores that grow to a limit: q [n, t, heads * d] -> the same shape.

    A score s of queries and keys, times `scale`, counts as cap tanh(s / cap); a mask [n, 1, 1, t]
    is added behind that. Groups of heads share those of k and v [n, t, fewer heads * d]. Gemma Team
    2024, arXiv:2408.00118, section 2.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> q, k, v = (g.input(name, (2, 64, 16 * n)) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    >>> capped_attention(q, k, v, heads=4, cap=50.0, scale=0.25)
    <result of reshape f32[2, 64, 64]>
    """
    g, (n, t, width) = q.graph, q.shape
    shared, d = key_heads(width, k.shape[2], heads), width // heads
    group = heads // shared
    queries = (q * (scale / cap)).reshape(n, t, shared, group, d).transpose(0, 2, 3, 1, 4)
    keys, values = (x.reshape(n, t, shared, d) for x in (k, v))
    scores = g.apply("mat_mul", queries.reshape(n, shared, group * t, d),
                     keys.transpose(0, 2, 3, 1))
    unseen = np.where(out_of_sight(t, window) | np.triu(np.ones((t, t), bool), 1),
                      np.float32(-UNSEEN_CAPPED), np.float32(0))
    scores = g.apply("tanh", scores) * cap + g.constant(np.tile(unseen, (group, 1)))
    for addend in mask:
        scores = scores + g.apply("max", addend, g.constant(-UNSEEN_CAPPED))
    mixed = g.apply("mat_mul", g.apply("softmax", scores), values.transpose(0, 2, 1, 3))
    mixed = mixed.reshape(n, shared, group, t, d).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(n, t, width)


def out_of_sight(tokens: int, window: int) -> np.ndarray:
    """Which of the tokens before it each of so many does not see [t, t], where it sees `window` of
    them, itself included; 0 is no limit.

    >>> out_of_sight(3, 2).tolist()
    [[False, False, False], [False, False, False], [True, False, False]]
    """
    behind = np.arange(tokens)[:, None] - np.arange(tokens)
    return (behind >= window) & (window > 0)


def hidden_scores(seen: Value, tokens: int = 0) -> Value:
    """What is added to the scores of all tokens [n, 1, 1, t + tokens]: nothing, but for those that
    nobody sees, which are 0 in `seen` [n, t] and 1 elsewhere; `tokens` behind them are all seen.

    >>> from smalti.graph import Graph
    >>> hidden_scores(Graph().input("seen", (2, 77)), 64).shape
    (2, 1, 1, 141)
    """
    g, (batch, length) = seen.graph, seen.shape
    if tokens:
        everything = g.apply("expand", g.constant(1.0), shape=(batch, tokens))
        seen = g.apply("concat", seen, everything, axis=1)
    return (seen.reshape(batch, 1, 1, length + tokens) - 1.0) * UNSEEN
