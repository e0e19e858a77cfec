"""Operations that move elements without computing: reshape, transpose, concat, resize, gather …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import DTYPES, REQUIRED, Type, bits_of, define


def _free(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    return 0


def _reshape_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), shape = types, list(attributes["shape"])
    if shape.count(-1) == 1:
        rest = -int(np.prod(shape))
        shape[shape.index(-1)] = x.size // rest if rest else 0
    result = Type(tuple(int(n) for n in shape), x.dtype)
    if result.size != x.size or any(n < 0 for n in shape):
        raise InputError(f"{x} cannot be reshaped to {list(attributes['shape'])}")
    return result


define(name="reshape", inputs=(1, 1), attributes={"shape": REQUIRED}, shape=_reshape_rule,
       meaning=lambda x, shape: x.reshape(shape), flops=_free)


def _transpose_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), perm = types, attributes["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise InputError(f"perm {list(perm)} is no order of the axes of {x}")
    return Type(tuple(x.shape[i] for i in perm), x.dtype)


define(name="transpose", inputs=(1, 1), attributes={"perm": REQUIRED}, shape=_transpose_rule,
       meaning=lambda x, perm: x.transpose(perm), flops=_free)


OPERANDS_MAX = 1 << 16
"""Values that one concat joins; the lists of shapes that it makes stay small."""


def _concat_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    axis, first = attributes["axis"], types[0]
    if not -len(first.shape) <= axis < len(first.shape):
        raise InputError(f"concat axis {axis} does not exist in {first}")
    axis %= len(first.shape)
    for other in types:
        if (len(other.shape) != len(first.shape) or other.dtype != first.dtype
                or any(i != axis and n != m
                       for i, (n, m) in enumerate(zip(first.shape, other.shape, strict=True)))):
            raise InputError(f"concat of {[str(t) for t in types]} along axis {axis}")
    shape = list(first.shape)
    shape[axis] = sum(t.shape[axis] for t in types)
    return Type(tuple(shape), first.dtype)


define(name="concat", inputs=(1, OPERANDS_MAX), attributes={"axis": REQUIRED}, shape=_concat_rule,
       meaning=lambda *arrays, axis: np.concatenate(arrays, axis), flops=_free)


def _slice_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), axis = types, attributes["axis"]
    start, end = attributes["start"], attributes["end"]
    if not 0 <= axis < len(x.shape) or not 0 <= start < end <= x.shape[axis]:
        raise InputError(f"slice [{start}:{end}] along axis {axis} lies outside {x}")
    return Type(tuple(end - start if i == axis else n for i, n in enumerate(x.shape)), x.dtype)


define(name="slice", inputs=(1, 1), shape=_slice_rule, flops=_free,
       attributes={"axis": REQUIRED, "start": REQUIRED, "end": REQUIRED},
       meaning=lambda x, axis, start, end: x.take(range(start, end), axis))


def _expand_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), shape = types, tuple(attributes["shape"])
    try:
        fits = np.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"{x} cannot be expanded to {list(shape)}")
    return Type(shape, x.dtype)


define(name="expand", inputs=(1, 1), attributes={"shape": REQUIRED}, shape=_expand_rule,
       meaning=lambda x, shape: np.broadcast_to(x, shape), flops=_free)


def _pad_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), pads, rank = types, attributes["pads"], len(types[0].shape)
    if len(pads) != 2 * rank or min(pads, default=0) < 0 \
            or attributes["mode"] not in ("constant", "edge", "reflect", "wrap"):
        raise InputError(f"pad of {x} by {list(pads)}, {attributes['mode']}: two counts an axis "
                         f"are expected, all fronts first")
    if attributes["mode"] != "constant" and any(
            n == 0 and pads[i] + pads[rank + i] for i, n in enumerate(x.shape)):
        raise InputError(f"pad of {x}: there is nothing to repeat")
    return Type(tuple(n + pads[i] + pads[rank + i] for i, n in enumerate(x.shape)), x.dtype)


def pad(x: np.ndarray, *, pads: Sequence[int],
        mode: Literal["constant", "edge", "reflect", "wrap"], value: float) -> np.ndarray:
    """x with elements added before and after each axis: `value`, or by `mode` the edge, or elements
    of x reflected at the edge or wrapped around.

    `pads` has the counts before each axis, then those after each.
    """
    around = list(zip(pads[:x.ndim], pads[x.ndim:], strict=True))
    if mode == "constant":
        return np.pad(x, around, constant_values=np.asarray(value, x.dtype))
    return np.pad(x, around, mode=mode)


define(name="pad", inputs=(1, 1), shape=_pad_rule, meaning=pad, flops=_free,
       attributes={"pads": REQUIRED, "mode": "constant", "value": 0.0})


def _resize_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), scales = types, attributes["scales"]
    if len(scales) != len(x.shape) or any(s < 1 or s != int(s) for s in scales):
        raise InputError(f"resize of {x} by {list(scales)}: one whole factor an axis is expected")
    return Type(tuple(n * int(s) for n, s in zip(x.shape, scales, strict=True)), x.dtype)


def resize(x: np.ndarray, scales: Sequence[int]) -> np.ndarray:
    """x enlarged by repeating elements, by a whole factor for each axis."""
    for axis, scale in enumerate(scales):
        x = x.repeat(int(scale), axis)
    return x


define(name="resize", inputs=(1, 1), attributes={"scales": REQUIRED}, shape=_resize_rule,
       meaning=resize, flops=_free)


def _gather_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    table, indices = types
    if len(table.shape) != 2 or indices.dtype not in ("i32", "i64"):
        raise InputError(f"gather from {table} by {indices}: rows of a matrix by integers "
                         f"are expected")
    return Type((*indices.shape, table.shape[1]), table.dtype)


def gather(table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Rows of `table` [rows, c] by their numbers: indices [...] -> [..., c]. Raises InputError for
    an index outside of the table."""
    rows = np.asarray(indices)
    if rows.size and (rows.min() < 0 or rows.max() >= len(table)):
        raise InputError(f"rows {rows.min()} to {rows.max()} are asked of a table that has rows 0 "
                         f"to {len(table) - 1}")
    return table[rows]


define(name="gather", inputs=(2, 2), shape=_gather_rule, flops=_free, meaning=gather)


def _cast_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    if attributes["to"] not in DTYPES:
        raise InputError(f"cast to {attributes['to']!r}, which is none of {sorted(DTYPES)}")
    if attributes["round_mode"] not in ("up", "down", "nearest"):
        raise InputError(f"cast with round_mode {attributes['round_mode']!r}; up, down or nearest "
                         f"is expected")
    return Type(types[0].shape, attributes["to"])


def cast(x: np.ndarray, to: str, saturate: int, round_mode: str) -> np.ndarray:
    """x converted to the dtype `to`.

    With `saturate`, numbers too large for a float of 8 bits become its largest number. `round_mode`
    says how f8e8m0, which has powers of two only, is rounded: "up", "down" or "nearest".
    """
    if to == "f8e8m0":
        fraction, exponent = np.frexp(np.abs(x.astype(np.float32)))
        more = {"up": fraction > 0.5, "nearest": fraction >= 0.75}.get(round_mode, False)
        bits = np.clip(exponent + 126 + more, 0, 254 if saturate else 255)
        bits = np.where(fraction == 0, 0, np.where(np.isfinite(fraction), bits, 255))
        return bits.astype(np.uint8).view(DTYPES[to])
    if not np.can_cast(x.dtype, DTYPES[to], "unsafe"):  # numpy cannot convert between these two
        x = x.astype(np.float32 if x.dtype == DTYPES["f8e8m0"] else np.int8)
    if saturate and to.startswith("f8"):
        limit = float(ml_dtypes.finfo(DTYPES[to]).max)
        x = np.clip(x if x.dtype == np.float64 else x.astype(np.float32), -limit, limit)
    return x.astype(DTYPES[to])


define(name="cast", inputs=(1, 1), shape=_cast_rule, meaning=cast, flops=_free,
       attributes={"to": REQUIRED, "saturate": 1, "round_mode": "up"})


def _bit_cast_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,), to = types, attributes["to"]
    if to not in DTYPES or bits_of(to) != bits_of(x.dtype) or to == "bool":
        raise InputError(f"bit_cast of {x} to {to!r}: numbers of as many bits are expected")
    return Type(x.shape, to)


define(name="bit_cast", inputs=(1, 1), attributes={"to": REQUIRED}, shape=_bit_cast_rule,
       meaning=lambda x, to: np.ascontiguousarray(x).reshape(x.shape).view(DTYPES[to]), flops=_free)
