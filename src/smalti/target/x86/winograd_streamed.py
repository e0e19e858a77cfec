"""Minimal filtering of small images: plain weights, transformed chunk by chunk where they are used.

Transformed weights are 4 times the size of plain ones for F(4). Where an image has few blocks, all
of them fit into one tile of work, and each weight is needed by one tile only: then it is cheaper to
transform a chunk in cache than to read a transformed one from memory. Two steps:

    for each image, rows of blocks, chunk of channels:
        stage the patch; B^T d B of every block              V [chunk][point][block][c]  (shared)
    for each tile of blocks and panels of output channels:
        for each chunk:
            G g G^T of its weights                           U [panel][point][c][o]
            for each point, each panel: M += V U             M [panel][point][block][o]
        A^T M A of every block                               sums [panel][b][y][x][o]
        write the result: epilogue applied

V is shared by all threads; everything else lies in the thread's scratch memory. Rows of blocks and
points are an odd number of cache lines apart, so that a block's points fall into different sets.
"""

from __future__ import annotations

from dataclasses import replace

from smalti.errors import IllegalSchedule
from smalti.target.x86.assembler import Assembler, Memory, Register
from smalti.target.x86.contraction import Contraction, Layout, Tile
from smalti.target.x86.lowered import Lowered, Step, count_left, load_pointers, pointers
from smalti.target.x86.micro import Micro, Reduction, load_sums, multiply, split_rows, store_sums
from smalti.target.x86.winograd import FILTERINGS, Filtering, both_sides, transform

LINE_BYTES = 64


def odd_lines(size: int) -> int:
    """The smallest odd number of cache lines that hold `size` bytes, in bytes.

    >>> odd_lines(256), odd_lines(320), odd_lines(1)
    (320, 320, 64)
    """
    lines = -(-size // LINE_BYTES)
    return LINE_BYTES * (lines + 1 - lines % 2)


class StreamedWinograd(Contraction):
    """A contraction by F(2) or F(4) that reads plain weights."""

    def check(self) -> None:
        """Raise IllegalSchedule where the window or the tile does not fit."""
        super().check()
        e, s = self.e, self.schedule
        if s.winograd not in FILTERINGS:
            raise IllegalSchedule(f"there is no F({s.winograd})")
        steps = (e.r, e.s, e.stride_y, e.stride_x, e.dilation_y, e.dilation_x)
        if steps != (3, 3, 1, 1, 1, 1) or s.dtype != "f32":
            raise IllegalSchedule("minimal filtering is for 3x3 windows in steps of 1, in f32")
        if s.tile_x != e.x or e.y % s.tile_y or s.tile_y % s.winograd or s.tile_x % s.winograd:
            raise IllegalSchedule(f"tiles of {s.tile_y} x {s.tile_x} in blocks of {s.winograd} are "
                                  f"not whole rows that divide {e.y} x {e.x} pixels")
        if s.tile_b > 1 and s.tile_y != e.y:
            raise IllegalSchedule(f"tiles of {s.tile_b} images need all of their {e.y} rows")

    # ------------------------------------------------------------------ sizes

    @property
    def filtering(self) -> Filtering:
        """The matrices."""
        return FILTERINGS[self.schedule.winograd]

    @property
    def image_blocks(self) -> int:
        """Blocks of the rows of one image that a tile holds."""
        s = self.schedule
        return s.tile_y * s.tile_x // s.winograd ** 2

    @property
    def blocks(self) -> int:
        """Blocks of a tile."""
        return self.schedule.tile_b * self.image_blocks

    @property
    def v_row(self) -> int:
        """Bytes from one block to the next in V."""
        return odd_lines(4 * self.schedule.chunk)

    @property
    def v_point(self) -> int:
        """Bytes from one point to the next in V."""
        e = self.e
        return odd_lines(e.b * e.y * e.x // self.schedule.winograd ** 2 * self.v_row)

    @property
    def v_chunk(self) -> int:
        """Bytes from one chunk to the next in V."""
        return self.filtering.points * self.v_point

    @property
    def u_point(self) -> int:
        """Bytes from one point to the next in U."""
        return odd_lines(self.schedule.chunk * self.line)

    @property
    def u_bytes(self) -> int:
        """Bytes of U for one panel."""
        return self.filtering.points * self.u_point

    @property
    def m_point(self) -> int:
        """Bytes from one point to the next in M."""
        return odd_lines(self.blocks * self.line)

    @property
    def m_bytes(self) -> int:
        """Bytes of M for one panel."""
        return self.filtering.points * self.m_point

    @property
    def line(self) -> int:
        """Bytes of one vector of output channels of a panel."""
        return 4 * self.width

    @property
    def block_bytes(self) -> int:
        """Bytes of the half-transformed block that `both_sides` keeps."""
        return self.filtering.points * self.level.bytes

    # ------------------------------------------------------------------ both steps

    def lower(self) -> Lowered:
        """Emit both steps."""
        names = pointers(self.kernel)
        first = self._first_step(names)
        self.asm = Assembler(self.level, "contraction")
        second = self._second_step(names)
        s = self.schedule
        staged = self.layout(s.tile_x).sums_at + self.block_bytes
        layout = self._sums_layout()
        multiplied = layout.total + s.panels * (self.u_bytes + self.m_bytes) + self.block_bytes
        return Lowered((first, second), names, max(staged, multiplied),
                       self.chunks * self.v_chunk, self.packed)

    def _sums_layout(self) -> Layout:
        """The layout of the second step: nothing is staged before the sums."""
        layout = self.layout(self.schedule.tile_x)
        return replace(layout, sums_at=0, total=self.schedule.panels * layout.sum_panel)

    def _arguments(self, names: tuple[str, ...]) -> tuple[Register, Register]:
        """Load the pointers; the tile's number and the address of V."""
        asm = self.asm
        table, index, self.scratch = asm.argument(), asm.argument(), asm.argument()
        self.pointers = load_pointers(asm, table, (*names, "v"))
        return asm.copy(index), self.pointers["v"]

    def _first_step(self, names: tuple[str, ...]) -> Step:
        """V: a tile is one image's rows of a tile and one chunk."""
        asm, e, s = self.asm, self.e, self.schedule
        index, v = self._arguments(names)
        rows = e.y // s.tile_y
        index, row = asm.divide(index, rows)
        chunk, b = asm.divide(index, e.b)
        zero = asm.immediate(0)
        tile = Tile(b, asm.offset(zero, row, s.tile_y), zero, zero, 1, s.tile_y, 0)
        layout = self.layout(s.tile_x)
        channel = asm.offset(zero, chunk, s.chunk) if self.chunks > 1 else 0
        self._stage(tile, s.tile_x, layout, self.scratch, channel)
        block = asm.copy(self.scratch)
        asm.advance(block, layout.sums_at)
        v = asm.offset(v, chunk, self.v_chunk)
        v = asm.offset(v, b, rows * self.image_blocks * self.v_row)
        v = asm.offset(v, row, self.image_blocks * self.v_row)
        self._inputs(layout, asm.copy(self.scratch), block, v)
        return Step(asm.finish(), rows * e.b * self.chunks)

    def _inputs(self, layout: Layout, row: Register, block: Register, target: Register) -> None:
        """V of the staged patch."""
        asm, s, f = self.asm, self.schedule, self.filtering
        with asm.loop(s.tile_y // f.size):
            pixel = asm.copy(row)
            with asm.loop(s.tile_x // f.size):
                at, out = asm.copy(pixel), asm.copy(target)
                with asm.loop(-(-s.chunk // self.level.lanes)):
                    both_sides(asm, f.inputs, [
                        Memory(at, i * layout.row + j * layout.pixel)
                        for i in range(f.window) for j in range(f.window)
                    ], block, [Memory(out, k * self.v_point) for k in range(f.points)])
                    asm.advance(at, self.level.bytes)
                    asm.advance(out, self.level.bytes)
                asm.advance(pixel, f.size * layout.pixel)
                asm.advance(target, self.v_row)
            asm.advance(row, f.size * layout.row)

    def _second_step(self, names: tuple[str, ...]) -> Step:
        """The products: a tile is `tile_b` images' rows of a tile, and `panels` panels."""
        asm, e, s = self.asm, self.e, self.schedule
        index, v = self._arguments(names)
        rows, images = e.y // s.tile_y, e.b // s.tile_b
        index, row = asm.divide(index, rows)
        panel_tile, b_tile = asm.divide(index, images)
        zero = asm.immediate(0)
        tile = Tile(asm.offset(zero, b_tile, s.tile_b), asm.offset(zero, row, s.tile_y), zero,
                    asm.offset(zero, panel_tile, s.panels), s.tile_b, s.tile_y, 0)
        tile.panels = count_left(asm, tile.panel, s.panels, self.packed.panels)
        v = asm.offset(v, tile.b, rows * self.image_blocks * self.v_row)
        v = asm.offset(v, row, self.image_blocks * self.v_row)
        layout = self._sums_layout()
        sums = self.scratch
        u = asm.copy(sums)
        asm.advance(u, layout.total)
        m = asm.copy(u)
        asm.advance(m, s.panels * self.u_bytes)
        block = asm.copy(m)
        asm.advance(block, s.panels * self.m_bytes)
        panel_bytes = self.packed.bytes // self.packed.panels
        weights = asm.offset(self.pointers["weight"], tile.panel, panel_bytes)
        self._clear_products(tile, m)
        with asm.loop(self.chunks):
            self._transform_weights(tile, weights, panel_bytes, u)
            self._products(tile, v, u, m)
            asm.advance(weights, panel_bytes // self.chunks)
            asm.advance(v, self.v_chunk)
        self._outputs(tile, layout, m, block, sums)
        self._finish(tile, s.tile_x, layout, sums)
        tiles = rows * images * -(-self.packed.panels // s.panels)
        return Step(asm.finish(), tiles)

    def _clear_products(self, tile: Tile, m: Register) -> None:
        asm = self.asm
        zero, at = asm.zero(), asm.copy(m)
        with asm.loop(tile.panels):
            with asm.loop(self.m_bytes // self.level.bytes):
                asm.store(Memory(at), zero)
                asm.advance(at, self.level.bytes)

    def _transform_weights(self, tile: Tile, weights: Register, panel_bytes: int,
                           u: Register) -> None:
        """U of one chunk of every panel of the tile, from [r][s][c][o] of the packed weights."""
        asm, s, matrix = self.asm, self.schedule, self.filtering.weights
        tap, size = s.chunk * self.line, len(matrix)
        panel, panel_u = asm.copy(weights), asm.copy(u)
        with asm.loop(tile.panels):
            at, out = asm.copy(panel), asm.copy(panel_u)
            with asm.loop(s.chunk * s.vectors):
                columns = [transform(asm, matrix, [asm.load(Memory(at, (3 * r + k) * tap))
                                                   for r in range(3)]) for k in range(3)]
                for row in range(size):
                    values = transform(asm, matrix, [column[row] for column in columns])
                    for k, value in enumerate(values):
                        asm.store(Memory(out, (size * row + k) * self.u_point), value)
                asm.advance(at, self.level.bytes)
                asm.advance(out, self.level.bytes)
            asm.advance(panel, panel_bytes)
            asm.advance(panel_u, self.u_bytes)

    def _products(self, tile: Tile, v: Register, u: Register, m: Register) -> None:
        """Add the products of one chunk to M; a point of V is used by all panels in turn."""
        asm, s, f = self.asm, self.schedule, self.filtering
        point, point_u, point_m = asm.copy(v), asm.copy(u), asm.copy(m)
        with asm.loop(f.points):
            panel_u, panel_m = asm.copy(point_u), asm.copy(point_m)
            with asm.loop(tile.panels):
                row, to = asm.copy(point), asm.copy(panel_m)
                for size, many in split_rows(self.blocks, s.rows):
                    shape = Micro(size, s.vectors, self.v_row, 4, self.line, s.unroll)
                    with asm.loop(many):
                        held = load_sums(asm, size, s.vectors, to, self.line)
                        multiply(asm, shape, row, asm.copy(panel_u),
                                 [Reduction(s.chunk // s.unroll, 4 * s.unroll)], held)
                        store_sums(asm, held, to, self.line)
                        asm.advance(row, size * self.v_row)
                        asm.advance(to, size * self.line)
                asm.advance(panel_u, self.u_bytes)
                asm.advance(panel_m, self.m_bytes)
            asm.advance(point, self.v_point)
            asm.advance(point_u, self.u_point)
            asm.advance(point_m, self.m_point)

    def _outputs(self, tile: Tile, layout: Layout, m: Register, block: Register,
                 sums: Register) -> None:
        """The sums of every block of every panel."""
        asm, s, f = self.asm, self.schedule, self.filtering
        panel, panel_sums = asm.copy(m), asm.copy(sums)
        with asm.loop(tile.panels):
            source, row = asm.copy(panel), asm.copy(panel_sums)
            with asm.loop(s.tile_b * s.tile_y // f.size):
                pixel = asm.copy(row)
                with asm.loop(s.tile_x // f.size):
                    with asm.loop(s.vectors):
                        both_sides(asm, f.outputs,
                                   [Memory(source, k * self.m_point) for k in range(f.points)],
                                   block, [Memory(pixel, (i * s.tile_x + j) * self.line)
                                           for i in range(f.size) for j in range(f.size)])
                        asm.advance(source, self.level.bytes)
                        asm.advance(pixel, self.level.bytes)
                    asm.advance(pixel, (f.size - 1) * self.line)
                asm.advance(row, f.size * s.tile_x * self.line)
            asm.advance(panel, self.m_bytes)
            asm.advance(panel_sums, layout.sum_panel)
