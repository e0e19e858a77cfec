"""Attention and rotary position embedding become the composites `attention` and `rotary_embedding`,
which have kernels.

What these composites do not compute (softcap, scores as a result, lengths known only while running,
sums rounded to bf16) is left to the function body by which the ONNX standard defines the operator.
"""

from __future__ import annotations

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.movement import joined, part, taken
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import DTYPES


@rule("Attention")
def attention(call: NodeCall) -> list[Value | None] | None:
    rank, dtype = len(call[0].shape), call[0].dtype
    if call.wants(3) or call.number("softcap", 0.0) or call.optional(6) is not None \
            or dtype not in ("f16", "f32", "f64") or rank not in (3, 4):
        return None
    q, k, v = (heads_apart(call, i, "q_num_heads" if i == 0 else "kv_num_heads")
               for i in range(3))
    past_key, past_value = call.optional(4), call.optional(5)
    if (past_key is None) != (past_value is None):
        raise InputError("past_key and past_value are given together")
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = joined(call, [past_key, k], 2), joined(call, [past_value, v], 2)
    present = [k, v]
    (n, heads, tokens, _), length = q.shape, k.shape[2]
    if heads % k.shape[1] or k.shape[1] != v.shape[1]:
        raise InputError(f"{q.type} heads look at {k.type} and {v.type}")
    k, v = (repeated(call, value, heads // k.shape[1]) for value in (k, v))
    mask, plain = mask_of(call, tokens, length, before)
    if plain is None:
        return None
    operands = [value.transpose(0, 2, 1, 3).reshape(n, value.shape[2], -1) for value in (q, k, v)]
    operands += [] if mask is None else [mask]
    y = call.apply("attention", *operands, num_heads=heads, is_causal=int(plain),
                   scale=call.number("scale", None))
    if rank == 4:
        y = y.reshape(n, tokens, heads, -1).transpose(0, 2, 1, 3)
    return [y, *present]


def heads_apart(call: NodeCall, i: int, count: str) -> Value:
    """Operand `i`, [n, tokens, heads * d] or of four axes already, as [n, heads, tokens, d];
    `count` is the attribute with the number of heads."""
    x, heads = call[i], call.integer(count, 0)
    if len(x.shape) == 4:
        return x
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        raise InputError(f"{x.type} in {heads} heads")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def repeated(call: NodeCall, x: Value, times: int) -> Value:
    """`x` [n, heads, tokens, d] with each head `times` times in a row: grouped-query attention."""
    if times == 1:
        return x
    n, heads, *rest = x.shape
    apart = call.apply("expand", x.reshape(n, heads, 1, *rest), shape=(n, heads, times, *rest))
    return apart.reshape(n, heads * times, *rest)


def mask_of(call: NodeCall, tokens: int, length: int,
            before: int) -> tuple[Value | None, bool | None]:
    """The mask that is added to the scores, None without one, and whether the composite's own
    causal mask is to be used besides.

    The latter is None if that does not suffice and the table of which token sees which key would be
    too large for a constant.
    """
    mask, dtype = call.optional(3), call[0].dtype
    causal = bool(call.integer("is_causal"))
    left, right = (call.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    if mask is not None:
        if not 1 <= len(mask.shape) <= 4:
            raise InputError(f"a mask of {mask.type}")
        mask = mask.reshape(*(1,) * (4 - len(mask.shape)), *mask.shape)
        if mask.dtype == "bool":
            mask = call.apply("where", mask, call.constant(0, dtype), call.constant(-np.inf, dtype))
        missing = length - mask.shape[3]
        if missing > 0:
            outside = call.constant(np.full((1, 1, 1, 1), -np.inf, DTYPES[dtype]), dtype)
            mask = joined(call, [mask, call.apply("expand", outside,
                                                  shape=(*mask.shape[:3], missing))], 3)
    if not (causal and before or left >= 0 or right >= 0):
        return mask, causal
    if tokens * length > CONSTANT_ELEMENTS_MAX:
        return None, None
    ahead = np.arange(length) - np.arange(tokens)[:, None] - before
    hidden = (ahead > 0 if causal else False) | (ahead > right if right >= 0 else False) \
        | (-ahead > left if left >= 0 else False)
    table = call.constant(np.where(hidden, -np.inf, 0)[None, None], dtype)
    return table if mask is None else mask + table, False


@rule("RotaryEmbedding")
def rotary_embedding(call: NodeCall) -> Value:
    x, cos, sin, places = call[0], call[1], call[2], call.optional(3)
    heads = call.integer("num_heads", 0) if len(x.shape) == 3 else 0
    width = x.shape[-1] if len(x.shape) == 4 else x.shape[-1] // max(heads, 1)
    depth = call.integer("rotary_embedding_dim", 0) or width
    if len(x.shape) not in (3, 4) or len(x.shape) == 3 and (heads < 1 or x.shape[2] % heads) \
            or not 0 < depth <= width:
        raise InputError(f"the first {depth} channels of {heads} heads of {x.type}")
    if places is not None:
        cos, sin = (taken(call, table, 0, places) for table in (cos, sin))
    rest = None
    if depth < width:
        apart = x.reshape(*x.shape[:2], heads, width) if heads else x
        rest = part(call, apart, 3, depth, width)
        x = part(call, apart, 3, 0, depth)
        x = x.reshape(*x.shape[:2], heads * depth) if heads else x
    y = call.apply("rotary_embedding", x, cos, sin, num_heads=heads,
                   interleaved=call.integer("interleaved"))
    if rest is None:
        return y
    whole = joined(call, [y.reshape(*rest.shape[:3], depth), rest], 3)
    return whole.reshape(*call[0].shape)
