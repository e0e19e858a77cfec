"""Sums of products: matrix multiplication and convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import FLOATS, Type, broadcast, define

FACTORS = ("u8", "i8")
"""Dtypes of the factors of products of integers."""
WORD_FACTOR = "i16"
"""The dtype of the first factor where both of a rounded product have 16 bits."""


def _mat_mul_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    a, b = types
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise InputError(f"mat_mul of {a} and {b}: [..., m, k] and [..., k, n] are expected")
    batch = broadcast(Type(a.shape[:-2], a.dtype), Type(b.shape[:-2], b.dtype))
    return Type((*batch.shape, a.shape[-2], b.shape[-1]), batch.dtype)


define(name="mat_mul", inputs=(2, 2), shape=_mat_mul_rule, meaning=np.matmul,
       flops=lambda types, result, attributes: 2 * result.size * types[0].shape[-1])


def conv_extent(extent: int, kernel: int, stride: int, dilation: int, pads: int) -> int:
    """Output extent of a convolution along one axis; `pads` is the sum of both sides."""
    return (extent + pads - dilation * (kernel - 1) - 1) // stride + 1


def _conv_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, w = types[0], types[1]
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != rank + 2:
        raise InputError(f"conv of {x} with {w}: [n, c, h, w] and [o, c, r, s] are expected, or "
                         f"more or fewer axes of both")
    strides, pads, dilations = (attributes[name] for name in ("strides", "pads", "dilations"))
    if [len(strides), len(pads), len(dilations)] != [rank, 2 * rank, rank] \
            or min((*strides, *dilations, attributes["group"])) < 1:
        raise InputError(f"conv of {x} with {w}: strides {list(strides)}, dilations "
                         f"{list(dilations)}, pads {list(pads)} in {attributes['group']} groups")
    if x.shape[1] != w.shape[1] * attributes["group"]:
        raise InputError(f"conv of {x} with {w}: {x.shape[1]} channels given, "
                         f"{w.shape[1] * attributes['group']} expected")
    if len(types) == 3 and types[2].shape != w.shape[:1]:
        raise InputError(f"conv bias is {types[2]}, expected [{w.shape[0]}]")
    spatial = tuple(conv_extent(*fields) for fields in zip(
        x.shape[2:], w.shape[2:], strides, dilations, map(sum, zip(pads[:rank], pads[rank:],
                                                                   strict=True)), strict=True))
    if min(spatial) < 1:
        raise InputError(f"conv of {x} with {w}: the kernel is larger than the padded image")
    return Type((x.shape[0], w.shape[0], *spatial), x.dtype)


def conv(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, *, strides: Sequence[int],
         pads: Sequence[int], dilations: Sequence[int], group: int) -> np.ndarray:
    """Convolution as neural networks have it: cross-correlation of x [n, c, h, w], padded by zeros,
    with w [o, c / group, r, s].

    There may be any number of axes in place of h and w.
    """
    rank = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)))
    (n, _, *image), (o, c, *kernel) = x.shape, w.shape
    spatial = [conv_extent(*fields, 0)
               for fields in zip(image, kernel, strides, dilations, strict=True)]
    y = np.zeros((n, group, o // group, *spatial), np.promote_types(x.dtype, np.float32))
    x = x.reshape(n, group, c, *image)
    w = w.reshape(group, o // group, c, *kernel)
    for tap in np.ndindex(*kernel):
        under: tuple = (..., *(slice(t * d, t * d + s * (extent - 1) + 1, s) for t, d, s, extent
                               in zip(tap, dilations, strides, spatial, strict=True)))
        y += np.einsum("ngc...,goc->ngo...", x[under], w[(..., *tap)], optimize=True)
    y = y.reshape(n, o, *spatial)
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


define(name="conv", inputs=(2, 3), shape=_conv_rule, meaning=conv,
       attributes={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1},
       flops=lambda types, result, attributes:
           2 * result.size * math.prod(types[1].shape[1:]))


def _checked_integers(types: Sequence[Type], name: str) -> None:
    """Raise InputError unless `types` are two factors of 8 bits and a zero point for each."""
    for factor, zero in zip(types[:2], types[2:], strict=True):
        if factor.dtype not in FACTORS or zero.dtype != factor.dtype \
                or broadcast(factor, zero).shape != factor.shape:
            raise InputError(f"{name} of {factor} with the zero point {zero}: factors of "
                             f"{' or '.join(FACTORS)} are expected, and zero points of their dtype "
                             f"that broadcast to them")


def _mat_mul_integer_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    _checked_integers(types, "mat_mul_integer")
    a, b = (Type(t.shape, "i32") for t in types[:2])
    return _mat_mul_rule((a, b), attributes)


def wrapped(sums: np.ndarray) -> np.ndarray:
    """Whole numbers of f64 as i32, of which the lowest 32 bits are kept."""
    return sums.astype(np.int64).astype(np.int32)


def mat_mul_integer(a: np.ndarray, b: np.ndarray, a_zero: np.ndarray,
                    b_zero: np.ndarray) -> np.ndarray:
    """(a - a_zero) @ (b - b_zero) of integers of 8 bits, as i32 (ONNX's MatMulInteger, but zero
    points broadcast); sums are taken in f64, which holds them exactly."""
    return wrapped((a.astype(np.float64) - a_zero) @ (b.astype(np.float64) - b_zero))


define(name="mat_mul_integer", inputs=(4, 4), shape=_mat_mul_integer_rule, meaning=mat_mul_integer,
       flops=lambda types, result, attributes: 2 * result.size * types[0].shape[-1])


def _conv_integer_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    _checked_integers(types, "conv_integer")
    x, w = (Type(t.shape, "i32") for t in types[:2])
    return _conv_rule((x, w), attributes)


def conv_integer(x: np.ndarray, w: np.ndarray, x_zero: np.ndarray, w_zero: np.ndarray,
                 **attributes: Any) -> np.ndarray:
    """The convolution of x - x_zero, padded by zeros, with w - w_zero, of integers of 8 bits, as
    i32 (ONNX's ConvInteger, but zero points broadcast)."""
    return wrapped(conv(x.astype(np.float64) - x_zero, w.astype(np.float64) - w_zero, **attributes))


define(name="conv_integer", inputs=(4, 4), shape=_conv_integer_rule, meaning=conv_integer,
       attributes={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1},
       flops=lambda types, result, attributes:
           2 * result.size * math.prod(types[1].shape[1:]))


SCALE_MIN = 2.0 ** -100
"""The least scale of integers, so that numbers which are all 0 have one, too."""


STEPS = 127
"""The largest of integers of 8 bits that numbers are rounded to."""


def word_steps(terms: int) -> int:
    """The largest of integers of 16 bits of which 32 bits hold a sum of so many products, whatever
    they are.

    >>> word_steps(320), word_steps(5120), word_steps(1)
    (2590, 647, 32767)
    """
    return min(math.isqrt((2 ** 31 - 1) // terms), 2 ** 15 - 1)


def _weight_steps(x: np.ndarray, terms: int) -> int:
    """The largest integer that a weight is rounded to whose sums have so many products with x."""
    return word_steps(terms) if x.dtype == np.int16 else STEPS


def scales(largest: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """By what integers up to `steps` are multiplied, to stand for numbers whose magnitudes are at
    most `largest`."""
    return np.maximum(largest * np.float32(1 / steps), np.float32(SCALE_MIN)).astype(np.float32)


def rounded(w: np.ndarray, axes: tuple[int, ...], pairs: int | None = None,
            steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """(integers from -steps to steps, scales): w is about their product. Numbers along `axes` have
    one scale together; by it, the sum of two neighbours along the axis `pairs`, the first and the
    second, the third and the fourth, is not beyond 128 either. Then the sum of their products with
    two bytes without a sign is one of 16 bits: at most 255 * 128.

    >>> rounded(np.array([[3.0, 2.0, -1.0, 4.0]]), (1,), 1)[0].tolist()
    [[76.0, 51.0, -25.0, 102.0]]
    >>> w, scale = rounded(np.array([[1.0, -2.0], [0.0, 508.0]], np.float32), (1,))
    >>> w.tolist(), [round(float(each), 4) for each in scale.ravel()]
    ([[64.0, -127.0], [0.0, 127.0]], [0.0157, 4.0])
    """
    w = np.asarray(w, np.float32)
    largest = np.abs(w).max(axis=axes, keepdims=True)
    if pairs is not None and w.shape[pairs] > 1:
        first, second = (np.take(w, np.arange(k, w.shape[pairs] // 2 * 2, 2), pairs)
                         for k in range(2))
        largest = np.maximum(largest, np.abs(first + second).max(axis=axes, keepdims=True))
    scale = scales(largest, steps)
    return np.rint(w * (np.float32(1) / scale)), scale


def _of_rounded(types: Sequence[Type], name: str) -> tuple[Type, Type]:
    """The factors of a product of integers and numbers, as those of a product of numbers; raises
    InputError unless these are a factor of 8 or 16 bits, f32, and one zero point."""
    x, w, zero = types
    if x.dtype not in (*FACTORS, WORD_FACTOR) or w.dtype != "f32" or zero != Type((), x.dtype):
        raise InputError(f"{name} of {x} with {w} and the zero point {zero}: "
                         f"{', '.join(FACTORS)} or {WORD_FACTOR}, f32 and one zero point of the "
                         f"dtype of the first are expected")
    return Type(x.shape), w


def _mat_mul_rounded_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    x, w = _of_rounded(types, "mat_mul_rounded")
    if len(w.shape) != 2:
        raise InputError(f"mat_mul_rounded of {x} with {w}: one matrix is expected")
    return _mat_mul_rule((x, w), attributes)


def mat_mul_rounded(x: np.ndarray, w: np.ndarray, x_zero: np.ndarray, *,
                    paired: int) -> np.ndarray:
    """(x - x_zero) @ w, of integers x of 8 bits and of numbers w, which are rounded to 8 bits:
    each column has a scale of its own, as of pairs where it is `paired` (see `rounded`). The sum of
    integers is exact, and scaled afterwards. Where x has 16 bits, and at most `word_steps`, so has
    w."""
    steps = _weight_steps(x, len(w))
    integers, scale = rounded(w, (0,), 0 if paired else None, steps)
    return ((x.astype(np.float64) - x_zero) @ integers).astype(np.float32) * scale


define(name="mat_mul_rounded", inputs=(3, 3), shape=_mat_mul_rounded_rule, meaning=mat_mul_rounded,
       attributes={"paired": 0},
       flops=lambda types, result, attributes: 2 * result.size * types[0].shape[-1])


def _conv_rounded_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    return _conv_rule(_of_rounded(types, "conv_rounded"), attributes)


def conv_rounded(x: np.ndarray, w: np.ndarray, x_zero: np.ndarray, *, paired: int,
                 **attributes: Any) -> np.ndarray:
    """The convolution of x - x_zero, padded by zeros, with w, rounded to 8 or 16 bits as of
    `mat_mul_rounded`: each output channel has a scale of its own."""
    steps = _weight_steps(x, w[0].size)
    integers, scale = rounded(w, tuple(range(1, w.ndim)), 1 if paired else None, steps)
    sums = conv(x.astype(np.float64) - x_zero, integers.astype(np.float64), **attributes)
    return sums.astype(np.float32) * scale.reshape(-1, *(1,) * (w.ndim - 2))


define(name="conv_rounded", inputs=(3, 3), shape=_conv_rounded_rule, meaning=conv_rounded,
       attributes={"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1,
                   "paired": 0},
       flops=lambda types, result, attributes:
           2 * result.size * math.prod(types[1].shape[1:]))


def _det_rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
    (x,) = types
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2] or x.dtype not in FLOATS:
        raise InputError(f"det of {x}: square matrices [..., n, n] are expected")
    return Type(x.shape[:-2], x.dtype)


def det(x: np.ndarray) -> np.ndarray:
    """The determinants of square matrices [..., n, n], computed in f64."""
    return np.linalg.det(x.astype(np.float64)).astype(x.dtype)


define(name="det", inputs=(1, 1), shape=_det_rule, meaning=det,
       flops=lambda types, result, attributes: result.size * types[0].shape[-1] ** 3)
