"""Integers that stand for real numbers: value = (number - zero point) * scale.

Sums of products of integers are taken in f64, which holds them exactly.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import Call, rule
from smalti.frontend.onnx.rules.contraction import conv_of, product
from smalti.frontend.onnx.rules.movement import part
from smalti.frontend.onnx.tensors import dtype_of
from smalti.graph import Value
from smalti.graph.operation import DTYPES

INTEGERS = ("u2", "i2", "u4", "i4", "u8", "i8", "u16", "i16", "i32")


def cast(call: Call, x: Value, dtype: str) -> Value:
    """`x` in `dtype`."""
    return x if x.dtype == dtype else call.apply("cast", x, to=dtype)


def spread(call: Call, x: Value, numbers: Value, axis: int, block: int) -> Value:
    """Scales or zero points of `x` shaped to lie along it: one, one for each place of `axis`, or
    one for each block along it."""
    if numbers.type.size == 1 and len(numbers.shape) <= 1:
        return numbers.reshape() if numbers.shape else numbers
    axis, rank = call.axis(x, axis), len(x.shape)
    if len(numbers.shape) == 1 and numbers.shape[0] == x.shape[axis]:
        return numbers.reshape(numbers.shape[0], *(1,) * (rank - 1 - axis))
    count = numbers.shape[axis] if len(numbers.shape) == rank else 0
    fits = all(n == m for i, (n, m) in enumerate(zip(numbers.shape, x.shape, strict=False))
               if i != axis)
    if block < 1 or not fits or count != -(-x.shape[axis] // block):
        raise InputError(f"{numbers.type} are no scales of {x.type} along axis {axis} in blocks "
                         f"of {block}")
    shape = numbers.shape
    each = call.apply("expand", numbers.reshape(*shape[:axis + 1], 1, *shape[axis + 1:]),
                      shape=(*shape[:axis + 1], block, *shape[axis + 1:]))
    each = each.reshape(*shape[:axis], count * block, *shape[axis + 1:])
    return part(call, each, axis, 0, x.shape[axis])


def rounded(call: Call, x: Value, zero: Value | None, dtype: str, saturate: bool = True) -> Value:
    """Real numbers as the nearest `dtype`, behind the addition of a zero point."""
    if dtype not in INTEGERS:
        x = x if zero is None else x + cast(call, zero, x.dtype)
        return call.apply("cast", x, to=dtype, saturate=int(saturate))
    x = call.apply("round", x)
    x = x if zero is None else x + cast(call, zero, x.dtype)
    limits = ml_dtypes.iinfo(DTYPES[dtype])
    x = call.apply("max", x, call.constant(int(limits.min), x.dtype))
    return call.apply("cast", call.apply("min", x, call.constant(int(limits.max), x.dtype)),
                      to=dtype)


@rule("QuantizeLinear")
def quantize(call: Call) -> Value:
    x, scale, zero = call[0], call[1], call.optional(2)
    to = call.integer("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(to, call.where) if to else "u8"
    if to and zero is not None and dtype_of(to, call.where) != dtype:
        raise InputError(f"output_dtype {dtype_of(to, call.where)} with zero points {zero.type}")
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    precision = call.integer("precision", 0)
    wide = dtype_of(precision, call.where) if precision else x.dtype
    scale = spread(call, x, scale, axis, block)
    if wide not in ("f32", "f64", "f16", "bf16") or wide != scale.dtype and not precision:
        wide = "f32"
    quotient = cast(call, x, wide) / cast(call, scale, wide)
    if dtype in INTEGERS:
        quotient = cast(call, quotient, "f32" if wide in ("f16", "bf16") else wide)
    zero = None if zero is None else spread(call, x, zero, axis, block)
    return rounded(call, quotient, zero, dtype, bool(call.integer("saturate", 1)))


@rule("DequantizeLinear")
def dequantize(call: Call) -> Value:
    x, scale, zero = call[0], call[1], call.optional(2)
    to = call.integer("output_dtype", 0)
    dtype = dtype_of(to, call.where) if to else scale.dtype
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    y = cast(call, x, "f32")
    if zero is not None and x.dtype in INTEGERS:
        y = y - cast(call, spread(call, x, zero, axis, block), "f32")
    y = y * cast(call, spread(call, x, scale, axis, block), "f32")
    return cast(call, y, dtype)


def centred(call: Call, x: Value, zero: Value | None, axis: int) -> Value:
    """Integers less their zero points, in f64."""
    wide = cast(call, x, "f64")
    if zero is None:
        return wide
    if len(zero.shape) > 1:  # of one batch, matrix or image each
        return wide - cast(call, zero, "f64")
    return wide - cast(call, spread(call, x, zero, axis, 0), "f64")


@rule("MatMulInteger")
def mat_mul_integer(call: Call) -> Value:
    """Zero points of the first factor are of its rows, those of the second of its columns."""
    a = centred(call, call[0], call.optional(2), max(0, len(call[0].shape) - 2))
    b = centred(call, call[1], call.optional(3), len(call[1].shape) - 1)
    return cast(call, product(call, a, b), "i32")


@rule("ConvInteger")
def conv_integer(call: Call) -> Value:
    x, w = centred(call, call[0], call.optional(2), 1), centred(call, call[1], call.optional(3), 0)
    return cast(call, conv_of(call, x, w, None), "i32")


@rule("QLinearMatMul")
def quantized_mat_mul(call: Call) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call[i] for i in range(8))
    left, right = max(0, len(a.shape) - 2), len(b.shape) - 1
    sums = product(call, centred(call, a, a_zero, left), centred(call, b, b_zero, right))
    factor = (cast(call, spread(call, a, a_scale, left, 0), "f64")
              * cast(call, spread(call, b, b_scale, right, 0), "f64")
              / cast(call, y_scale, "f64"))
    return rounded(call, sums * factor, y_zero, y_zero.dtype)


@rule("QLinearConv")
def quantized_conv(call: Call) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (call[i] for i in range(8))
    bias = call.optional(8)
    sums = conv_of(call, centred(call, x, x_zero, 1), centred(call, w, w_zero, 0),
                   None if bias is None else cast(call, bias, "f64"))
    column = (-1,) + (1,) * (len(x.shape) - 2)
    scale = cast(call, w_scale, "f64")
    scale = scale.reshape(*column) if scale.type.size > 1 else scale.reshape()
    factor = cast(call, x_scale, "f64").reshape() * scale / cast(call, y_scale, "f64").reshape()
    return rounded(call, sums * factor, y_zero.reshape(), y_zero.dtype)
