"""Quantised operators that ONNX Runtime adds to the standard (domain com.microsoft).

They are computed with the real numbers that their operands stand for, and the result is rounded
once.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.contributed import MICROSOFT
from smalti.frontend.onnx.rules.movement import joined
from smalti.frontend.onnx.rules.quantization import (
    cast,
    dequantize,
    quantize,
    rounded,
    spread,
    sums_of_products,
    to_be_scaled,
)
from smalti.graph import Value

rule("QuantizeLinear", domain=MICROSOFT)(quantize)
rule("DequantizeLinear", domain=MICROSOFT)(dequantize)


def real(call: NodeCall, i: int) -> Value:
    """The real numbers of operand `i`; its scale and zero point are the next operands."""
    return call.standard("DequantizeLinear", call[i], call[i + 1], call.optional(i + 2))[0]


def stored(call: NodeCall, y: Value, i: int) -> Value:
    """Real numbers `y` quantised to integers; scale and zero point are operands `i` and `i + 1`."""
    zero = call.optional(i + 1)
    dtype = call.operands[0].dtype if zero is None else zero.dtype
    return rounded(call, y / spread(call, y, call[i], 0, 0),
                   None if zero is None else spread(call, y, zero, 0, 0), dtype)


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def two_operands(call: NodeCall) -> Value:
    operation = {"QLinearAdd": "add", "QLinearMul": "mul"}[call.operator]
    return stored(call, call.apply(operation, real(call, 0), real(call, 3)), 6)


@rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearAveragePool",
      "QLinearGlobalAveragePool", domain=MICROSOFT)
def one_operand(call: NodeCall) -> Value:
    x, last = real(call, 0), bool(call.integer("channels_last", 0))
    axes = list(range(len(x.shape)))
    x = x.transpose(0, axes[-1], *axes[1:-1]) if last else x
    (y, *_) = call.standard(call.operator.removeprefix("QLinear"), x,
                            version=call.integer("opset", None))
    return stored(call, y.transpose(0, *axes[2:], 1) if last else y, 3)


@rule("QLinearWhere", domain=MICROSOFT)
def where(call: NodeCall) -> Value:
    """The real numbers of the second operand where the first is true, else those of the third."""
    *_, scale, zero = (call[i] for i in range(9))  # without a zero point it is an error
    z = call.standard("Where", call[0], real(call, 1), real(call, 4))[0]
    return rounded(call, z / spread(call, z, scale, 0, 0), spread(call, z, zero, 0, 0), zero.dtype)


@rule("QLinearConv", domain=MICROSOFT)
def conv(call: NodeCall) -> Value:
    """The standard's, of images whose channels are the last axis where it says so."""
    x, last = call[0], bool(call.integer("channels_last", 0))
    axes = list(range(len(x.shape)))
    x = x.transpose(0, axes[-1], *axes[1:-1]) if last else x
    (y, *_) = call.standard("QLinearConv", x, *(call[i] for i in range(1, 8)), call.optional(8))
    return y.transpose(0, *axes[2:], 1) if last else y


@rule("QLinearConcat", domain=MICROSOFT)
def concat(call: NodeCall) -> Value:
    parts = [real(call, i) for i in range(2, len(call.operands), 3)]
    zero = call[1]
    y = joined(call, parts, call.axis(parts[0], call.integer("axis")))
    return rounded(call, y / call[0].reshape(), zero.reshape(), zero.dtype)


@rule("QGemm", domain=MICROSOFT)
def gemm(call: NodeCall) -> Value:
    """alpha * a @ b + c, where c is an integer in units of alpha times the scales of a and b."""
    a, b, a_zero, b_zero = call[0], call[3], call.optional(2), call.optional(5)
    a = a.transpose(1, 0) if call.integer("transA", 0) else a
    b = b.transpose(1, 0) if call.integer("transB", 0) else b
    sums = to_be_scaled(call, sums_of_products(call, a, b, a_zero, b_zero))
    sums = sums if call.optional(6) is None else sums + cast(call, call[6], "f32")
    scale = cast(call, call[1].reshape(), sums.dtype) * cast(
        call, spread(call, b, call[4], 1, 0), sums.dtype) * call.number("alpha", 1.0)
    y = cast(call, sums * scale, "f32")
    return y if call.optional(7) is None else stored(call, y, 7)


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def mat_mul_to_float(call: NodeCall) -> Value:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (call.optional(i) for i in range(7))
    return scaled_product(call, a, b, a_zero, b_zero, a_scale, b_scale, bias)


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_mat_mul(call: NodeCall) -> Value:
    """A product whose first factor is quantised to 8 bits first, over the range of its numbers."""
    x, b, b_scale, b_zero, bias = (call.optional(i) for i in range(5))
    axes, zero = tuple(range(len(x.shape))), call.constant(0.0)
    low = call.apply("min", call.apply("reduce_min", x, axes=axes, keepdims=0), zero)
    high = call.apply("max", call.apply("reduce_max", x, axes=axes, keepdims=0), zero)
    scale = (high - low) / 255.0
    point = rounded(call, call.apply("neg", low) / scale, None, "u8")
    return scaled_product(call, rounded(call, x / scale, point, "u8"), b, point, b_zero, scale,
                          b_scale, bias)


def scaled_product(call: NodeCall, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None,
                   a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    """The product of quantised a and b as real numbers, with `bias` added if there is one."""
    sums = cast(call, sums_of_products(call, a, b, a_zero, b_zero), "f32")
    y = sums * (spread(call, a, a_scale, len(a.shape) - 2, 0)
                * spread(call, b, b_scale, len(b.shape) - 1, 0))
    return y if bias is None else y + bias


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def lstm(call: NodeCall) -> list[Value | None]:
    """An LSTM with weights of 8 bits [directions, in, 4 * h]. Inputs and states stay f32; ONNX
    Runtime quantises them in each step, by their largest number."""
    weights = []
    for i, at in ((1, 8), (2, 10)):
        w = call[i]
        if len(w.shape) != 3:
            raise InputError(f"weights {w.type}; [directions, in, 4 * hidden] are expected")
        scale, zero = (numbers.reshape(w.shape[0], 1, -1) for numbers in (call[at], call[at + 1]))
        w = (cast(call, w, "f32") - cast(call, zero, "f32")) * scale
        weights.append(w.transpose(0, 2, 1))
    return list(call.standard("LSTM", call[0], *weights, *map(call.optional, range(3, 8))))
