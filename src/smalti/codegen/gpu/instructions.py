"""The instructions of group programs: their types, and their meaning in numpy, row by row.

A target has a row of its own for each. What no GPU computes to the last places (sin, tanh, erf …)
is not here: `functions.py` makes it of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smalti.codegen.gpu.types import FLOATS, INTEGERS, Matrix, VectorType, vector_type
from smalti.dataclass import dataclass

ARITHMETIC = (*FLOATS, *INTEGERS)
BITS = (*INTEGERS, "bool")


@dataclass(frozen=True)
class Instruction:
    """`meaning` takes and gives arrays of the operands' types; None for what is no function of an
    invocation's own values (conversion, lanes, subgroups, matrices), which `interpreter.py` spells.

    `takes` are the scalar types of its operands; `asks`: it gives bool, else the operands' type.
    """

    arity: int
    takes: tuple[str, ...]
    meaning: Callable[..., Any] | None
    asks: bool = False


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if np.issubdtype(np.asarray(x).dtype, np.floating):
        return np.divide(x, y)
    y = np.where(y == 0, 1, y)
    quotient = np.floor_divide(x, y)
    return quotient + ((quotient < 0) & (quotient * y != x)).astype(quotient.dtype)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = np.where(y == 0, 1, y)
    return x - _divide(x, y) * y


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (np.asarray(x, np.float64) * y + z).astype(np.result_type(x))


def _invert(x: np.ndarray) -> np.ndarray:
    return ~x


def _dot_i8(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = (np.asarray(words, np.uint32).astype(np.int32) for words in (x, y))
    total = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.int32)
    for shift in range(0, 32, 8):
        total += (x << 24 - shift >> 24) * (y << 24 - shift >> 24)
    return total


def _low_halves(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x & np.uint32(0xFFFF) | y << np.uint32(16)


def _high_halves(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x >> np.uint32(16) | y & np.uint32(0xFFFF0000)


INSTRUCTIONS = {
    "add": Instruction(2, ARITHMETIC, np.add),
    "sub": Instruction(2, ARITHMETIC, np.subtract),
    "mul": Instruction(2, ARITHMETIC, np.multiply),
    "div": Instruction(2, ARITHMETIC, _divide),         # of integers towards 0; x / 0 is anything
    "rem": Instruction(2, INTEGERS, _remainder),        # has the sign of x
    "min": Instruction(2, ARITHMETIC, np.fmin),         # of NaN and a number: either
    "max": Instruction(2, ARITHMETIC, np.fmax),
    "fma": Instruction(3, FLOATS, _fma),                # x * y + z, rounded once or twice
    "neg": Instruction(1, (*FLOATS, "i32"), np.negative),
    "abs": Instruction(1, (*FLOATS, "i32"), np.abs),
    "floor": Instruction(1, FLOATS, np.floor),
    "ceil": Instruction(1, FLOATS, np.ceil),
    "round": Instruction(1, FLOATS, np.rint),           # to the nearest, ties to even
    "trunc": Instruction(1, FLOATS, np.trunc),
    "sqrt": Instruction(1, FLOATS, np.sqrt),
    "inverse_sqrt": Instruction(1, FLOATS, lambda x: (1 / np.sqrt(x)).astype(x.dtype)),
    "exp2": Instruction(1, FLOATS, np.exp2),            # 3 + 2 |x| units in the last place
    "log2": Instruction(1, FLOATS, np.log2),
    "exp": Instruction(1, FLOATS, np.exp),
    "log": Instruction(1, FLOATS, np.log),
    "and": Instruction(2, BITS, np.bitwise_and),
    "or": Instruction(2, BITS, np.bitwise_or),
    "xor": Instruction(2, BITS, np.bitwise_xor),
    "not": Instruction(1, BITS, _invert),
    "dot_i8": Instruction(2, ("u32",), _dot_i8),        # of words of four bytes with a sign: an i32
    "shift_left": Instruction(2, INTEGERS, np.left_shift),
    "shift_right": Instruction(2, INTEGERS, np.right_shift),  # of i32 it keeps the sign
    "low_halves": Instruction(2, ("u32",), _low_halves),      # the lower 16 bits of x, then of y
    "high_halves": Instruction(2, ("u32",), _high_halves),    # the upper ones
    "equal": Instruction(2, (*ARITHMETIC, "bool"), np.equal, asks=True),
    "not_equal": Instruction(2, (*ARITHMETIC, "bool"), np.not_equal, asks=True),
    "less": Instruction(2, ARITHMETIC, np.less, asks=True),
    "less_equal": Instruction(2, ARITHMETIC, np.less_equal, asks=True),
    "greater": Instruction(2, ARITHMETIC, np.greater, asks=True),
    "greater_equal": Instruction(2, ARITHMETIC, np.greater_equal, asks=True),
    "select": Instruction(3, (*ARITHMETIC, "bool"), np.where),  # (question, yes, no)
    "convert": Instruction(1, (*ARITHMETIC, "bool"), None),
    "bits": Instruction(1, ("f32", *INTEGERS), None),
    "widen_f16": Instruction(1, ("u32",), None),        # words, each of two halves, as f32
    "widen_bf16": Instruction(1, ("u32",), None),
    "narrow_f16": Instruction(1, ("f32",), None),       # back, rounded to even
    "narrow_bf16": Instruction(1, ("f32",), None),
    "vector": Instruction(-1, ARITHMETIC, None),
    "component": Instruction(2, ARITHMETIC, None),      # (vector, constant)
    "subgroup_add": Instruction(1, ARITHMETIC, None),
    "subgroup_max": Instruction(1, ARITHMETIC, None),
    "subgroup_min": Instruction(1, ARITHMETIC, None),
    "subgroup_shuffle": Instruction(2, ARITHMETIC, None),      # (value, lane it comes from)
    "subgroup_shuffle_xor": Instruction(2, ARITHMETIC, None),  # (value, constant mask of lanes)
    "matrix_multiply_add": Instruction(3, (), None),           # (a, b, sum); of i8 in i32
    "matrix_times": Instruction(2, (), None),                  # (matrix, the number for all)
    "of_column": Instruction(2, (), None),                     # (matrix, number of an element)
    "with_columns": Instruction(-1, (), None),                 # (matrix, elements of a column)
    "with_words": Instruction(-1, (), None),                   # (matrix, a word of each row)
}
DOT = "dot_i8"
WIDENING = {"widen_f16": "f16", "widen_bf16": "bf16"}
NARROWING = {"narrow_f16": "f16", "narrow_bf16": "bf16"}
"""What the halves of words are, of which the one in the lower bits comes first."""
SUBGROUP = tuple(name for name in INSTRUCTIONS if name.startswith("subgroup_"))
HELD = ("of_column", "with_columns", "with_words")
"""What an invocation has of a matrix: an element of its column, the number of which is its place in
the subgroup; a matrix that has in each column what an invocation says, or in each row its halves
2 n and 2 n + 1 by invocation n. Only where it is known who holds what: `GroupLimits.sum_lines`,
`right_lines` and `left_words`."""


def result_type(name: str, types: Sequence[VectorType | Matrix]) -> VectorType | Matrix:
    """The type of an instruction's result; those of "convert", "bits" and "vector" are said where
    they are made. Raises TypeError where operands do not fit.

    >>> str(result_type("less", [VectorType("f32", 4), VectorType("f32", 4)]))
    'boolx4'
    """
    entry = INSTRUCTIONS[name]
    if name in HELD and types:
        return _held(name, types[0], types[1:])
    if entry.arity != len(types) or name in ("convert", "bits", "vector"):
        raise TypeError(f"{name} of {len(types)} operands")
    if name == "matrix_multiply_add":
        a, b, total = types
        if not (isinstance(a, Matrix) and isinstance(b, Matrix) and isinstance(total, Matrix)
                and (a.role, b.role, total.role) == ("a", "b", "sum") and a.columns == b.rows
                and a.scalar == b.scalar and (a.scalar == "i8") == (total.scalar == "i32")
                and (a.rows, b.columns) == (total.rows, total.columns)):
            raise TypeError(f"{name} of {a}, {b} and {total}")
        return total
    if name == "matrix_times":
        if not isinstance(types[0], Matrix) or types[1] != VectorType(types[0].scalar):
            raise TypeError(f"{name} of {types[0]} and {types[1]}")
        return types[0]
    values = types[1:] if name == "select" else types
    if name == "select":
        lanes = vector_type(types[1]).lanes
        if types[0] not in (VectorType("bool"), VectorType("bool", lanes)):
            raise TypeError(f"select asks {types[0]}")
    if name in ("component", "subgroup_shuffle", "subgroup_shuffle_xor"):
        values = types[:1]
    first = values[0]
    if any(t != first for t in values) or (
            isinstance(first, VectorType) and first.scalar not in entry.takes):
        raise TypeError(f"{name} of {', '.join(map(str, types))}")
    if name == "component":
        return VectorType(vector_type(first).scalar)
    if name == DOT:
        return VectorType("i32", vector_type(first).lanes)
    if name in WIDENING or name in NARROWING:
        return _of_halves(name, vector_type(first))
    return VectorType("bool", vector_type(first).lanes) if entry.asks else first


def _held(name: str, matrix: VectorType | Matrix,
          given: Sequence[VectorType | Matrix]) -> VectorType | Matrix:
    """The type of what an invocation has of a matrix, or of the matrix that has what it says."""
    lanes = sum(each.lanes for each in given if isinstance(each, VectorType))
    scalars = {each.scalar for each in given}
    if not isinstance(matrix, Matrix) or any(isinstance(each, Matrix) for each in given) or not (
            matrix.scalar in FLOATS and (lanes, scalars) == {
                "of_column": (1, {"u32"}), "with_columns": (matrix.rows, {matrix.scalar}),
                "with_words": (matrix.rows, {"u32"})}[name]):
        raise TypeError(f"{name} of {matrix} and {', '.join(map(str, given))}")
    return VectorType(matrix.scalar) if name == "of_column" else matrix


def _of_halves(name: str, given: VectorType) -> VectorType:
    """The type of words as floats, or of floats as words."""
    if name in WIDENING and given.lanes <= 2:
        return VectorType("f32", 2 * given.lanes)
    if name in NARROWING and given.lanes >= 2:
        return VectorType("u32", given.lanes // 2)
    raise TypeError(f"{name} of {given}")
