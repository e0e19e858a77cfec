"""Sums of a tile while they are made: in registers of invocations, or in matrices of subgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.factors import Area, Factor
from smalti.codegen.gpu.form import Expr, Shared, number, op, spread
from smalti.codegen.gpu.instructions import DOT
from smalti.codegen.gpu.integers import sum_of_bytes
from smalti.codegen.gpu.packed import PackedWeight, PlacedColumns
from smalti.codegen.gpu.product import ZERO, Product
from smalti.codegen.gpu.results import Moved
from smalti.codegen.gpu.types import IN_A_WORD, Matrix, VectorType
from smalti.codegen.gpu.weights import VECTOR
from smalti.schedule.group import BYTES, MATRIX_PAD, GroupContraction
from smalti.schedule.merge import bytes_excess, weights_bound

WHOLE = VectorType("i32", VECTOR)
Write = Callable[[Moved, Moved, Sequence[Expr], Expr | None], None]
"""Takes a row and the first of four columns of the tile, their sums, a vector for each part, and
where these count."""
Line = dict[tuple[int, int], Expr]
"""Vectors of a line of the weight, by part and number."""


class Registers:
    """Blocks of sums in registers.

    The rows and the vectors of columns of an invocation are spread over the tile, so that
    neighbours read, and write, neighbouring ones: along columns, or rows where results lie so.
    """

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 by_rows: bool) -> None:
        self.b, self.product, self.s = b, product, schedule
        s = schedule
        self.down, self.across = s.tile_m // s.block_m, s.tile_n // s.block_n
        block = b.let(b.invocation % s.blocks) if s.ways > 1 else b.invocation
        self.way = b.let(b.invocation // s.blocks) if s.ways > 1 else ZERO
        self.block = block
        if by_rows:
            self.row, vector = b.let(block % self.down), b.let(block // self.down)
        else:
            self.row, vector = b.let(block // self.across), b.let(block % self.across)
        self.column = b.let(vector * VECTOR)
        self.vectors = s.block_n // VECTOR
        self.type = sums_type(s)
        self.sums = {(part, i, j): b.variable(0.0, "sum", self.type)
                     for part in range(product.parts) for i in range(s.block_m)
                     for j in range(self.vectors)}
        self.excess = excess_added_up(product, s)
        self.of_columns = {(part, j): b.variable(0.0, "column", WHOLE)
                           for part in range(product.parts) for j in range(self.vectors)
                           } if self.excess else {}

    def columns(self, j: int) -> Expr:
        """The first column of vector `j`."""
        return self.column + j * self.across * VECTOR

    def multiply(self, a: Area, weight: Factor, chunk: Expr, at_a: Expr, at_b: Expr) -> None:
        """Add the products of a chunk; `at_a` and `at_b` are where it begins in shared memory."""
        b, s = self.b, self.s
        row = b.let(self.row * a.stride + at_a)
        deep, lines = self._lines(weight, chunk, at_b)
        with b.loop(s.places // deep // s.ways) as step:
            k = b.let((step * s.ways + self.way) * deep)
            rows = [[b.let(b.load(a.shared, row + (k + n) + i * self.down * a.stride,
                                  VECTOR)) for n in range(0, deep, VECTOR)]
                    for i in range(s.block_m)]
            for n, line in enumerate(lines(k)):
                for key, other in line.items() if self.of_columns else ():
                    b.set(self.of_columns[key], self.of_columns[key] + sum_of_bytes(other))
                for i, value in enumerate(rows):
                    factor = b.let(spread(value[n // VECTOR].lane(n % VECTOR), VECTOR))
                    for (part, j), other in line.items():
                        total = self.sums[part, i, j]
                        b.set(total, total + op(DOT, factor, other) if s.dtype == BYTES else
                              op("fma", factor, other, total))

    def _lines(self, weight: Factor, chunk: Expr, at_b: Expr
               ) -> tuple[int, Callable[[Expr], list[Line]]]:
        """How many lines of the weight are read at a time, and what reads those from number `k` of
        a chunk on: where the weight is, or in shared memory."""
        b, s, area = self.b, self.s, weight.area
        every = [(part, j) for part in range(self.product.parts) for j in range(self.vectors)]
        if isinstance(weight, PackedWeight) and s.direct:
            columns = {(part, j): b.let(weight.column(part, self.columns(j))) for part, j in every}
            return weight.deep, lambda k: weight.lines(chunk, k, columns)

        def staged(k: Expr) -> list[Line]:
            at = b.let(k * area.stride + self.column + at_b)
            return [{(part, j): b.let(b.load(
                area.shared, at + (n * area.stride + part * s.tile_n + j * self.across * VECTOR),
                VECTOR)) for part, j in every} for n in range(VECTOR)]

        return VECTOR, staged

    def finish(self, write: Write) -> None:
        """Add what the ways have, and write."""
        b, s, parts = self.b, self.s, self.product.parts
        for (part, _, j), total in self.sums.items() if self.of_columns else ():
            b.set(total, total - self.of_columns[part, j] * self.excess)
        if s.ways > 1:
            self._gather()
        with b.branch(self.way.equals(0)) if s.ways > 1 else nullcontext():
            for i in range(s.block_m):
                for j in range(self.vectors):
                    write(Moved(self.row, i * self.down),
                          Moved(self.column, j * self.across * VECTOR),
                          [self.sums[part, i, j] for part in range(parts)], None)

    def _gather(self) -> None:
        """Let the first way have the sums of all."""
        b, s = self.b, self.s
        each = VECTOR * s.blocks
        shared = b.shared("ways", self.type.scalar, (s.ways - 1) * each * len(self.sums), VECTOR)
        with b.branch(self.way > 0):
            first = b.let((self.way - 1) * (each * len(self.sums)) + self.block * VECTOR)
            for number, total in enumerate(self.sums.values()):
                b.store(shared, first + number * each, total)
        b.barrier()
        with b.branch(self.way.equals(0)):
            with b.loop(s.ways - 1) as way:
                first = b.let(way * (each * len(self.sums)) + self.block * VECTOR)
                for number, total in enumerate(self.sums.values()):
                    b.set(total, total + b.load(shared, first + number * each, VECTOR))


def sums_type(schedule: GroupContraction) -> VectorType:
    """The type of four sums."""
    return VectorType(schedule.sums, VECTOR)


def excess_added_up(product: Product, schedule: GroupContraction) -> int:
    """How much more than they mean bytes of the patch are, where products have to add up the weight
    of each column: what is behind packed weights says it of those."""
    if schedule.dtype != BYTES or weights_bound(product.kernel):
        return 0
    return bytes_excess(product.kernel)


class Matrices:
    """Blocks of sums in the matrix unit: `block_m` by `block_n` of each subgroup.

    They reach the invocations through shared memory, a row of matrices at a time: where the factors
    were. Each subgroup has its own part of that, and waits for nobody else.
    """

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 by_rows: bool) -> None:
        self.b, self.product, self.s, self.by_rows = b, product, schedule, by_rows
        s = schedule
        self.tile: Shared | None = None
        self.places: dict[Expr, Expr] = {}  # of an invocation in a region of results
        rows, columns, depth = s.shape
        self.a, self.right = Matrix("a", rows, depth, s.dtype), Matrix("b", depth, columns, s.dtype)
        self.each = IN_A_WORD[s.dtype]
        across = s.tile_n // s.block_n
        self.row = b.let(b.subgroup // across * s.block_m)
        self.column = b.let(b.subgroup % across * s.block_n)
        kind = Matrix("sum", rows, columns, s.sums)
        self.sums = {(part, i, j): b.variable(0.0, "sum", kind)
                     for part in range(product.parts) for i in range(s.block_m // rows)
                     for j in range(s.block_n // columns)}
        self.excess = excess_added_up(product, s)
        self.of_columns = {(part, j): b.variable(0.0, "column", kind)
                           for part in range(product.parts) for j in range(s.block_n // columns)
                           } if self.excess else {}

    def multiply(self, a: Area, weight: Factor, chunk: Expr, at_a: Expr, at_b: Expr) -> None:
        """Add the products of a chunk; `at_a` and `at_b` are where it begins in shared memory."""
        b, s = self.b, self.s
        rows, columns, depth = s.shape
        self.tile, words = a.shared, s.line_words
        first_a = b.let(self.row * words + (at_a + a.at))
        right_of = self._right(weight, chunk, words, at_b)
        for k in range(0, s.tile_k // self.each, depth // self.each):
            left = [b.let(b.matrix(self.tile, first_a + (k + i * rows * words), words, self.a))
                    for i in range(s.block_m // rows)]
            for part in range(self.product.parts):
                for j in range(s.block_n // columns):
                    right = right_of(k, part, j)
                    self._add_columns(part, j, right)
                    for i, value in enumerate(left):
                        total = self.sums[part, i, j]
                        b.set(total, op("matrix_multiply_add", value, right, total))

    def _add_columns(self, part: int, j: int, right: Expr) -> None:
        """Take from the sum of each column what its weights add to sums of bytes that are more than
        they mean, where the weight is not packed: in every row, by a left matrix of that number."""
        if not self.of_columns:
            return
        b, total = self.b, self.of_columns[part, j]
        for less in (64, 64) if self.excess == -128 else (-self.excess,):  # 128 is no byte
            b.set(total, op("matrix_multiply_add", number(less, self.a), right, total))

    def _right(self, weight: Factor, chunk: Expr, words: int, at_b: Expr
               ) -> Callable[[int, int, int], Expr]:
        """What gives the right matrix of a part, so many words deep in a chunk and so many matrices
        across the block: from shared memory, or from where the weight is."""
        b, s = self.b, self.s
        _, columns, _ = s.shape
        if isinstance(weight, PlacedColumns):
            return lambda k, part, j: weight.matrix(chunk, self.each * k, part, j * columns)
        first = b.let(self.column * words + (at_b + weight.area.at))

        def staged(k: int, part: int, j: int) -> Expr:
            at = first + (k + (part * s.tile_n + j * columns) * words)
            return b.let(b.matrix(self.tile, at, words, self.right, by_columns=True))

        return staged

    def finish(self, write: Write) -> None:
        """Write the sums, a region of a row of matrices of each subgroup at a time."""
        b, s, parts = self.b, self.s, self.product.parts
        rows, columns, _ = s.shape
        width, shared = s.region(parts), self.tile
        stride = parts * width + MATRIX_PAD
        first = b.let(b.subgroup * (rows * stride))
        for (part, _, j), total in self.sums.items() if self.of_columns else ():
            b.set(total, total + self.of_columns[part, j])
        for i in range(s.block_m // rows):
            for start in range(0, s.block_n, width):
                if i or start:  # the chunks end with a barrier: nobody reads factors any more
                    b.barrier(subgroup=True)
                for part in range(parts):
                    for j in range(0, width, columns):
                        b.store_matrix(shared, first + (part * width + j), stride,
                                       self.sums[part, i, (start + j) // columns])
                b.barrier(subgroup=True)
                self._piece(write, shared, first, (i * rows, start))

    def _piece(self, write: Write, shared: Shared, first: Expr, at: tuple[int, int]) -> None:
        """Write the results of a region that begins `at` a row and a column of the block."""
        b, s, parts = self.b, self.s, self.product.parts
        rows, width = s.shape[0], s.region(parts)
        stride, total = parts * width + MATRIX_PAD, rows * width // VECTOR
        for turn in range(-(-total // s.subgroup)):
            with b.once(self.places):
                row, vector, inside = self._vector(turn, width // VECTOR)
                down, across = b.let(self.row + row.base), b.let(self.column + vector.base * VECTOR)
            line = b.let(first + row.base * stride + vector.base * VECTOR) + (
                row.by * stride + vector.by * VECTOR)
            sums = [b.let(b.load(shared, line + part * width, VECTOR, where=inside).bits(s.sums))
                    for part in range(parts)]
            write(Moved(down, row.by + at[0]), Moved(across, vector.by * VECTOR + at[1]), sums,
                  inside)

    def _vector(self, turn: int, each: int) -> tuple[Moved, Moved, Expr | None]:
        """The row and the vector of a region that an invocation takes in a turn, of `each` vectors
        of a row; and where it takes one. Neighbours go along the rows, or down the columns."""
        b, rows, size = self.b, self.s.shape[0], self.s.subgroup
        across = rows if self.by_rows else each
        if size % across == 0:
            inner, outer = Moved(b.let(b.lane % across)), b.let(b.lane // across)
            moved = Moved(outer, turn * (size // across))
        else:
            n = b.let(turn * size + b.lane)
            inner, moved = Moved(b.let(n % across)), Moved(b.let(n // across))
        total, inside = rows * each, None
        if (turn + 1) * size > total:
            inside = b.let(turn * size + b.lane < total)
        return (inner, moved, inside) if self.by_rows else (moved, inner, inside)
