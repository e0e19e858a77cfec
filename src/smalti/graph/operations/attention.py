"""Scaled dot-product attention (Vaswani et al. 2017; ONNX `Attention` with 3-D inputs)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define


def _rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (q, k, v), mask = types[:3], types[3:]
    heads = attributes["num_heads"]
    if not (len(q.shape) == len(k.shape) == len(v.shape) == 3 and k.shape[:2] == v.shape[:2]
            and q.shape[0] == k.shape[0] and heads > 0 and q.shape[2] % heads == 0
            and k.shape[2] > 0 and q.shape[2] % k.shape[2] == 0
            and k.shape[2] * heads % q.shape[2] == 0
            and v.shape[2] % (shared := key_heads(q.shape[2], k.shape[2], heads)) == 0):
        raise InputError(f"attention of {q}, {k}, {v} with {heads} heads: [n, tokens, heads * d] "
                         f"are expected, of keys and values perhaps fewer heads, by which those "
                         f"of the queries can be divided")
    scores = (q.shape[0], heads, q.shape[1], k.shape[1])
    if any(t.dtype != q.dtype or len(t.shape) != 4
           or any(n not in (1, m) for n, m in zip(t.shape, scores)) for t in mask):
        raise InputError(f"attention of {q}, {k}, {v} with {heads} heads: a mask of "
                         f"{list(scores)}, or 1 for some of these, is expected, got {mask[0]}")
    return Type((*q.shape[:2], v.shape[2] // shared * heads), q.dtype)


def key_heads(queries: int, keys: int, heads: int) -> int:
    """The heads of keys, where `heads` heads of queries have the first number of channels, the keys
    the second: each head has as many channels as one of queries.

    >>> key_heads(4096, 1024, heads=32)
    8
    """
    return keys * heads // queries


LOWEST = -1e30
"""An entry of a mask below this number counts as minus infinity: no score outweighs it."""


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, *,
              num_heads: int, is_causal: int, scale: float | None) -> np.ndarray:
    """softmax(q @ k^T * scale + mask) @ v for each head; scale None means 1 / sqrt(d).

    q [n, t, heads * d], k [n, s, heads * d], v [n, s, heads * e] -> [n, t, heads * e]; each axis of
    the mask [n, heads, t, s] may be 1. Keys and values may have fewer heads, each for as many heads
    of queries that stand side by side (Ainslie et al. 2023, arXiv:2305.13245). The result is 0 for
    a token the whole row of which is masked by minus infinity.
    """
    shared = key_heads(q.shape[2], k.shape[2], num_heads)

    def split(x: np.ndarray, heads: int = shared) -> np.ndarray:
        apart = x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        return np.repeat(apart, num_heads // heads, axis=1)

    factor = 1 / math.sqrt(q.shape[2] // num_heads) if scale is None else scale
    scores = split(q, num_heads) @ split(k).swapaxes(2, 3) * np.float32(factor)
    if is_causal:
        later = np.triu(np.ones(scores.shape[2:], bool), 1)
        scores = np.where(later, np.float32(-np.inf), scores)
    if mask is not None:
        scores = scores + np.where(mask < LOWEST, np.float32(-np.inf), mask)
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=LOWEST))
    total = weights.sum(-1, keepdims=True)
    out = weights / np.where(total == 0, np.float32(1), total) @ split(v)
    return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)


def _flops(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    (n, t, width), s = types[0].shape, types[1].shape[1]
    return n * t * s * (2 * width + 2 * result.shape[2] + 5 * attributes["num_heads"])


def _parts(g, q, k, v, *mask, num_heads: int, is_causal: int, scale: float | None):
    shared = key_heads(q.shape[2], k.shape[2], num_heads)

    def split(x, heads: int, *perm: int):
        apart = x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(*perm)
        if heads == num_heads:
            return apart
        n, _, *rest = apart.shape
        apart = g.apply("expand", apart.reshape(n, heads, 1, *rest),
                        shape=(n, heads, num_heads // heads, *rest))
        return apart.reshape(n, num_heads, *rest)

    factor = 1 / math.sqrt(q.shape[2] // num_heads) if scale is None else scale
    scores = g.apply("mat_mul", split(q, num_heads, 0, 2, 1, 3), split(k, shared, 0, 2, 3, 1))
    scores = scores * factor
    if is_causal:  # a finite number that no score outweighs: exp gives 0, too
        t, s = scores.shape[2:]
        ahead = g.constant(np.arange(s, dtype=np.float32)) - np.arange(t, dtype=np.float32)[:, None]
        scores = scores - g.apply("min", g.apply("relu", ahead), g.constant(1.0)) * 1e30
    for addend in mask:
        scores = scores + g.apply("max", addend, g.constant(LOWEST))
    weights = g.apply("softmax", scores)
    if mask:
        seen = g.apply("greater", g.apply("reduce_max", scores, axes=(3,)), g.constant(LOWEST / 2))
        weights = g.apply("where", seen, weights, g.constant(0.0))
    out = g.apply("mat_mul", weights, split(v, shared, 0, 2, 1, 3))
    return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], out.shape[1] * out.shape[3])


define(name="attention", inputs=(3, 4), shape=_rule, meaning=attention, flops=_flops,
       decompose=_parts,
       attributes={"num_heads": REQUIRED, "is_causal": 0, "scale": None})
