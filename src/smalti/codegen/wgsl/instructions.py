"""What WGSL writes for each instruction of group programs, and for types and constants.

WGSL's constants are evaluated by its compiler, which refuses what overflows, has no result or
shifts by 32 bits and more. Metal's compiler takes for granted that no number is infinite or NaN,
and may do anything with one that it sees; so their bits are put together when a program runs.
Source: WGSL, W3C, https://www.w3.org/TR/WGSL/, sections 8 and 17.
"""

from __future__ import annotations

import math

import numpy as np

from smalti.codegen.gpu.form import Expr, Number, Op
from smalti.codegen.gpu.instructions import DOT, NARROWING, SUBGROUP, WIDENING
from smalti.codegen.gpu.types import FLOATS, VectorType, vector_type

TEMPLATES = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "({} / {})",
    "rem": "({} % {})", "min": "min({}, {})", "max": "max({}, {})", "fma": "fma({}, {}, {})",
    "neg": "(-{})", "abs": "abs({})", "floor": "floor({})", "ceil": "ceil({})",
    "round": "round({})", "trunc": "trunc({})", "sqrt": "sqrt({})",
    "inverse_sqrt": "inverseSqrt({})", "exp2": "exp2({})", "log2": "log2({})", "exp": "exp({})",
    "log": "log({})", "and": "({} & {})", "or": "({} | {})", "xor": "({} ^ {})", "not": "(~{})",
    "shift_left": "({} << ({amount}({}) & {amount}(31u)))",
    "shift_right": "({} >> ({amount}({}) & {amount}(31u)))",
    "low_halves": "insertBits({}, {}, 16u, 16u)",
    "high_halves": "insertBits({1}, {0} >> {amount}(16u), 0u, 16u)",
    "equal": "({} == {})", "not_equal": "({} != {})", "less": "({} < {})",
    "less_equal": "({} <= {})", "greater": "({} > {})", "greater_equal": "({} >= {})",
    "select": "select({2}, {1}, {0})", "convert": "{result}({})", "bits": "bitcast<{result}>({})",
    "component": "{}[{}]", "subgroup_add": "subgroupAdd({})",
    "subgroup_max": "subgroupMax({})", "subgroup_min": "subgroupMin({})",
    "subgroup_shuffle": "subgroupShuffle({}, {})",
    "subgroup_shuffle_xor": "subgroupShuffleXor({}, {})",
}
DOT_OF_BYTES = """fn dot_i8(left: u32, right: u32) -> i32 {
    let a = bitcast<i32>(left);
    let b = bitcast<i32>(right);
    return extractBits(a, 0u, 8u) * extractBits(b, 0u, 8u)
        + extractBits(a, 8u, 8u) * extractBits(b, 8u, 8u)
        + extractBits(a, 16u, 8u) * extractBits(b, 16u, 8u)
        + extractBits(a, 24u, 8u) * extractBits(b, 24u, 8u);
}"""
"""What `dot_i8` calls where `dot4I8Packed` is not to be used, or not there."""
OF_BOOL = {"xor": "({} != {})", "not": "(!{})"}
"""Rows that read otherwise where operands are bool."""
NAN_BITS, INFINITY_BITS = 0x7FC00000, 0x7F800000
"""Of a quiet NaN and of infinity, as f32."""
SUFFIX = {"f32": "f", "f16": "h", "i32": "i", "u32": "u"}
NUMPY: dict[str, type[np.floating]] = {"f32": np.float32, "f16": np.float16}


def type_name(type: VectorType) -> str:
    """A type as WGSL writes it.

    >>> type_name(VectorType("f32", 4)), type_name(VectorType("bool"))
    ('vec4<f32>', 'bool')
    """
    return type.scalar if type.lanes == 1 else f"vec{type.lanes}<{type.scalar}>"


def constant(value: float | int | bool, type: VectorType) -> str:
    """A constant, in all lanes of its type.

    >>> f32, i32 = VectorType("f32"), VectorType("i32")
    >>> constant(-1.5, f32), constant(3, VectorType("u32", 2)), constant(-1, i32)
    ('(-1.5f)', 'vec2<u32>(3u)', '(-1i)')
    >>> constant(float("inf"), f32)
    'bitcast<f32>(0x7f800000u | offsets.zero)'
    """
    text = _scalar(value, type.scalar)
    return text if type.lanes == 1 else f"{type_name(type)}({text})"


def _scalar(value: float | int | bool, scalar: str) -> str:
    if scalar == "bool":
        return "true" if value else "false"
    if scalar in FLOATS:
        with np.errstate(over="ignore"):
            stored = NUMPY[scalar](value)
        if not np.isfinite(stored):
            bits = NAN_BITS if np.isnan(stored) else INFINITY_BITS
            sign = 1 << 31 if math.copysign(1, stored) < 0 and not np.isnan(stored) else 0
            text = f"bitcast<f32>(0x{bits | sign:08x}u | offsets.zero)"
            return text if scalar == "f32" else f"f16({text})"
        digits = np.format_float_scientific(stored, unique=True, trim="0")
        plain = np.format_float_positional(stored, unique=True, trim="0")
        text = plain if len(plain) <= len(digits) else digits
    else:
        if scalar == "i32" and int(value) == -1 << 31:
            return "bitcast<i32>(0x80000000u)"  # no literal of WGSL is that
        text = str(int(value))
    text += SUFFIX[scalar]
    return f"({text})" if text.startswith("-") else text


def is_constant(expr: Expr) -> bool:
    """Whether WGSL's compiler computes a value."""
    if isinstance(expr, Op):
        return expr.instruction not in SUBGROUP and all(map(is_constant, expr.arguments))
    return isinstance(expr, Number)


def instruction(expr: Op, arguments: list[str], dot: str = "dot4I8Packed") -> str:
    """An instruction on operands that are written already; `dot` is the function that multiplies
    bytes in two words and adds up."""
    name, first = expr.instruction, expr.arguments[0]
    given, result = vector_type(first.type), type_name(vector_type(expr.type))
    if name == DOT:
        lanes = [""] if given.lanes == 1 else [f"[{n}]" for n in range(given.lanes)]
        parts = [f"{dot}({', '.join(a + lane for a in arguments)})" for lane in lanes]
        return parts[0] if given.lanes == 1 else f"{result}({', '.join(parts)})"
    if name == "vector":
        return f"{result}({', '.join(arguments)})"
    if name in ("equal", "not_equal") and first == expr.arguments[1] and given.scalar == "f32":
        return _is_nan(given, arguments[0], negated=name == "equal")
    if name == "bits" and given.scalar == "f32":
        return f"bitcast<{result}>({_bits(given, arguments[0])})"
    if name in WIDENING:
        return _widened(arguments[0], WIDENING[name], given.lanes)
    if name in NARROWING:
        return _narrowed(arguments[0], NARROWING[name], vector_type(expr.type).lanes)
    template = TEMPLATES[name]
    if given.scalar == "bool":
        template = OF_BOOL.get(name, template)
    amount = type_name(VectorType("u32", given.lanes))
    return template.format(*arguments, result=result, amount=amount)


def _widened(words: str, dtype: str, count: int) -> str:
    """The halves in words, as f32."""
    parts = [words] if count == 1 else [f"{words}[{n}]" for n in range(count)]
    if dtype == "f16":
        pairs = [f"unpack2x16float({part})" for part in parts]
    else:
        pairs = [f"bitcast<vec2<f32>>(vec2<u32>({part} << 16u, {part} & 0xffff0000u))"
                 for part in parts]
    return pairs[0] if count == 1 else f"vec4<f32>({', '.join(pairs)})"


def _narrowed(value: str, dtype: str, count: int) -> str:
    """f32 values as halves in words."""
    if dtype == "f16":
        parts = [f"pack2x16float({value})"] if count == 1 else [
            f"pack2x16float({value}.{half})" for half in ("xy", "zw")]
    else:
        parts = [f"(bf16_bits({value}[{n}]) | (bf16_bits({value}[{n + 1}]) << 16u))"
                 for n in range(0, 2 * count, 2)]
    return parts[0] if count == 1 else f"vec2<u32>({', '.join(parts)})"


def _bits(type: VectorType, value: str) -> str:
    """The bits of f32 values, in a way that compilers do not see through: they take for granted
    that no number is NaN, and rearrange sums."""
    words = type_name(VectorType("u32", type.lanes))
    return f"(bitcast<{words}>({value}) ^ {words}(offsets.zero))"


def _is_nan(type: VectorType, value: str, negated: bool) -> str:
    """Whether a value is NaN, asked of its bits."""
    words = VectorType("u32", type.lanes)
    return (f"(({_bits(type, value)} & {constant(0x7FFFFFFF, words)}) "
            f"{'<=' if negated else '>'} {constant(INFINITY_BITS, words)})")
