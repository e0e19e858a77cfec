"""The rules that raise spelled-out operations to the composites that kernels exist for.

Exporters write a normalisation or an activation as five to ten nodes, and each exporter writes it
differently. Rules build on each other, so that few are needed: x / sqrt(mean(x * x) + c) becomes an
RMS normalisation, which becomes a layer normalisation where a mean was subtracted from x before.

The functions between the rules are their conditions (True if a rule applies to what its names are
bound to) and their derivations (what names that stand in the result only are bound to).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from smalti.graph.operation import Type
from smalti.rewrite.pattern import Bindings
from smalti.rewrite.rules import Rule

ONE = np.ones(3, np.float32)


# ---------------------------------------------------------------------- normalisations


def _rows(bound: Bindings) -> bool:
    """True if the mean is taken over the last axes, and c is one number."""
    rank = len(bound["x"].shape)
    axes = sorted(axis % rank for axis in bound["k"])
    return bound["c"].type.size == 1 and axes == list(range(rank - len(axes), rank)) != []


def _of_rows(bound: Bindings) -> Mapping[str, Any]:
    """a: weights of 1 for a row; j: the first axis of a row, from the end; e: the epsilon."""
    count = len(bound["k"])
    return {"a": np.ones(bound["x"].shape[-count:], np.float32), "j": -count,
            "e": float(bound["c"].data.reshape(())[()])}


def _same_rows(bound: Bindings) -> bool:
    """True if the mean is taken over the axes that are normalised."""
    rank = len(bound["x"].shape)
    return sorted(axis % rank for axis in bound["k"]) == list(range(bound["j"] % rank, rank))


def _zeros(bound: Bindings) -> Mapping[str, Any]:
    return {"zeros": np.zeros(bound["a"].shape, np.float32)}


def _weighs_rows(bound: Bindings) -> bool:
    """True if w has a number for each element of a row, and is the same for all rows."""
    shape = bound["x"].shape
    row = shape[bound["j"] % len(shape):]
    whole = (1,) * (len(shape) - len(bound["w"].shape)) + bound["w"].shape
    return whole == (1,) * (len(shape) - len(row)) + row


def _row(bound: Bindings) -> Mapping[str, Any]:
    """s: the shape of a row, the axes from j on."""
    shape = bound["x"].shape
    return {"s": shape[bound["j"] % len(shape):]}


def _no_shift(bound: Bindings) -> bool:
    """True if w weighs rows and the bias b is 0, which a factor leaves as it is."""
    return _weighs_rows(bound) and not bound["b"].data.any()


def _groups(bound: Bindings) -> bool:
    """True if x was reshaped so that each group of channels became a single channel: instance
    normalisation, by which exporters spell out group normalisation."""
    inner, outer = bound["x"].type, bound["t"]
    shape, groups = bound["s"], bound["g"]
    return (len(outer) > 2 and shape[:2] == (outer[0], groups) and outer[1] % groups == 0
            and inner.size == math.prod(outer))


def _spread(bound: Bindings) -> Mapping[str, Any]:
    """Shapes by which a number a group, p, is repeated, q, to a number a channel, r."""
    channels, groups = bound["t"][1], bound["g"]
    return {"p": (groups, 1), "q": (groups, channels // groups), "r": (channels,)}


def _weighs_channels(bound: Bindings) -> bool:
    """True if u has a number for each channel of x [n, c, ...]."""
    shape = bound["x"].shape
    whole = (1,) * (len(shape) - len(bound["u"].shape)) + bound["u"].shape
    return whole == (1, shape[1], *(1 for _ in shape[2:]))


def _channels(bound: Bindings) -> Mapping[str, Any]:
    return {"r": (bound["x"].shape[1],)}


NORMALIZATIONS = (
    Rule("x * reciprocal(sqrt(y))", "x / sqrt(y)"),
    Rule("x / sqrt(reduce_mean(x * x, axes=k) + c)",
         "rms_normalization(x, a, axis=j, epsilon=e)", _rows, _of_rows, {"k": (1,)}),
    Rule("rms_normalization(x, a, axis=j, epsilon=e) * w",
         "rms_normalization(x, a * reshape(w, shape=s), axis=j, epsilon=e)", _weighs_rows, _row,
         {"a": ONE, "w": (1, 3), "j": -1, "e": 1e-5}),
    Rule("rms_normalization(x - reduce_mean(x, axes=k), a, axis=j, epsilon=e)",
         "layer_normalization(x, a, zeros, axis=j, epsilon=e)", _same_rows, _zeros,
         {"k": (-1,), "a": ONE, "j": -1, "e": 1e-5}),
    Rule("layer_normalization(x, a, b, axis=j, epsilon=e) * w",
         "layer_normalization(x, a * reshape(w, shape=s), b, axis=j, epsilon=e)", _no_shift, _row,
         {"a": ONE, "b": 0 * ONE, "w": (3,), "j": 1, "e": 1e-5}),
    Rule("layer_normalization(x, y, b, axis=j, epsilon=e) + w",
         "layer_normalization(x, y, reshape(w, shape=s) + b, axis=j, epsilon=e)", _weighs_rows,
         _row, {"y": (3,), "b": ONE, "w": (3,), "j": 1, "e": 1e-5}),
    Rule("reshape(group_normalization(reshape(x, shape=s), y, z, num_groups=g, epsilon=e), "
         "shape=t)",
         "group_normalization(reshape(x, shape=t), "
         "reshape(expand(reshape(y, shape=p), shape=q), shape=r), "
         "reshape(expand(reshape(z, shape=p), shape=q), shape=r), num_groups=g, epsilon=e)",
         _groups, _spread, {"x": (2, 4, 15), "y": (2,), "z": (2,), "s": (2, 2, 30), "g": 2,
                            "e": 1e-5, "t": (2, 4, 3, 5)}),
    Rule("group_normalization(x, y, b, num_groups=g, epsilon=e) * u",
         "group_normalization(x, y * reshape(u, shape=r), b, num_groups=g, epsilon=e)",
         lambda bound: _weighs_channels(bound) and not bound["b"].data.any(), _channels,
         {"x": (2, 4, 3), "y": (4,), "b": np.zeros(4, np.float32), "u": (4, 1), "g": 2,
          "e": 1e-5}),
    Rule("group_normalization(x, y, z, num_groups=g, epsilon=e) * u",
         "group_normalization(x, y * reshape(u, shape=r), z * reshape(u, shape=r), num_groups=g, "
         "epsilon=e)", _weighs_channels, _channels,
         {"x": (2, 4, 3), "y": (4,), "z": (4,), "u": (4, 1), "g": 2, "e": 1e-5}),
    Rule("group_normalization(x, y, z, num_groups=g, epsilon=e) + u",
         "group_normalization(x, y, z + reshape(u, shape=r), num_groups=g, epsilon=e)",
         _weighs_channels, _channels,
         {"x": (2, 4, 3), "y": (4,), "z": (4,), "u": (1, 4, 1), "g": 2, "e": 1e-5}),
)


# ---------------------------------------------------------------------- activations


ACTIVATIONS = (
    Rule("x * sigmoid(x)", "silu(x)"),
    Rule("x / (exp(neg(x)) + 1)", "silu(x)"),
    Rule("x * sigmoid(x * 1.702)", "quick_gelu(x)"),
    Rule("x * 0.5 * (erf(x * 0.7071067811865476) + 1)", "gelu(x)"),
    Rule("x * (erf(x * 0.7071067811865476) + 1) * 0.5", "gelu(x)"),
    Rule("x * ((erf(x * 0.7071067811865476) + 1) * 0.5)", "gelu(x)"),
    Rule("x * x * x * 0.044715 + x", "(x * x * 0.044715 + 1) * x"),
    Rule("x * 0.5 * (tanh((x * x * 0.044715 + 1) * x * 0.7978845608) + 1)", "gelu_tanh(x)"),
    Rule("x * (tanh((x * x * 0.044715 + 1) * x * 0.7978845608) + 1) * 0.5", "gelu_tanh(x)"),
    Rule("x * ((tanh((x * x * 0.044715 + 1) * x * 0.7978845608) + 1) * 0.5)", "gelu_tanh(x)"),
    Rule("x * 0.5 * (tanh((x * x * 0.0356774081 + 0.7978845608) * x) + 1)", "gelu_tanh(x)"),
)


def _one_axis(bound: Bindings) -> bool:
    return len(bound["k"]) == 1


def _axis(bound: Bindings) -> Mapping[str, Any]:
    return {"j": bound["k"][0]}


SOFTMAX = (
    Rule("exp(x - reduce_max(x, axes=k)) / reduce_sum(exp(x - reduce_max(x, axes=k)), axes=k)",
         "softmax(x, axis=j)", _one_axis, _axis, {"k": (1,)}),
)


# ---------------------------------------------------------------------- rotary embedding


def _turns(bound: Bindings) -> Mapping[str, Any]:
    """How x becomes [n, t, h * d], the operand of `rotary_embedding`, and the result like x again.

    x is [n, h, t, d], [n, t, h, d] or [n, t, d]. y and z, the tables of cosines and sines, have an
    extent of 1 where x has heads, which tells the first two apart. Empty if y and z do not fit x as
    such tables.
    """
    x, tables = bound["t"] if "t" in bound else bound["x"].shape, bound["y"].shape
    rank = len(x)
    tables = (1,) * (rank - len(tables)) + tables
    for axis in {3: (None,), 4: (1, 2)}.get(rank, ()):
        rest = [n for i, n in enumerate(tables) if i != axis]
        tokens, heads = (x[1], 1) if axis is None else (x[3 - axis], x[axis])
        if (axis is None or tables[axis] == 1) and rest[1:] == [tokens, x[-1]] \
                and rest[0] in (1, x[0]):
            split = x if axis is None else (x[0], tokens, heads, x[-1])
            return {"p": (0, 2, 1, 3) if axis == 1 else tuple(range(rank)), "h": heads,
                    "joined": (x[0], tokens, heads * x[-1]), "table": tuple(rest),
                    "pairs": int("t" in bound), "split": split}
    return {}


def _halves(bound: Bindings) -> bool:
    """True if the slices are the halves of the last axis of x, put together in opposite order."""
    last, depth = len(bound["x"].shape) - 1, bound["x"].shape[-1]
    return (bound["k"] == last and bound["m"] in (-1, last) and bound["begin"] == 0
            and 2 * bound["half"] == bound["to"] == depth and _has_tables(bound))


def _pairs(bound: Bindings) -> bool:
    """True if the two channels of each pair of neighbours on the last axis are exchanged."""
    *outer, depth = bound["t"]
    last = len(bound["t"])
    return (bound["s"] == (*outer, depth // 2, 2) and bound["k"] == last
            and bound["m"] in (-1, last) and bound["start"] == 0 and bound["middle"] == 1
            and _has_tables(bound))


def _has_tables(bound: Bindings) -> bool:
    same = bound["y"].shape == bound["z"].shape
    return same and bool(_turns(bound))


def _turned(x: str) -> str:
    """The pattern that rotates the pairs of channels of `x`."""
    return (f"transpose(reshape(rotary_embedding(reshape(transpose({x}, perm=p), shape=joined), "
            "reshape(y, shape=table), reshape(z, shape=table), interleaved=pairs, num_heads=h), "
            "shape=split), perm=p)")


def _exchanged(x: str) -> str:
    """The pattern that exporters write for interleaved pairs: x * cos + exchanged(x) * sin."""
    return (f"{x} * y + reshape(concat("
            "neg(slice(reshape(x, shape=s), axis=k, start=middle, end=stop)), "
            "slice(reshape(x, shape=s), axis=k, start=start, end=middle), axis=m), shape=t) * z")


PAIRS = {"x": (2, 5, 3, 4), "y": (1, 5, 1, 4), "z": (1, 5, 1, 4), "s": (2, 5, 3, 2, 2), "k": 4,
         "start": 0, "middle": 1, "stop": 2, "m": -1, "t": (2, 5, 3, 4)}

ROTARY = (
    Rule("x * y + concat(neg(slice(x, axis=k, start=half, end=to)), "
         "slice(x, axis=k, start=begin, end=half), axis=m) * z",
         _turned("x"), _halves, _turns,
         {"x": (2, 3, 5, 4), "y": (1, 1, 5, 4), "z": (1, 1, 5, 4), "k": 3, "half": 2, "to": 4,
          "begin": 0, "m": -1}),
    Rule("neg(reshape(x, shape=s))", "reshape(neg(x), shape=s)", example={"s": (6,)}),
    Rule(_exchanged("x"), _turned("x"), _pairs, _turns, PAIRS),
    Rule(_exchanged("reshape(x, shape=t)"), _turned("reshape(x, shape=t)"), _pairs, _turns,
         {**PAIRS, "x": (2, 5, 12)}),
)


# ---------------------------------------------------------------------- linear layers


def _rows_of_matrix(bound: Bindings) -> bool:
    x, weight = bound["x"].shape, bound["w"].shape
    return len(weight) == 2 and len(x) in (2, 3) and x[-1] == bound["s"][-1]


def _product(bound: Bindings) -> Mapping[str, Any]:
    return {"t": (*bound["s"][:-1], bound["w"].shape[1])}


def _many_axes(bound: Bindings) -> bool:
    return len(bound["x"].shape) > 3 and len(bound["w"].shape) == 2


def _three_axes(bound: Bindings) -> Mapping[str, Any]:
    first, *_, last = shape = bound["x"].shape
    return {"s": (first, math.prod(shape[1:-1]), last),
            "t": (*shape[:-1], bound["w"].shape[1])}


def _from_tokens(bound: Bindings) -> bool:
    return (len(bound["s"]) == 4 and bound["p"] == (0, 2, 1) and bound["y"].shape == bound["s"]
            and len(bound["w"].shape) == 2 and len(bound["x"].shape) == 3)


def _to_tokens(bound: Bindings) -> Mapping[str, Any]:
    n, tokens, _ = bound["x"].shape
    return {"r": (n, bound["w"].shape[1], tokens)}


def _along_last(bound: Bindings) -> bool:
    return bound["w"].shape == bound["x"].shape[-1:] == bound["s"][-1:]


LINEAR = (
    Rule("mat_mul(reshape(x, shape=s), w)", "reshape(mat_mul(x, w), shape=t)", _rows_of_matrix,
         _product, {"x": (2, 3, 4), "s": (6, 4), "w": (4, 5)}),
    Rule("mat_mul(x, w)", "reshape(mat_mul(reshape(x, shape=s), w), shape=t)", _many_axes,
         _three_axes, {"x": (2, 3, 4, 5), "w": (5, 6)}),
    Rule("reshape(transpose(mat_mul(x, w) + v, perm=p), shape=s) + y",
         "reshape(transpose(mat_mul(x, w) + v + transpose(reshape(y, shape=r), perm=p), perm=p), "
         "shape=s)", _from_tokens, _to_tokens,
         {"x": (2, 12, 3), "w": (3, 5), "v": (5,), "p": (0, 2, 1), "s": (2, 5, 3, 4),
          "y": (2, 5, 3, 4)}),
    Rule("reshape(x, shape=s) + w", "reshape(x + w, shape=s)", _along_last,
         example={"x": (2, 3, 4), "s": (6, 4), "w": (4,)}),
)

# ---------------------------------------------------------------------- what goes into an operand


def _of_image(bound: Bindings) -> bool:
    """True if zeros are added around the image only: not along batch and channels."""
    half = len(bound["p"]) // 2
    return bound["m"] == "constant" and bound["z"] == 0 and not any(
        bound["p"][i] for i in (0, 1, half, half + 1))


def _all_pads(bound: Bindings) -> Mapping[str, Any]:
    """r: the pads of the convolution and those in front of it together."""
    half = len(bound["p"]) // 2
    return {"r": tuple(a + b for a, b in zip(bound["p"][2:half] + bound["p"][half + 2:],
                                             bound["q"], strict=True))}


def _wider(bound: Bindings) -> bool:
    return (bound["y"].dtype, bound["t"]) == ("i32", "i64")


PADDED = {"x": (1, 2, 5, 4), "y": (3, 2, 3, 3), "z": 0.0, "m": "constant", "s": (1, 1),
          "p": (0, 0, 1, 2, 0, 0, 0, 1), "q": (1, 0, 1, 0), "d": (1, 1), "g": 1}

OPERANDS = (
    Rule("conv(pad(x, pads=p, mode=m, value=z), y, strides=s, pads=q, dilations=d, group=g)",
         "conv(x, y, strides=s, pads=r, dilations=d, group=g)", _of_image, _all_pads, PADDED),
    Rule("conv(pad(x, pads=p, mode=m, value=z), y, w, strides=s, pads=q, dilations=d, group=g)",
         "conv(x, y, w, strides=s, pads=r, dilations=d, group=g)", _of_image, _all_pads,
         {**PADDED, "w": (3,)}),
    Rule("gather(x, cast(y, to=t))", "gather(x, y)", _wider,
         example={"x": (5, 4), "y": Type((3,), "i32"), "t": "i64"}),
)

COMPOSITES: tuple[Rule, ...] = (*NORMALIZATIONS, *ACTIVATIONS, *SOFTMAX, *ROTARY, *LINEAR,
                                *OPERANDS)
