"""Attention and rotary position embedding become the composites `attention` and `rotary_embedding`,
which have kernels.

What the composite `attention` does not compute (softcap, scores as a result, lengths known only
while running, sums rounded to bf16) is spelled out as products, softmax and masks, in the order in
which the ONNX standard defines the operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.messages import node
from smalti.frontend.onnx.registry import EXPANDED, NodeCall, Results, rule
from smalti.frontend.onnx.rules.movement import joined, part, taken
from smalti.frontend.onnx.steps import STANDARD, ScopedNode, same
from smalti.frontend.onnx.tensors import ELEMENT_OF, dtype_of
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import DTYPES


@rule("Attention")
def attention(call: NodeCall) -> list[Value | None]:
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
    plain = None
    if not (call.wants(3) or call.number("softcap", 0.0) or call.optional(6) is not None) \
            and q.dtype in ("f16", "f32", "f64"):
        mask, plain = mask_of(call, tokens, length, before)
    if plain is None:
        k, v = (repeated(call, value, heads // k.shape[1]) for value in (k, v))
        y, scores = spelled_out(call, q, k, v, before)
        return [y if len(call[0].shape) == 4 else packed(y), *present, scores]
    operands = [value.transpose(0, 2, 1, 3).reshape(n, value.shape[2], -1) for value in (q, k, v)]
    operands += [] if mask is None else [mask]
    y = call.apply("attention", *operands, num_heads=heads, is_causal=int(plain),
                   scale=call.number("scale", None))
    if len(call[0].shape) == 4:
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


def packed(x: Value) -> Value:
    """[n, heads, tokens, d] as [n, tokens, heads * d]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def scaled_products(call: NodeCall, q: Value, k: Value) -> Value:
    """The scores of each token for each key; both are scaled by the root, so that the sums of short
    numbers do not overflow."""
    scale = call.number("scale", None)
    with np.errstate(invalid="ignore"):  # the root of a negative scale is not a number
        root = np.sqrt(np.float32(1 / np.sqrt(q.shape[3]) if scale is None else scale))
    factor = call.constant(root, q.dtype)
    return call.apply("mat_mul", q * factor, k.transpose(0, 1, 3, 2) * factor)


def spelled_out(call: NodeCall, q: Value, k: Value, v: Value, before: int) -> tuple[Value, Value]:
    """What `Attention` gives for heads that lie apart, with `before` keys of the past; and its
    scores, at the place that `qk_matmul_output_mode` names."""
    dtype = q.dtype
    products = capped = scaled_products(call, q, k)
    if softcap := call.number("softcap", 0.0):
        cap = call.constant(softcap, dtype)
        capped = call.apply("tanh", products / cap) * cap
    bias = bias_of(call, q.shape[2], k.shape[2], before)
    biased = capped if bias is None else capped + bias
    precision = call.integer("softmax_precision", None)
    inner = dtype if precision is None else dtype_of(precision, call.where)
    weights = cast(call, call.apply("softmax", cast(call, biased, inner), axis=3), dtype)
    if bias is not None:  # a token that no key is open to gets 0, where softmax gives no number
        most = call.apply("reduce_max", bias, axes=(3,))
        shut = call.apply("equal", most, call.constant(-np.inf, dtype))
        weights = call.apply("where", shut, call.constant(0, dtype), weights)
    scores = {0: products, 1: capped, 2: biased, 3: weights}
    mode = call.integer("qk_matmul_output_mode", 0)
    if mode not in scores:
        raise InputError(f"qk_matmul_output_mode {mode}; 0 to 3 are expected")
    return call.apply("mat_mul", weights, v), scores[mode]


def bias_of(call: NodeCall, tokens: int, length: int, before: int) -> Value | None:
    """What is added to the scores, [1 or n, 1 or heads, tokens, length]: the given mask, and -inf
    for keys behind the token, outside of its window, or beyond the length of their sequence."""
    bias, dtype, lengths = added_mask(call, length), call[0].dtype, call.optional(6)
    left, right = (call.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    if lengths is not None and call.optional(4) is not None:
        raise InputError("lengths of the keys are given, and keys of the past")
    key = call.constant(call.counted(length)[None, None, None, :], "i64")
    bounds: list[Value] = []
    token = call.constant(call.counted(tokens)[None, None, :, None] + before, "i64")
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        token = token + (lengths - call.constant(tokens, "i64"))
        bounds.append(call.apply("less", key, lengths))
    if call.integer("is_causal"):
        bounds.append(call.apply("less_or_equal", key, token))
    if left >= 0:
        bounds.append(call.apply("greater_or_equal", key, token - call.constant(left, "i64")))
    if right >= 0:
        bounds.append(call.apply("less_or_equal", key, token + call.constant(right, "i64")))
    for inside in bounds:
        more = call.apply("where", inside, call.constant(0, dtype), call.constant(-np.inf, dtype))
        bias = more if bias is None else bias + more
    return bias


def added_mask(call: NodeCall, length: int) -> Value | None:
    """The given mask as numbers to add to scores of four axes; keys that it does not reach are
    hidden. None where none is given."""
    mask, dtype = call.optional(3), call[0].dtype
    if mask is None:
        return None
    if not 1 <= len(mask.shape) <= 4:
        raise InputError(f"a mask of {mask.type}")
    mask = mask.reshape(*(1,) * (4 - len(mask.shape)), *mask.shape)
    if mask.dtype == "bool":
        mask = call.apply("where", mask, call.constant(0, dtype), call.constant(-np.inf, dtype))
    mask, missing = cast(call, mask, dtype), length - mask.shape[3]
    if missing > 0:
        outside = call.constant(np.full((1, 1, 1, 1), -np.inf, DTYPES[dtype]), dtype)
        mask = joined(call, [mask, call.apply("expand", outside,
                                              shape=(*mask.shape[:3], missing))], 3)
    return mask


def cast(call: NodeCall, x: Value, dtype: str) -> Value:
    """`x` in that dtype."""
    return x if x.dtype == dtype else call.apply("cast", x, to=dtype)


def mask_of(call: NodeCall, tokens: int, length: int,
            before: int) -> tuple[Value | None, bool | None]:
    """The mask that is added to the scores, None without one, and whether the composite's own
    causal mask is to be used besides.

    The latter is None if that does not suffice and the table of which token sees which key would be
    too large for a constant.
    """
    mask, dtype = added_mask(call, length), call[0].dtype
    causal = bool(call.integer("is_causal"))
    left, right = (call.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    if not (causal and before or left >= 0 or right >= 0):
        return mask, causal
    if tokens * length > CONSTANT_ELEMENTS_MAX:
        return None, None
    ahead = np.arange(length) - np.arange(tokens)[:, None] - before
    hidden = (ahead > 0 if causal else False) | (ahead > right if right >= 0 else False) \
        | (-ahead > left if left >= 0 else False)
    table = call.constant(np.where(hidden, -np.inf, 0)[None, None], dtype)
    return table if mask is None else mask + table, False


@rule("FlexAttention", domain="ai.onnx.preview")
def flex_attention(call: NodeCall) -> Results:
    """Attention whose scores and shares go through bodies of the model."""
    q, k, v = (call[i] for i in range(3))
    if {len(x.shape) for x in (q, k, v)} != {4} or q.shape[1] % k.shape[1] \
            or k.shape[1] != v.shape[1]:
        raise InputError(f"{q.type} heads look at {k.type} and {v.type}")
    k, v = (repeated(call, x, q.shape[1] // k.shape[1]) for x in (k, v))
    precision = call.integer("softmax_precision", None)
    inner = ("f64" if q.dtype == "f64" else "f32") if precision is None \
        else dtype_of(precision, call.where)
    key, given = f"{call.step.name}#scores", f"{call.step.name}#values"
    call.importer.values[key] = cast(call, scaled_products(call, q, k), inner)
    call.importer.values[given] = cast(call, v, inner)
    steps: list[ScopedNode] = []

    def body(name: str) -> None:
        nonlocal key
        if name in call:
            more, results = call.importer.body(call.step, call.graph(name), (key,))
            if len(results) != 1:
                raise InputError(f"the body {name!r} gives {len(results)} results, 1 is expected")
            steps.extend(more)
            key = results[0]

    def then(operator: str, *more: str, **fields: Any) -> None:
        nonlocal key
        reads, key = (key, *more), f"{call.step.name}#{operator}"
        made = node(operator, ["x"] * len(reads), ["y"], key, **fields)
        steps.append(ScopedNode(made, STANDARD, reads, (key,)))

    body("score_mod")
    then("Softmax", axis=3)
    body("prob_mod")
    then("MatMul", given)
    then("Cast", to=ELEMENT_OF[call[2].dtype])
    call.importer.take_next([*steps, same(key, call.step.makes[0])])
    return EXPANDED


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
