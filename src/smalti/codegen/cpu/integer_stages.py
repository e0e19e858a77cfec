"""The first and the last stage of a contraction of integers, as its code computes them: the patch
as bytes that are multiplied, and sums times the scales of weights that are rounded when packed."""

from __future__ import annotations

from dataclasses import replace

from smalti.codegen.cpu.weights import patch_zero
from smalti.kernel.form import Call, Const, Expr, Kernel, Load, Stage

SIGN = 128.0
"""What a byte with a sign is less than the one without whose bits are the same but the highest."""
SCALES = "weight scales"
"""What an epilogue reads scales of rounded weights as; they lie behind the packed weights."""


def as_bytes(kernel: Kernel, signed: bool) -> Stage:
    """The patch of a contraction of integers as bytes without a sign, or with one, its borders as
    well."""
    patch, shift = kernel.stages[0], patch_zero(kernel, signed)
    value = patch.value
    if kernel.option("zero"):
        assert isinstance(value, Call) and value.function == "sub", value
        value = value.arguments[0]
    if bool(kernel.option("signed")) != signed:
        value = Call("add", (value, Const(-SIGN if signed else SIGN)))
    return replace(patch, value=value, outside=float(shift))


def scaled(value: Expr) -> Expr:
    """`value` with each sum times the scale of its channel."""
    if isinstance(value, Load) and value.buffer == "sum":
        return Call("mul", (value, Load(SCALES, value.index[3:])))
    if isinstance(value, Call):
        return replace(value, arguments=tuple(map(scaled, value.arguments)))
    return value
