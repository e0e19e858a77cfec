"""The matrices of Winograd for windows of 3 (Winograd 1980; Lavin & Gray 2016,
arXiv:1509.09308), also behind a nearest enlargement by 2.

    Y = A^T [ (G g G^T) * (B^T d B) ] A

F(m): m outputs of m + 2 inputs d cost m + 2 products instead of 3 m. The points are 0, 1, -1 (and
2, -2), infinity. In two dimensions that is 36 products instead of 144 for m = 4, 16 instead of 36
for m = 2.

Behind an enlargement the m + 2 inputs are m / 2 + 2 pixels: a b b c c d for m = 4, a b b c for
m = 2. The row of B^T at the point -1 is 0 on them, so its product is not needed: `folded` leaves
25 products for m = 4, 9 for m = 2, as many weights, and transforms of fewer pixels. (Each phase of
such a convolution is one of 2 x 2 with sums of the weights, 64 products for the 16 outputs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register
from smalti.dataclass import dataclass

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class WinogradTransform:
    """The matrices of F(m), m = `size`: input B^T, weights G, output A^T.

    `step` is how many input pixels lie between the first ones of two neighbouring blocks.
    """

    size: int
    step: int
    inputs: Matrix
    weights: Matrix
    outputs: Matrix

    @property
    def window(self) -> int:
        """Input pixels of a block along one axis."""
        return len(self.inputs[0])

    @property
    def points(self) -> int:
        """Products of a block."""
        return len(self.inputs) ** 2


def folded(plain: WinogradTransform) -> WinogradTransform:
    """`plain` behind a nearest enlargement by 2, for blocks that start at an even pixel.

    >>> [(folded(f).points, folded(f).window) for f in (PLAIN[2], PLAIN[4])]
    [(9, 3), (25, 4)]
    """
    window = plain.size // 2 + 2
    inputs = [tuple(sum(row[j] for j in range(len(row)) if (j + 1) // 2 == k)
                    for k in range(window)) for row in plain.inputs]
    kept = [i for i, row in enumerate(inputs) if any(row)]
    return WinogradTransform(plain.size, plain.size // 2, tuple(inputs[i] for i in kept),
                     tuple(plain.weights[i] for i in kept),
                     tuple(tuple(row[i] for i in kept) for row in plain.outputs))


PLAIN = {
    2: WinogradTransform(
        2, 2, ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1))),
    4: WinogradTransform(
        4, 4, ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
               (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
        ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
         (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))),
}
TRANSFORMS = {(size, behind): folded(plain) if behind else plain
              for size, plain in PLAIN.items() for behind in (False, True)}
"""By size, and whether an enlargement stands in front."""


def transform(asm: Assembler, matrix: Matrix, vectors: Sequence[Register]) -> list[Register]:
    """matrix @ vectors; rows that differ in the sign of their odd columns share their halves."""
    halves: dict[tuple, Register] = {}

    def half(row: tuple[float, ...], parity: int) -> tuple[Register | None, float]:
        terms = tuple((i, c) for i, c in enumerate(row) if c and i % 2 == parity)
        if not terms:
            return None, 1
        sign = 1 if terms[0][1] > 0 else -1
        terms = tuple((i, sign * c) for i, c in terms)
        if terms not in halves:
            halves[terms] = _combination(asm, vectors, terms)
        return halves[terms], sign

    result = []
    for row in matrix:
        (even, sign), (odd, other) = half(row, 0), half(row, 1)
        if even is None or odd is None:
            value, sign = (odd, other) if even is None else (even, sign)
            result.append(value if sign > 0 else asm.result("sub", asm.zero(), value))
        elif sign > 0:
            result.append(asm.result("add" if other > 0 else "sub", even, odd))
        elif other > 0:
            result.append(asm.result("sub", odd, even))
        else:
            result.append(asm.result("sub", asm.result("sub", asm.zero(), even), odd))
    return result


def _combination(asm: Assembler, vectors: Sequence[Register],
                 terms: tuple[tuple[int, float], ...]) -> Register:
    """The sum of coefficient * vector over `terms`; those of 1 and -1 first."""
    ones = sorted((t for t in terms if abs(t[1]) == 1), key=lambda t: -t[1])
    rest = [t for t in terms if abs(t[1]) != 1]
    if ones and ones[0][1] == 1:
        value, owned = vectors[ones[0][0]], False
        ones = ones[1:]
    else:
        i, c = rest.pop(0)
        value, owned = asm.result("mul", vectors[i], asm.constant(c)), True
    for i, c in ones:
        value, owned = asm.result("add" if c > 0 else "sub", value, vectors[i]), True
    for i, c in rest:
        if not owned:
            value, owned = asm.result("copy", value), True
        asm.op("fma", value, vectors[i], asm.constant(c))
    return value


def both_sides(asm: Assembler, matrix: Matrix, source: Sequence[Address],
               target: Sequence[Address],
               load: Callable[[Assembler, Address], Register] = Assembler.load) -> None:
    """target = matrix @ source @ matrix^T for a square of vectors; columns first."""
    n = len(matrix[0])
    columns = [transform(asm, matrix, [load(asm, source[n * row + column]) for row in range(n)])
               for column in range(n)]
    for row in range(len(matrix)):
        values = transform(asm, matrix, [column[row] for column in columns])
        for column, value in enumerate(values):
            asm.store(target[len(matrix) * row + column], value)
