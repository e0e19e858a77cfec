"""Quantised numbers: integers that stand for real numbers, value = (integer - zero point) * scale.

Products of integers are operations of their own, with sums of i32; scales follow them.
"""

from __future__ import annotations

import ml_dtypes

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.contraction import conv_of, product
from smalti.frontend.onnx.rules.movement import part
from smalti.frontend.onnx.tensors import dtype_of
from smalti.graph import Value
from smalti.graph.operation import DTYPES
from smalti.graph.operations.contraction import FACTORS

INTEGERS = ("u2", "i2", "u4", "i4", "u8", "i8", "u16", "i16", "i32")


def cast(call: NodeCall, x: Value, dtype: str) -> Value:
    """`x` in `dtype`."""
    return x if x.dtype == dtype else call.apply("cast", x, to=dtype)


def spread(call: NodeCall, x: Value, numbers: Value, axis: int, block: int) -> Value:
    """The scales or zero points `numbers` of `x`, shaped to broadcast with it.

    There may be a single one, one for each element along `axis`, or one for each block of `block`
    elements along it. Raises InputError if they do not fit `x`.
    """
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


def rounded(call: NodeCall, x: Value, zero: Value | None, dtype: str,
            saturate: bool = True) -> Value:
    """Real numbers `x` plus the zero point, rounded and limited to the range of `dtype`."""
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
def quantize(call: NodeCall) -> Value:
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
def dequantize(call: NodeCall) -> Value:
    x, scale, zero = call[0], call[1], call.optional(2)
    to = call.integer("output_dtype", 0)
    dtype = dtype_of(to, call.where) if to else scale.dtype
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    y = cast(call, x, "f32")
    if x.dtype in FACTORS:
        zero = settled(call, zero)
    if zero is not None and x.dtype in INTEGERS:
        y = y - cast(call, spread(call, x, zero, axis, block), "f32")
    y = y * cast(call, spread(call, x, scale, axis, block), "f32")
    return cast(call, y, dtype)


def to_be_scaled(call: NodeCall, sums: Value) -> Value:
    """Sums of products as real numbers, to be scaled: integers become f32, as in ONNX Runtime."""
    return cast(call, sums, "f32")


def settled(call: NodeCall, zero: Value | None) -> Value | None:
    """The zero point `zero`; None where it is 0.

    Several that stand in the file, one for each channel, are read when the program is made, since
    products are simpler where all of them are 0, as nearly always.
    """
    if zero is not None and zero.kind == "parameter":
        zero = call.constant(call.importer.known(zero), zero.dtype)
    return None if zero is None or zero.kind == "constant" and not zero.data.any() else zero


def zero_point(call: NodeCall, x: Value, zero: Value | None, axis: int) -> Value:
    """The zero point of the factor `x`, one or one for each element along `axis`, as products of
    integers take it: 0 where there is none."""
    zero = settled(call, zero)
    if zero is None:
        return call.constant(0, x.dtype)
    if len(zero.shape) > 1:  # one for each batch, matrix or image
        return zero
    return spread(call, x, zero, axis, 0)


def sums_of_products(call: NodeCall, a: Value, b: Value, a_zero: Value | None,
                     b_zero: Value | None) -> Value:
    """The matrix product of integers minus their zero points, as i32.

    The zero points of the first factor are for its rows, those of the second for its columns.
    """
    return product(call, a, b, zero_point(call, a, a_zero, max(0, len(a.shape) - 2)),
                   zero_point(call, b, b_zero, len(b.shape) - 1), operation="mat_mul_integer")


def convolved(call: NodeCall, x: Value, w: Value, x_zero: Value | None,
              w_zero: Value | None) -> Value:
    """The convolution of integers minus zero points, of which each output channel has one, as
    i32."""
    return conv_of(call, x, w, zero_point(call, x, x_zero, 1), zero_point(call, w, w_zero, 0),
                   operation="conv_integer")


@rule("MatMulInteger")
def mat_mul_integer(call: NodeCall) -> Value:
    return sums_of_products(call, call[0], call[1], call.optional(2), call.optional(3))


@rule("ConvInteger")
def conv_integer(call: NodeCall) -> Value:
    return convolved(call, call[0], call[1], call.optional(2), call.optional(3))


@rule("QLinearMatMul")
def quantized_mat_mul(call: NodeCall) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call[i] for i in range(8))
    left, right = max(0, len(a.shape) - 2), len(b.shape) - 1
    sums = to_be_scaled(call, sums_of_products(call, a, b, a_zero, b_zero))
    factor = (cast(call, spread(call, a, a_scale, left, 0), sums.dtype)
              * cast(call, spread(call, b, b_scale, right, 0), sums.dtype)
              / cast(call, y_scale, sums.dtype))
    return rounded(call, sums * factor, y_zero, y_zero.dtype)


@rule("QLinearConv")
def quantized_conv(call: NodeCall) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (call[i] for i in range(8))
    column = (-1,) + (1,) * (len(x.shape) - 2)
    sums, bias = to_be_scaled(call, convolved(call, x, w, x_zero, w_zero)), call.optional(8)
    if bias is not None:
        sums = sums + cast(call, bias, "f32").reshape(*column)
    scale = cast(call, w_scale, "f32")
    scale = scale.reshape(*column) if scale.type.size > 1 else scale.reshape()
    factor = cast(call, x_scale, "f32").reshape() * scale / cast(call, y_scale, "f32").reshape()
    return rounded(call, sums * factor, y_zero.reshape(), y_zero.dtype)
