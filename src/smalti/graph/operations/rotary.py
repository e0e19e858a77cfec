"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864; ONNX `RotaryEmbedding`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import Type, define


def _rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, cos, sin = types
    heads, rank = attributes["num_heads"], len(x.shape)
    fits = rank == 4 and heads == 0 or rank == 3 and heads > 0 and x.shape[2] % heads == 0
    depth = x.shape[-1] // heads if fits and heads else x.shape[-1] if fits else 1
    if depth % 2:
        raise InputError(f"rotary_embedding of {x} with {heads} heads: [n, tokens, heads * d], or "
                         f"[n, heads, tokens, d] with num_heads 0, and an even d are expected")
    batch, tokens = x.shape[0], x.shape[rank - 2]
    if cos.shape != sin.shape or cos.shape not in [
            (n, tokens, d) for n in (1, batch) for d in (depth // 2, depth)]:
        raise InputError(f"rotary_embedding of {x} with {heads} heads: cosines and sines of "
                         f"{[batch, tokens, depth // 2]} are expected, got {cos} and {sin}")
    return x


def rotary_embedding(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, interleaved: int,
                     num_heads: int) -> np.ndarray:
    """x with each pair (a, b) of a head's channels rotated: (a cos - b sin, a sin + b cos).

    x is [n, t, heads * d], or [n, heads, t, d] with `num_heads` 0. cos and sin are
    [n or 1, t, d / 2], an angle for each pair, or [n or 1, t, d], one for each channel. Pair i has
    the channels 2 i and 2 i + 1 if `interleaved`, else i and i + d / 2.

    For ONNX's `position_ids`, gather rows of the tables before; for a `rotary_embedding_dim` below
    d, slice before and concat after.
    """
    heads = x.reshape(*x.shape[:2], num_heads, -1) if num_heads else x.transpose(0, 2, 1, 3)
    half, axis = heads.shape[-1] // 2, -1 if interleaved else -2
    pairs = heads.reshape(*heads.shape[:-1], *((half, 2) if interleaved else (2, half)))
    cos, sin = (table.reshape(*table.shape[:2], 1, *((half, -1) if interleaved else (-1, half)))
                for table in (cos, sin))
    a, b = np.split(pairs, 2, axis)
    turned = (pairs * cos + np.concatenate([-b, a], axis) * sin).reshape(heads.shape)
    return turned.reshape(x.shape) if num_heads else turned.transpose(0, 2, 1, 3)


def _parts(g, x, cos, sin, interleaved: int, num_heads: int):
    depth = x.shape[-1] // (num_heads or 1)
    half, axis = depth // 2, 4 if interleaved else 3
    outer = (x.shape[0], x.shape[1], num_heads) if num_heads else x.shape[:3]
    pairs = x.reshape(*outer, *((half, 2) if interleaved else (2, half)))
    a, b = (g.apply("slice", pairs, axis=axis, start=i, end=i + 1) for i in (0, 1))
    n, tokens, angles = cos.shape
    table = (n, tokens, 1) if num_heads else (n, 1, tokens)
    table = (*table, half, angles // half) if interleaved else (*table, angles // half, half)
    other = g.apply("concat", g.apply("neg", b), a, axis=axis)
    return (pairs * cos.reshape(*table) + other * sin.reshape(*table)).reshape(*x.shape)


define(name="rotary_embedding", inputs=(3, 3), shape=_rule, meaning=rotary_embedding,
       attributes={"interleaved": 0, "num_heads": 0}, decompose=_parts,
       flops=lambda types, result, attributes: 3 * result.size)
