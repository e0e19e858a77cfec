"""Scaled dot-product attention (Vaswani et al. 2017; ONNX `Attention` with 3-D inputs)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import REQUIRED, Type, define
from smalti.graph.operations.normalization import softmax


def _rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    q, k, v = types
    heads = attributes["num_heads"]
    if not (len(q.shape) == len(k.shape) == len(v.shape) == 3 and k.shape[2] == q.shape[2]
            and k.shape[:2] == v.shape[:2] and q.shape[0] == k.shape[0]
            and heads > 0 and q.shape[2] % heads == 0 and v.shape[2] % heads == 0):
        raise InputError(f"attention of {q}, {k}, {v} with {heads} heads: [n, tokens, heads * d] "
                         f"are expected")
    return Type((*q.shape[:2], v.shape[2]), q.dtype)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, num_heads: int, is_causal: int,
              scale: float | None) -> np.ndarray:
    """softmax(q @ k^T * scale) @ v for each head; scale None means 1 / sqrt(d).

    q [n, t, heads * d], k [n, s, heads * d], v [n, s, heads * e] -> [n, t, heads * e].
    """
    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    factor = 1 / math.sqrt(q.shape[2] // num_heads) if scale is None else scale
    scores = split(q) @ split(k).swapaxes(2, 3) * np.float32(factor)
    if is_causal:
        later = np.triu(np.ones(scores.shape[2:], bool), 1)
        scores = np.where(later, np.float32(-np.inf), scores)
    out = softmax(scores, -1) @ split(v)
    return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], v.shape[2])


def _flops(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    (n, t, width), s = types[0].shape, types[1].shape[1]
    return n * t * s * (2 * width + 2 * result.shape[2] + 5 * attributes["num_heads"])


def _parts(g, q, k, v, num_heads: int, is_causal: int, scale: float | None):
    def split(x, *perm: int):
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(*perm)

    factor = 1 / math.sqrt(q.shape[2] // num_heads) if scale is None else scale
    scores = g.apply("mat_mul", split(q, 0, 2, 1, 3), split(k, 0, 2, 3, 1)) * factor
    if is_causal:  # minus a number that no score reaches: exp gives 0 either way
        t, s = scores.shape[2:]
        ahead = g.constant(np.arange(s, dtype=np.float32)) - np.arange(t, dtype=np.float32)[:, None]
        scores = scores - g.apply("min", g.apply("relu", ahead), g.constant(1.0)) * 1e30
    out = g.apply("mat_mul", g.apply("softmax", scores), split(v, 0, 2, 1, 3))
    return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], v.shape[2])


define(name="attention", inputs=(3, 3), shape=_rule, meaning=attention, flops=_flops,
       decompose=_parts,
       attributes={"num_heads": REQUIRED, "is_causal": 0, "scale": None})
