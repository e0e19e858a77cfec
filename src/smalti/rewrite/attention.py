"""Recognises attention in the matrix products, masks and softmax that exporters write for it.

    mat_mul(softmax(mat_mul(q * c, k * d) * e + mask), v)
        -> attention(q', k', v', mask', scale=c * d * e)

q [..., t, d], k [..., d, s] and v [..., s, e] have one or two axes in front: heads, or batch and
heads. q' [n, t, h * d], k' and v' are the same values transposed and reshaped to what the operation
`attention` reads. The linear layers in front give that order of axes anyway, and the exporter's
transposes undo it; so the transposes added here cancel the exporter's (`movement.py` removes both).
"""

from __future__ import annotations

import math

import numpy as np

from smalti.graph import Value
from smalti.graph.operations.attention import LOWEST
from smalti.rewrite.movement import MOVEMENTS
from smalti.rewrite.rules import Made, Procedure

MASKED = -1e9
"""An entry of a mask below this number excludes its key: no score outweighs it."""


def raised(value: Value, made: Made) -> Value | None:
    """The attention whose last operation is the matrix product `value`, as a value equal to it;
    None if `value` is no such product."""
    weights, v = value.node.inputs
    inner = _unguarded(weights)
    scores = _softmaxed(inner)
    if scores is None:
        return None
    scores, mask = _unmasked(scores)
    product, scale = _unscaled(scores, made)
    if not _is(product, "mat_mul") or product.shape != scores.shape:
        return None
    (q, first), (k, second) = (_unscaled(x, made) for x in product.node.inputs)
    outer = _batch_and_heads(q, v)
    if outer is None or not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]):
        return None
    causal = mask is not None and _is_causal(mask)
    mask = None if causal or mask is None or _is_nothing(mask) else _fitted(mask, outer, made)
    if mask is not None and _masks_whole_rows(mask):
        return None
    if mask is not None and mask.kind != "constant" and inner is weights:
        least = value.graph.constant(LOWEST / 4, mask.dtype)  # finite, as in the model
        mask = made(value.graph.apply("max", mask, least))
    result = value.graph.apply(
        "attention", _tokens(q, outer, (0, 2, 1, 3), made), _tokens(k, outer, (0, 3, 1, 2), made),
        _tokens(v, outer, (0, 2, 1, 3), made), *([] if mask is None else [mask]),
        num_heads=outer[1], is_causal=int(causal), scale=scale * first * second)
    (n, h), (t, e) = outer, value.shape[-2:]
    heads = made(made(made(result).reshape(n, t, h, e)).transpose(0, 2, 1, 3))
    return made(heads.reshape(*value.shape))


def _is(value: Value, *operations: str) -> bool:
    return value.node is not None and value.node.operation.name in operations


def _unguarded(weights: Value) -> Value:
    """where(is_nan(x), 0, x) -> x. Softmax of a row masked throughout is NaN; the operation
    `attention` gives 0 for it by itself."""
    if _is(weights, "where"):
        question, number, x = weights.node.inputs
        if _is(question, "is_nan") and question.node.inputs[0] is x and number.kind == "constant" \
                and not number.data.any():
            return x
    return weights


def _softmaxed(weights: Value) -> Value | None:
    """softmax(x) along the last axis -> x; None for anything else."""
    if _is(weights, "softmax") and weights.node.attributes["axis"] in (-1, len(weights.shape) - 1):
        return weights.node.inputs[0]
    return None


def _unmasked(scores: Value) -> tuple[Value, Value | None]:
    """Scores without their mask, and the mask, None if there is none:
    x + mask -> x, mask; where(seen, x, lowest) -> x, where(seen, 0, -inf)."""
    g = scores.graph
    if _is(scores, "add"):
        for x, mask in (scores.node.inputs, scores.node.inputs[::-1]):
            inner = x
            while _is(inner, "mul") and any(v.type.size == 1 for v in inner.node.inputs):
                inner = max(inner.node.inputs, key=lambda v: v.type.size)
            if _is(inner, "mat_mul") and x.shape == scores.shape:
                return x, mask
    if _is(scores, "where"):
        seen, *branches = scores.node.inputs
        for x, lowest in (branches, branches[::-1]):
            if lowest.kind == "constant" and (lowest.data < MASKED).all() \
                    and x.shape == scores.shape:
                numbers = [g.constant(0.0, x.dtype), g.constant(-np.inf, x.dtype)]
                mask = g.apply("where", seen, *(numbers if x is branches[0] else numbers[::-1]))
                return x, mask
    return scores, None


def _unscaled(value: Value, made: Made) -> tuple[Value, float]:
    """x * c -> x, c, for a constant number c. Reshapes and transposes around the product are kept:
    transpose(x * c) -> transpose(x), c. Without a factor: the value itself, 1."""
    if _is(value, "mul"):
        for x, c in (value.node.inputs, value.node.inputs[::-1]):
            if c.kind == "constant" and c.type.size == 1 and x.shape == value.shape:
                inner, scale = _unscaled(x, made)
                return inner, scale * float(c.data.reshape(())[()])
    elif _is(value, *MOVEMENTS):
        inner, scale = _unscaled(value.node.inputs[0], made)
        if scale != 1:
            return made(value.graph.apply(value.node.operation.name, inner,
                                          **value.node.attributes)), scale
    return value, 1.0


def _batch_and_heads(q: Value, v: Value) -> tuple[int, int] | None:
    """The extents (n, h) of batch and heads, the axes of q and v in front of tokens and channels.

    Where they are one axis of extent n * h, the reshape that joined them tells n and h. None if q
    has neither three nor four axes.
    """
    if len(q.shape) == 4:
        return q.shape[:2]
    if len(q.shape) != 3:
        return None
    for x in (q, v):
        if _is(x, "reshape") and len(x.node.inputs[0].shape) == 4:
            n, h, *rest = x.node.inputs[0].shape
            if (n * h, *rest) == x.shape:
                return n, h
    turned = any(_is(x, "transpose") and x.node.attributes["perm"] == (1, 0, 2) for x in (q, v))
    return (1, q.shape[0]) if turned else (q.shape[0], 1)


def _tokens(x: Value, outer: tuple[int, int], perm: tuple[int, ...], made: Made) -> Value:
    """x as [n, tokens, h * d]. x is split into [n, h, ...] first; `perm` brings these axes into the
    order n, tokens, h, d."""
    split = made(x.reshape(*outer, *x.shape[-2:]))
    n, tokens, heads, depth = (split := made(split.transpose(*perm))).shape
    return made(split.reshape(n, tokens, heads * depth))


def _fitted(mask: Value, outer: tuple[int, int], made: Made) -> Value:
    """The mask reshaped to [n, h, t, s], where any extent may be 1 (broadcast)."""
    shape = (1,) * (3 - len(mask.shape)) + mask.shape
    if len(shape) == 3:
        whole = shape[0] == math.prod(outer)
        shape = (*(outer if whole else (1, shape[0])), *shape[1:])
    return made(mask.reshape(*shape))


def _is_causal(mask: Value) -> bool:
    """True if the mask is a constant by which each token attends to itself and those before it."""
    if mask.kind != "constant" or len(mask.shape) < 2 \
            or mask.type.size != math.prod(mask.shape[-2:]):
        return False
    rows = mask.data.reshape(mask.shape[-2:])
    later = np.triu(np.ones(rows.shape, bool), 1)
    return bool(later.any() and not rows[~later].any() and (rows[later] < MASKED).all())


def _is_nothing(mask: Value) -> bool:
    """True if the mask is a constant of zeros, which masks nothing."""
    return mask.kind == "constant" and not mask.data.any()


def _masks_whole_rows(mask: Value) -> bool:
    """True if the mask is a constant with a row masked throughout by large finite numbers.

    Softmax of such a row is uniform, so the model computes the mean of all values there; the
    operation `attention` would give 0, as for minus infinity.
    """
    return mask.kind == "constant" and bool(
        ((mask.data < LOWEST).all(-1) & np.isfinite(mask.data).any(-1)).any())


ATTENTION_RULES = (Procedure(("mat_mul",), raised),)
