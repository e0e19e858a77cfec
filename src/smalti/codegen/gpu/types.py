"""Types of values that an invocation computes with."""

from __future__ import annotations

from smalti.dataclass import dataclass

SCALARS = ("f32", "f16", "i32", "u32", "bool")
FLOATS, INTEGERS = ("f32", "f16"), ("i32", "u32")
IN_A_WORD = {"f16": 2, "bf16": 2, "i8": 4}
"""Elements of matrices in a word, where that holds several."""


@dataclass(frozen=True, slots=True)
class VectorType:
    """A scalar, or a vector of 2 or 4 of them."""

    scalar: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"{self.scalar}x{self.lanes}"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that a subgroup holds together: a factor ("a" or "b") or a "sum", of elements of
    f16, bf16 or f32; or factors of i8 and sums of i32."""

    role: str
    rows: int
    columns: int
    scalar: str

    def __str__(self) -> str:
        return f"{self.role}:{self.scalar}[{self.rows}, {self.columns}]"


def vector_type(type: VectorType | Matrix) -> VectorType:
    """`type`, as that of a scalar or vector. Raises TypeError for a matrix, which no invocation
    holds by itself."""
    if isinstance(type, Matrix):
        raise TypeError(f"expected a scalar or a vector, found the matrix {type}")
    return type
