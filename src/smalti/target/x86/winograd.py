"""Minimal filtering for 3x3 windows (Winograd 1980; Lavin & Gray 2016, arXiv:1509.09308).

    Y = A^T [ (G g G^T) * (B^T d B) ] A

F(m): an output block of m x m pixels d' of (m + 2) x (m + 2) input pixels d costs (m + 2)^2
products a channel instead of 9 m^2: 36 instead of 144 for m = 4, 16 instead of 36 for m = 2. The
points are 0, 1, -1 (and 2, -2), infinity.

For each tile of work:

    for each chunk of channels: stage the patch; B^T d B of every block      V [point][block][c]
    for each group of panels:
        for each panel, each point: V[point] times the packed weights        M [point][block][o]
        A^T M A of every block                                               sums [y][x][o]
        write the result: epilogue applied

Everything but the weights lies in the thread's scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smalti.errors import IllegalSchedule
from smalti.target.x86.assembler import Assembler, Memory, Register
from smalti.target.x86.contraction import PIXEL_PAD_BYTES, Contraction, Layout, Tile
from smalti.target.x86.micro import Micro, Reduction, multiply, split_rows, store_sums, zero_sums

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Filtering:
    """The matrices of F(m): input B^T, weights G, output A^T."""

    size: int
    inputs: Matrix
    weights: Matrix
    outputs: Matrix

    @property
    def window(self) -> int:
        """Input pixels of a block along one axis."""
        return self.size + 2

    @property
    def points(self) -> int:
        """Products of a block."""
        return self.window ** 2


FILTERINGS = {
    2: Filtering(
        2, ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1))),
    4: Filtering(
        4, ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
        ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
         (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))),
}


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
    first, factor = terms[0]
    ones = [i for i, c in terms if c == 1]
    if factor != 1 and ones:
        first, factor = ones[0], 1
    value = vectors[first]
    if factor != 1:
        value = asm.result("mul", value, asm.constant(factor))
    elif len(terms) > 1:
        value = asm.result("copy", value)
    for i, c in terms:
        if i != first:
            asm.op("fma", value, vectors[i], asm.constant(c))
    return value


def both_sides(asm: Assembler, matrix: Matrix, source: Sequence[Memory], block: Register,
               target: Sequence[Memory]) -> None:
    """target = matrix @ source @ matrix^T for a square of vectors, columns first.

    `block` is the address of room for len(matrix) rows of half-transformed vectors.
    """
    n, m, step = len(matrix[0]), len(matrix), asm.level.bytes
    for column in range(n):
        held = [asm.load(source[n * row + column]) for row in range(n)]
        for row, value in enumerate(transform(asm, matrix, held)):
            asm.store(Memory(block, (n * row + column) * step), value)
    for row in range(m):
        held = [asm.load(Memory(block, (n * row + column) * step)) for column in range(n)]
        for column, value in enumerate(transform(asm, matrix, held)):
            asm.store(target[m * row + column], value)


class Winograd(Contraction):
    """A contraction by F(2) or F(4)."""

    def check(self) -> None:
        """Raise IllegalSchedule where the window or the tile does not fit."""
        super().check()
        e, s = self.e, self.schedule
        if s.winograd not in FILTERINGS:
            raise IllegalSchedule(f"there is no F({s.winograd})")
        steps = (e.r, e.s, e.stride_y, e.stride_x, e.dilation_y, e.dilation_x)
        if steps != (3, 3, 1, 1, 1, 1) or s.dtype != "f32":
            raise IllegalSchedule("minimal filtering is for 3x3 windows in steps of 1, in f32")
        if e.y % s.tile_y or e.x % s.tile_x or s.tile_y % s.winograd or s.tile_x % s.winograd:
            raise IllegalSchedule(f"tiles of {s.tile_y} x {s.tile_x} in blocks of {s.winograd} do "
                                  f"not divide {e.y} x {e.x} pixels")
        if self.packed.panels % s.panels or s.panels % s.group:
            raise IllegalSchedule(f"groups of {s.group} in {s.panels} of {self.packed.panels} "
                                  f"panels")

    def layout(self, tile_x: int) -> Layout:
        """The layout of a direct tile, with room for one group of sums, then V, M and a block."""
        direct = super().layout(tile_x)
        sums = self.schedule.group * direct.sum_panel
        return replace(direct, total=direct.sums_at + sums + self.block_bytes + self.v_bytes
                       + self.m_bytes * self.schedule.group)

    @property
    def filtering(self) -> Filtering:
        """The matrices."""
        return FILTERINGS[self.schedule.winograd]

    @property
    def blocks(self) -> int:
        """Blocks of a tile."""
        s = self.schedule
        return s.tile_b * s.tile_y * s.tile_x // s.winograd ** 2

    @property
    def v_row(self) -> int:
        """Bytes from one block to the next in V; odd in cache lines."""
        lines = -(-self.schedule.chunk * self.chunks * 4 // 64)
        return 64 * (lines + 1 + lines % 2)

    @property
    def v_bytes(self) -> int:
        """Bytes of V."""
        return self.filtering.points * self.blocks * self.v_row + PIXEL_PAD_BYTES

    @property
    def m_bytes(self) -> int:
        """Bytes of M for one panel."""
        return self.filtering.points * self.blocks * self.width * 4

    @property
    def block_bytes(self) -> int:
        """Bytes of the half-transformed block that `both_sides` keeps."""
        return self.filtering.points * self.level.bytes

    def _tile(self, tile: Tile, tile_x: int) -> None:
        asm, s, layout = self.asm, self.schedule, self.layout(tile_x)
        patch, sums = self.scratch, asm.copy(self.scratch)
        asm.advance(sums, layout.sums_at)
        block = asm.copy(sums)
        asm.advance(block, s.group * layout.sum_panel)
        v = asm.copy(block)
        asm.advance(v, self.block_bytes)
        m = asm.copy(v)
        asm.advance(m, self.v_bytes)
        channel, target = asm.immediate(0), asm.copy(v)
        with asm.loop(self.chunks):
            self._stage(tile, tile_x, layout, patch, channel)
            self._inputs(tile_x, layout, patch, block, target)
            asm.advance(target, 4 * s.chunk)
            asm.advance(channel, s.chunk)
        panel = asm.copy(tile.panel)
        weights = asm.offset(self.pointers["weight"], panel,
                             self.packed.bytes // self.packed.panels)
        with asm.loop(s.panels // s.group):
            self._products(v, m, weights)
            self._outputs(tile_x, m, block, sums)
            self._finish(replace(tile, panel=panel, panels=s.group), tile_x, layout, sums)
            asm.advance(panel, s.group)

    def _inputs(self, tile_x: int, layout: Layout, patch: Register, block: Register,
                target: Register) -> None:
        """V of one staged chunk."""
        asm, s, f = self.asm, self.schedule, self.filtering
        image, to = asm.copy(patch), asm.copy(target)
        point = self.blocks * self.v_row
        with asm.loop(s.tile_b):
            row = asm.copy(image)
            with asm.loop(s.tile_y // f.size):
                pixel = asm.copy(row)
                with asm.loop(tile_x // f.size):
                    at, out = asm.copy(pixel), asm.copy(to)
                    with asm.loop(-(-s.chunk // self.level.lanes)):
                        source = [Memory(at, i * layout.row + j * layout.pixel)
                                  for i in range(f.window) for j in range(f.window)]
                        both_sides(asm, f.inputs, source, block,
                                   [Memory(out, k * point) for k in range(f.points)])
                        asm.advance(at, self.level.bytes)
                        asm.advance(out, self.level.bytes)
                    asm.advance(pixel, f.size * layout.pixel)
                    asm.advance(to, self.v_row)
                asm.advance(row, f.size * layout.row)
            asm.advance(image, layout.image)

    def _products(self, v: Register, m: Register, weights: Register) -> None:
        """M of one group of panels; `weights` is advanced behind them."""
        asm, s, f = self.asm, self.schedule, self.filtering
        depth = s.chunk * self.chunks
        line = self.width * 4
        to = asm.copy(m)
        with asm.loop(s.group):
            point = asm.copy(v)
            with asm.loop(f.points):
                row = asm.copy(point)
                for size, many in split_rows(self.blocks, s.rows):
                    shape = Micro(size, s.vectors, self.v_row, 4, line, s.unroll)
                    with asm.loop(many):
                        held = zero_sums(asm, size, s.vectors)
                        multiply(asm, shape, row, asm.copy(weights),
                                 [Reduction(depth // s.unroll, 4 * s.unroll)], held)
                        store_sums(asm, held, to, line)
                        asm.advance(row, size * self.v_row)
                        asm.advance(to, size * line)
                asm.advance(weights, depth * line)
                asm.advance(point, self.blocks * self.v_row)

    def _outputs(self, tile_x: int, m: Register, block: Register, sums: Register) -> None:
        """The sums of one group of panels."""
        asm, s, f = self.asm, self.schedule, self.filtering
        line = self.width * 4
        panel, row = asm.copy(m), asm.copy(sums)
        with asm.loop(s.group):
            source = asm.copy(panel)
            with asm.loop(s.tile_b * s.tile_y // f.size):
                pixel = asm.copy(row)
                with asm.loop(tile_x // f.size):
                    with asm.loop(s.vectors):
                        points = [Memory(source, k * self.blocks * line)
                                  for k in range(f.points)]
                        both_sides(asm, f.outputs, points, block,
                                   [Memory(pixel, (i * tile_x + j) * line)
                                    for i in range(f.size) for j in range(f.size)])
                        asm.advance(source, self.level.bytes)
                        asm.advance(pixel, self.level.bytes)
                    asm.advance(pixel, (f.size - 1) * line)
                asm.advance(row, f.size * tile_x * line)
            asm.advance(panel, self.m_bytes)
