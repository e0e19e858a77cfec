"""Fused operators that ONNX Runtime adds to the standard (domain com.microsoft).

They are found in models that its optimiser has written, and in quantised language models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.frontend.onnx.rules.contraction import product
from smalti.frontend.onnx.rules.movement import part, taken
from smalti.frontend.onnx.rules.quantization import cast
from smalti.graph import Value
from smalti.graph.operation import DTYPES

MICROSOFT = "com.microsoft"


@rule("Gelu", "BiasGelu", "FastGelu", "QuickGelu", domain=MICROSOFT)
def gelu(call: NodeCall) -> Value:
    x, bias = call[0], call.optional(1)
    x = x if bias is None else x + bias
    if call.operator == "QuickGelu":
        return x * call.apply("sigmoid", x * call.number("alpha", 1.702))
    return call.apply("gelu_tanh" if call.operator == "FastGelu" else "gelu", x)


@rule("BiasAdd", domain=MICROSOFT)
def bias_add(call: NodeCall) -> Value:
    return call[0] + call[1] + call[2]


@rule("CDist", domain=MICROSOFT)
def distances(call: NodeCall) -> Value:
    """Distances of each row of a [m, k] from each row of b [n, k], as [m, n]."""
    a, b = call[0], call[1]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"rows of {a.type} and {b.type} are compared; matrices of rows of equal "
                         f"length are expected")
    metric = call.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unsupported(f"the metric {metric!r}")
    apart = a.reshape(a.shape[0], 1, a.shape[1]) - b
    squares = call.apply("reduce_sum", apart * apart, axes=(2,), keepdims=0)
    return call.apply("sqrt", squares) if metric == "euclidean" else squares


# ---------------------------------------------------------------------- products


def activated(call: NodeCall, y: Value, numbers: tuple[float, ...]) -> Value:
    """The activation function that the node names, applied to `y`; `numbers` are its parameters."""
    name = call.text("activation", "")
    fields = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ()}.get(name, ())
    if name in ("", "Relu", "Tanh", "Sigmoid"):
        return call.apply(name.lower(), y) if name else y
    if name == "Clip" and len(numbers) == 2:
        return call.standard("Clip", y, *(call.constant(n, y.dtype) for n in numbers))[0]
    if name not in ("LeakyRelu", "HardSigmoid") or len(numbers) < len(fields):
        raise Unsupported(f"the activation {name!r} with the numbers {list(numbers)}")
    given: dict[str, Any] = dict(zip(fields, numbers, strict=False))
    return call.standard(name, y, **given)[0]


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(call: NodeCall) -> Value:
    (y, *_), addend = call.standard("Conv", *call.operands[:3]), call.optional(3)
    return activated(call, y if addend is None else y + addend,
                     call.numbers("activation_params", ()))


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: NodeCall) -> Value:
    numbers = (call.number(f"activation_{name}", None) for name in ("alpha", "beta", "gamma"))
    return activated(call, call.standard("Gemm", *call.operands)[0],
                     tuple(n for n in numbers if n is not None))


@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_mat_mul(call: NodeCall) -> Value:
    factors = []
    for x, side in ((call[0], "A"), (call[1], "B")):
        axes = list(range(len(x.shape)))
        if call.integer(f"transBatch{side}", 0) and len(axes) > 1:
            raise Unsupported(f"transBatch{side}")
        if call.integer(f"trans{side}", 0) and len(axes) > 1:
            x = x.transpose(*axes[:-2], axes[-1], axes[-2])
        factors.append(x)
    y, alpha = product(call, *factors), call.number("alpha", 1.0)
    return y if alpha == 1 else y * alpha


@rule("MatMulNBits", domain=MICROSOFT)
def packed_mat_mul(call: NodeCall) -> Value:
    """A matrix product with weights of 4 or 8 bits, quantised in blocks along the summed axis:
    B [n, blocks, bytes]."""
    a, b, scales, zeros = call[0], call[1], call[2], call.optional(3)
    n, k, bits = (call.integer(name) for name in ("N", "K", "bits"))
    block = call.integer("block_size")
    if bits not in (4, 8) or call.optional(4) is not None:
        raise Unsupported(f"weights of {bits} bits" if bits not in (4, 8) else "ordered rows")
    blocks = -(-k // block)
    if b.shape != (n, blocks, block * bits // 8) or scales.type.size != n * blocks:
        raise InputError(f"weights {b.type} and scales {scales.type} of [{n}, {k}] in blocks "
                         f"of {block}")
    w = cast(call, numbers_of(call, b, bits), a.dtype)
    if zeros is None:
        w = w - float(1 << bits - 1)
    else:
        if zeros.dtype == "u8":
            zeros = part(call, numbers_of(call, zeros.reshape(n, 1, -1), bits), 2, 0, blocks)
        w = w - cast(call, zeros, a.dtype).reshape(n, blocks, 1)
    w = (w * scales.reshape(n, blocks, 1)).reshape(n, blocks * block)
    y = product(call, a, part(call, w, 1, 0, k).transpose(1, 0))
    return y if call.optional(5) is None else y + call[5]


def numbers_of(call: NodeCall, packed: Value, bits: int) -> Value:
    """The numbers packed in bytes [n, m, l]: of 4 bits two in a byte, the lower half first."""
    if bits == 8:
        return packed
    low = call.apply("bitwise_and", packed, call.constant(15, "u8"))
    high = call.apply("bit_shift", packed, call.constant(4, "u8"), direction="RIGHT")
    pairs = [half.reshape(*packed.shape, 1) for half in (low, high)]
    return call.apply("concat", *pairs, axis=3).reshape(*packed.shape[:2], -1)


# ---------------------------------------------------------------------- normalisations


@rule("SimplifiedLayerNormalization")
def simplified(call: NodeCall) -> Value:
    return call.apply("rms_normalization", call[0], call[1], epsilon=call.number("epsilon", 1e-5),
                      axis=call.axis(call[0], call.integer("axis", -1)))


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_normalization(call: NodeCall) -> list[Value | None]:
    whole = call.operator == "SkipLayerNormalization"
    x, bias, epsilon = call[0] + call[1], call.optional(4 if whole else 3), \
        call.number("epsilon", 1e-12 if whole else 1e-5)
    x = x if bias is None else x + bias
    if not whole:
        y = call.apply("rms_normalization", x, call[2], axis=len(x.shape) - 1, epsilon=epsilon)
        return [y, None, None, x]
    return [normalized(call, x, call[2], call.optional(3), epsilon), None, None, x]


def normalized(call: NodeCall, x: Value, scale: Value, bias: Value | None, epsilon: float) -> Value:
    """The layer normalisation of the last axis."""
    if bias is None:
        bias = call.constant(np.zeros(scale.shape, DTYPES[x.dtype]), x.dtype)
    return call.apply("layer_normalization", x, scale, bias, axis=len(x.shape) - 1,
                      epsilon=epsilon)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embedding(call: NodeCall) -> list[Value | None]:
    """The normalised sum of the embeddings of words [n, t], their segments and positions; the
    second result is the number of words of each text."""
    words, segments, mask, places = call[0], call.optional(1), call.optional(7), call.optional(8)
    tokens = words.shape[-1]
    total = taken(call, call[2], 0, words)
    if places is not None:
        total = total + taken(call, call[3], 0, places)
    else:
        total = total + part(call, call[3], 0, 0, tokens)
    if segments is not None:
        total = total + taken(call, call[4], 0, segments)
    y = normalized(call, total, call[5], call[6], call.number("epsilon", 1e-12))
    if mask is None:
        return [y, call.constant(np.zeros(words.shape[0]), "i32"), total]
    return [y, cast(call, call.apply("reduce_sum", mask, axes=(1,), keepdims=0), "i32"), total]


# ---------------------------------------------------------------------- attention


@rule("Attention", domain=MICROSOFT)
def attention(call: NodeCall) -> list[Value | None]:
    """Attention whose queries, keys and values are computed by one product from x [n, t, c]; `past`
    has the keys and values of earlier tokens, [2, n, heads, s, d]."""
    x, w, heads, past = call[0], call[1], call.integer("num_heads", 0), call.optional(4)
    if call.integer("do_rotary", 0) or call.integer("past_present_share_buffer", 0):
        raise Unsupported("rotary embedding within, or keys kept in place")
    y = product(call, x, w)
    y = y if call.optional(2) is None else y + call[2]
    third = w.shape[1] // 3
    widths = call.integers("qkv_hidden_sizes", (third, third, third))
    if len(widths) != 3 or sum(widths) != w.shape[1]:
        raise InputError(f"weights {w.type} for {list(widths)} channels")
    ends = np.cumsum(widths).tolist()
    q, k, v = (part(call, y, 2, end - width, end)
               for end, width in zip(ends, widths, strict=True))
    before = 0 if past is None else past.shape[3]
    halves = (None, None) if past is None else (
        part(call, past, 0, i, i + 1).reshape(*past.shape[1:]) for i in range(2))
    mask = added(call, seen(call, 3, x.shape[1] + before), call.optional(5))
    y, *present = attended(call, heads, [q, k, v], mask, halves)
    return [y, call.apply("concat", *(p.reshape(1, *p.shape) for p in present), axis=0)]


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: NodeCall) -> list[Value | None]:
    """Attention of queries, keys and values [n, t, heads * d], to each of which a bias is added."""
    q, k, v, heads = call[0], call.optional(1), call.optional(2), call.integer("num_heads", 0)
    bias, past = call.optional(3), [call.optional(i) for i in (6, 7)]
    if k is None or v is None or any(len(x.shape) != 3 for x in (q, k, v)) \
            or len(call.operands) > 8 and any(x is not None for x in call.operands[8:]):
        raise Unsupported("packed queries, keys and values, or keys that are split into heads")
    operands = [q, k, v]
    if bias is not None:
        ends = np.cumsum([x.shape[2] for x in operands]).tolist()
        operands = [x + part(call, bias, 0, end - x.shape[2], end)
                    for x, end in zip(operands, ends, strict=True)]
    before = 0 if past[0] is None else past[0].shape[2]
    mask = added(call, seen(call, 4, k.shape[1] + before), call.optional(5))
    return list(attended(call, heads, operands, mask, past))


def seen(call: NodeCall, i: int, length: int) -> Value | None:
    """The padding mask that operand `i` describes, to be added to scores [n, heads, t, s].

    The operand is 1 for each key [n, s] or score [n, t, s] that counts, or it gives the number of
    keys that count [n]. None if it is missing.
    """
    mask = call.optional(i)
    if mask is None:
        return None
    if len(mask.shape) == 1:
        places = call.constant(np.arange(length), mask.dtype)
        counts = call.apply("less", places, mask.reshape(mask.shape[0], 1))
    else:
        counts = call.apply("not", call.apply("equal", mask, call.constant(0, mask.dtype)))
    n = counts.shape[0]
    if counts.shape[-1] != length or len(counts.shape) > 3:
        raise Unsupported(f"a mask {mask.type} of {length} keys")
    hidden = call.constant(call.number("mask_filter_value", -10000.0), call[0].dtype)
    scores = call.apply("where", counts, call.constant(0, call[0].dtype), hidden)
    return scores.reshape(n, 1, -1, length)


def added(call: NodeCall, a: Value | None, b: Value | None) -> Value | None:
    """The sum of two masks, either of which may be missing."""
    return b if a is None else a if b is None else a + b


def attended(call: NodeCall, heads: int, operands: list[Value], mask: Value | None,
             past: Iterable[Value | None]) -> tuple[Value, ...]:
    """The results of the standard's Attention: its output, all keys, all values."""
    scale = call.number("scale", 0.0)
    fields: dict[str, Any] = {"scale": scale} if scale else {}
    found = call.standard("Attention", *operands, mask, *past, q_num_heads=heads,
                          kv_num_heads=heads, is_causal=call.integer("unidirectional", 0), **fields)
    return tuple(found[:3])
