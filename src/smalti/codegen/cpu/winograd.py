"""Contractions by Winograd's algorithm (the matrices and their source are in winograd.py).

For each tile of blocks:

    for each chunk of channels: stage the patch; B^T d B of its blocks    V [point][c][block][lane]
    for each group of panels:
        for each point, each panel: V[point] times the packed weights     M [panel][point][block][o]
        for each panel, each row of blocks: A^T M A                       sums [y][x][o]
            write the result: epilogue applied

In V, blocks lie side by side, one vector of channels of each (c counts vectors), so that the
micro-kernel reads along memory whatever the number of channels.

Everything but the weights lies in the thread's scratch memory. If the inputs are `shared`, V of all
tiles is made by a step of its own and lies in memory of all threads: the tiles of the second step
are then as many as there are groups of panels, and nothing is transformed twice. Weights are
transformed at binding, when they are packed. If each tile transforms them, they are plain ones, and
the products are made chunk by chunk:

        for each chunk: G g G^T of its weights                            U [panel][point][c][o]
            (quantised ones become f32 in front of it, a group of channels at a time)
            for each point, each panel: M += V[chunk][point] U

That reads a quarter of the memory and needs no more of it than the direct algorithm. It costs the
transform, which is small beside the products where a tile has many blocks. If they are transformed
once a run, U of all panels is made by a step of its own, and is gone when the kernel has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from smalti.codegen.cpu.direct import PIXEL_PAD_BYTES, DirectLowering, ScratchLayout, Tile
from smalti.codegen.cpu.lowered import (
    KernelStep,
    NativeKernel,
    count_left,
    load_pointers,
    pointers,
    smaller,
)
from smalti.codegen.cpu.micro import (
    HALVES,
    Micro,
    Reduction,
    load_factor,
    load_sums,
    multiply,
    split_rows,
    store_sums,
    vector_bytes_of,
    zero_sums,
)
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.winograd_transforms import TRANSFORMS, WinogradTransform, both_sides
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS
from smalti.schedule.merge import halved
from smalti.schedule.schedule import RUN, TILE, Winograd

LINE_BYTES = 64
"""Bytes of a cache line, on every x86 CPU so far."""


def odd_lines(size: int) -> int:
    """The bytes of the smallest odd number of cache lines that hold `size` bytes.

    What lies so far apart falls into different sets of the cache.

    >>> odd_lines(256), odd_lines(320), odd_lines(1)
    (320, 320, 64)
    """
    lines = -(-size // LINE_BYTES)
    return LINE_BYTES * (lines + 1 - lines % 2)


@dataclass(frozen=True)
class WinogradScratch:
    """Where things begin in the scratch memory of a thread, behind the patch."""

    sums: int
    v: int
    m: int
    u: int
    plain: int
    total: int


class WinogradLowering(DirectLowering):
    """Makes the code of a contraction by F(2) or F(4), alone or behind an enlargement."""

    def check(self) -> None:
        """Raise IllegalSchedule where the window or the tile does not fit."""
        super().check()
        e, s, w = self.e, self.schedule, self.winograd
        steps = (e.r, e.s, e.stride_y, e.stride_x, e.dilation_y, e.dilation_x)
        if steps != (3, 3, 1, 1, 1, 1) or s.dtype != "f32":
            raise IllegalSchedule("Winograd is for 3x3 windows in steps of 1, in f32")
        if w.folded and halved(self.patch) is None:
            raise IllegalSchedule("no nearest enlargement by 2 stands in front of the window")
        if s.tile_y % w.size or s.tile_x % w.size:
            raise IllegalSchedule(f"tiles of {s.tile_y} x {s.tile_x} are not made of blocks of "
                                  f"{w.size}")
        if self.packed.panels % s.panels or s.panels % w.group:
            raise IllegalSchedule(f"groups of {w.group} in {s.panels} of {self.packed.panels} "
                                  f"panels")
        if self.slices < self.chunks and s.chunk % self.level.lanes:
            raise IllegalSchedule(f"chunks of {s.chunk} channels are no whole vectors")

    @property
    def winograd(self) -> Winograd:
        """The algorithm of the schedule."""
        assert isinstance(self.schedule.algorithm, Winograd), self.schedule
        return self.schedule.algorithm

    # ------------------------------------------------------------------ memory

    @property
    def transform(self) -> WinogradTransform:
        """The matrices."""
        return TRANSFORMS[self.winograd.size, self.winograd.folded]

    @property
    def image_blocks(self) -> int:
        """Blocks of a tile in one image."""
        return self.schedule.tile_y * self.schedule.tile_x // self.winograd.size ** 2

    @property
    def blocks(self) -> int:
        """Blocks of a tile."""
        return self.schedule.tile_b * self.image_blocks

    def patch_extent(self, tile: int) -> int:
        """Input pixels that a tile of so many output pixels reads along an axis."""
        f = self.transform
        return (tile // f.size - 1) * f.step + f.window

    def layout(self, tile_x: int) -> ScratchLayout:
        """The layout of the patch, and of the sums of a row of blocks in one panel."""
        s = self.schedule
        pixel = -(-s.chunk * 4 // 64) * 64 + PIXEL_PAD_BYTES
        row = pixel * self.patch_extent(tile_x)
        image = row * self.patch_extent(s.tile_y)
        sums = self.transform.size * tile_x * self.width * 4
        return ScratchLayout(pixel, row, image, image + PIXEL_PAD_BYTES, sums, 0, 0)

    @property
    def scratch_layout(self) -> WinogradScratch:
        """Where sums, V, M and U lie."""
        s, w = self.schedule, self.winograd
        layout = self.layout(s.tile_x)
        v = layout.sums_at + layout.sum_panel
        m = v + (0 if w.shared else self.v_bytes)
        u = m + self.m_bytes * w.group
        plain = u + (self.u_bytes * w.group if w.transformed == TILE else 0)
        return WinogradScratch(layout.sums_at, v, m, u, plain, plain + self.plain_bytes)

    @property
    def plain_channels(self) -> int:
        """Channels of a panel whose plain weights lie together, a tap behind the other: of
        quantised ones, those that are unpacked at a time."""
        return FORMATS[self.schedule.weights].group if self.quantised else self.packed.chunk

    @property
    def plain_bytes(self) -> int:
        """Bytes of their factors, where weights are quantised."""
        return 4 * self.plain_channels * self.packed.taps * self.width if self.quantised else 0

    @property
    def slices(self) -> int:
        """Parts of V along the channels that lie one behind the other."""
        return self.chunks if self.winograd.transformed == TILE else 1

    @property
    def depth(self) -> int:
        """Channels of a slice of V."""
        return self.schedule.chunk * (self.chunks // self.slices)

    @property
    def v_vector(self) -> int:
        """Bytes from one vector of channels to the next in V."""
        return odd_lines(self.blocks * self.level.bytes)

    @property
    def v_point(self) -> int:
        """Bytes from one point to the next in V."""
        return odd_lines(-(-self.depth // self.level.lanes) * self.v_vector)

    @property
    def v_slice(self) -> int:
        """Bytes from one slice to the next in V."""
        return self.transform.points * self.v_point

    @property
    def v_chunk(self) -> int:
        """Bytes from one staged chunk to the next in V."""
        if self.winograd.transformed == TILE:
            return self.v_slice
        return self.schedule.chunk // self.level.lanes * self.v_vector

    @property
    def v_bytes(self) -> int:
        """Bytes of V of one tile."""
        return self.slices * self.v_slice

    @property
    def m_point(self) -> int:
        """Bytes from one point to the next in M."""
        return odd_lines(self.blocks * self.width * 4)

    @property
    def m_bytes(self) -> int:
        """Bytes of M for one panel."""
        return self.transform.points * self.m_point

    @property
    def u_point(self) -> int:
        """Bytes from one point to the next in U."""
        return odd_lines(self.depth * self.width * 4)

    @property
    def u_bytes(self) -> int:
        """Bytes of U for one panel."""
        return self.transform.points * self.u_point

    # ------------------------------------------------------------------ steps

    def lower(self) -> NativeKernel:
        """Emit everything."""
        e, s, w = self.e, self.schedule, self.winograd
        self.counts = (-(-e.x // s.tile_x), -(-e.y // s.tile_y), e.b // s.tile_b)
        self.tiles = self.counts[0] * self.counts[1] * self.counts[2]
        groups = self.packed.panels // s.panels
        steps = [self._weights_step()] if w.transformed == RUN else []
        if w.shared:
            steps += [self._step("winograd_inputs", self.chunks * s.tile_b, self._one_chunk),
                      self._step("winograd_products", groups, self._panels)]
        else:
            steps.append(self._step("winograd", groups, self._whole))
        workspace_bytes = self.all_v_bytes + (
            self.packed.panels * self.u_bytes if w.transformed == RUN else 0)
        return NativeKernel(tuple(steps), pointers(self.kernel), self.scratch_layout.total,
                            workspace_bytes, self.packed, (w.size, w.folded))

    @property
    def all_v_bytes(self) -> int:
        """Bytes of V of all tiles, in shared memory; 0 where V is not there."""
        return self.tiles * self.v_bytes if self.winograd.shared else 0

    def _begin(self, name: str) -> Register:
        """Begin a step: its pointers; the number of the tile."""
        self.asm = asm = self.level.assembler(name)
        table, index, self.scratch = asm.argument(), asm.argument(), asm.argument()
        names = pointers(self.kernel)
        if self.winograd.shared or self.winograd.transformed == RUN:
            names = (*names, "workspace")
        self.pointers = load_pointers(asm, table, names)
        return index

    def _weights_step(self) -> KernelStep:
        """The step that makes U of all panels, for as long as the kernel runs: a tile is one chunk
        of a panel."""
        index = self._begin("winograd_weights")
        asm, s = self.asm, self.schedule
        panel, chunk = asm.divide(index, self.chunks)
        weights = asm.offset(self.pointers["weight"], panel, self.packed.panel_bytes)
        weights = asm.offset(weights, chunk, self.packed.panel_bytes // self.chunks)
        u = asm.offset(self._shared_u(panel), chunk, s.chunk * self.width * 4)
        self._transform_weights(weights, u, 1)
        return KernelStep(asm.finish(), self.packed.panels * self.chunks)

    def _shared_u(self, panel: Register) -> Register:
        """Where U of a panel begins in shared memory."""
        u = self.asm.offset(self.pointers["workspace"], panel, self.u_bytes)
        self.asm.advance(u, self.all_v_bytes)
        return u

    def _step(self, name: str, parts: int,
              body: Callable[[Tile, Register, Register], None]) -> KernelStep:
        """`body(tile, V of the tile, part)` for each tile and each of `parts`."""
        index = self._begin(name)
        asm, e, s = self.asm, self.e, self.schedule
        part, number = asm.divide(index, self.tiles)
        index, x = asm.divide(number, self.counts[0])
        b, y = asm.divide(index, self.counts[1])
        zero = asm.immediate(0)
        tile = Tile(asm.offset(zero, b, s.tile_b), asm.offset(zero, y, s.tile_y),
                    asm.offset(zero, x, s.tile_x), part, s.tile_b, 0, s.panels)
        tile.rows = count_left(asm, tile.y, s.tile_y, e.y)
        tile.columns = count_left(asm, tile.x, s.tile_x, e.x)
        if self.winograd.shared:
            v = asm.offset(self.pointers["workspace"], number, self.v_bytes)
        else:
            v = self._at(self.scratch_layout.v)
        body(tile, v, part)
        return KernelStep(asm.finish(), self.tiles * parts)

    def _at(self, offset: int) -> Register:
        """A new register: the address of a place in the scratch memory."""
        register = self.asm.copy(self.scratch)
        self.asm.advance(register, offset)
        return register

    def _whole(self, tile: Tile, v: Register, part: Register) -> None:
        """Emit all of a tile and of a group of panels."""
        asm, chunk = self.asm, self.schedule.chunk
        channel, target = asm.immediate(0), asm.copy(v)
        with asm.loop(self.chunks):
            image, image_v = asm.copy(tile.b), asm.copy(target)
            with asm.loop(self.schedule.tile_b):
                self._inputs(replace(tile, b=image), channel, image_v)
                asm.advance(image, 1)
                asm.advance(image_v, self.image_blocks * self.level.bytes)
            asm.advance(target, self.v_chunk)
            asm.advance(channel, chunk)
        self._panels(tile, v, part)

    def _one_chunk(self, tile: Tile, v: Register, part: Register) -> None:
        """Emit V of one chunk and one image of a tile."""
        asm, s = self.asm, self.schedule
        number, image = asm.divide(part, s.tile_b)
        channel = asm.offset(asm.immediate(0), number, s.chunk)
        v = asm.offset(v, number, self.v_chunk)
        v = asm.offset(v, image, self.image_blocks * self.level.bytes)
        self._inputs(replace(tile, b=asm.offset(tile.b, image, 1)), channel, v)

    def _panels(self, tile: Tile, v: Register, part: Register) -> None:
        """Emit the results of a group of panels, from V."""
        asm, s, w = self.asm, self.schedule, self.winograd
        panel = asm.offset(asm.immediate(0), part, s.panels)
        if w.transformed == RUN:
            weights, panel_bytes, point_bytes = self._shared_u(panel), self.u_bytes, self.u_point
        else:
            weights = asm.offset(self.pointers["weight"], panel, self.packed.panel_bytes)
            panel_bytes, point_bytes = self.packed.panel_bytes, self.depth * self.width * 4
        m = self._at(self.scratch_layout.m)
        with asm.loop(s.panels // w.group):
            if w.transformed == TILE:
                self._products_by_chunks(v, m, weights)
            else:
                self._products(v, m, weights, panel_bytes, point_bytes)
            asm.advance(weights, w.group * panel_bytes)
            at = asm.copy(m)
            with asm.loop(w.group):
                self._outputs(replace(tile, panel=panel, panels=1), at)
                asm.advance(panel, 1)
                asm.advance(at, self.m_bytes)

    # ------------------------------------------------------------------ the three phases

    def _inputs(self, tile: Tile, channel: Register, target: Register) -> None:
        """Emit V of one chunk of one image: stage the patch, transform its blocks."""
        asm, s, f, e = self.asm, self.schedule, self.transform, self.e
        layout = self.layout(s.tile_x)
        stage, origins = self.patch, {"b": tile.b, "y": tile.y, "x": tile.x, "c": channel}
        if self.winograd.folded:
            stage = halved(stage)
            for axis in "yx":
                origins[axis] = asm.copy(origins[axis])
                asm.op("shift_right", origins[axis], 1)
        clipped = [axis for axis, extent, step in (("y", e.y, s.tile_y), ("x", e.x, s.tile_x))
                   if extent % step]
        extents = (1, self.patch_extent(s.tile_y), self.patch_extent(s.tile_x))
        self._copy(stage, origins, extents, layout, self.scratch, clipped)
        row, to = asm.copy(self.scratch), asm.copy(target)
        with asm.loop(s.tile_y // f.size):
            pixel = asm.copy(row)
            with asm.loop(s.tile_x // f.size):
                at, out = asm.copy(pixel), asm.copy(to)
                with asm.loop(-(-s.chunk // self.level.lanes)):
                    both_sides(asm, f.inputs,
                               [Address(at, i * layout.row + j * layout.pixel)
                                for i in range(f.window) for j in range(f.window)],
                               [Address(out, k * self.v_point) for k in range(f.points)])
                    asm.advance(at, self.level.bytes)
                    asm.advance(out, self.v_vector)
                asm.advance(pixel, f.step * layout.pixel)
                asm.advance(to, self.level.bytes)
            asm.advance(row, f.step * layout.row)

    def _products_by_chunks(self, v: Register, m: Register, weights: Register) -> None:
        """Emit M of one group of panels, chunk by chunk from plain weights."""
        asm = self.asm
        u, chunk, chunk_v = self._at(self.scratch_layout.u), asm.copy(weights), asm.copy(v)
        self._transform_weights(chunk, u, self.winograd.group)
        self._products(chunk_v, m, u, self.u_bytes, self.u_point)
        if self.chunks > 1:
            with asm.loop(self.chunks - 1):
                asm.advance(chunk, self.packed.panel_bytes // self.chunks)
                asm.advance(chunk_v, self.v_slice)
                self._transform_weights(chunk, u, self.winograd.group)
                self._products(chunk_v, m, u, self.u_bytes, self.u_point, added=True)

    def _transform_weights(self, weights: Register, u: Register, panels: int) -> None:
        """U of one chunk of neighbouring panels, from [r][s][c][o] of some channels of the packed
        weights, then of the next ones, or from [c][r][s][o] of quantised ones, unpacked."""
        asm, s = self.asm, self.schedule
        panel, panel_u = asm.copy(weights), asm.copy(u)
        with asm.loop(panels):
            at, out = asm.copy(panel), asm.copy(panel_u)
            with asm.loop(s.chunk // self.plain_channels):
                if self.quantised:
                    plain = self._at(self.scratch_layout.plain)
                    self._unpack(at, plain, self.plain_channels)
                    self._transform_channels(plain, out, self.packed.line_bytes)
                else:
                    tap = self.packed.panel_bytes // self.packed.chunks // self.packed.taps
                    self._transform_channels(at, out, tap)
                    asm.advance(at, (self.packed.taps - 1) * tap)
            asm.advance(panel, self.packed.panel_bytes)
            asm.advance(panel_u, self.u_bytes)

    def _transform_channels(self, at: Register, out: Register, tap: int) -> None:
        """U at `out` of the channels at `at`, whose taps are so many bytes apart."""
        asm, s, line = self.asm, self.schedule, self.width * 4
        halves, vector_bytes = HALVES[s.factors], vector_bytes_of(asm, s.factors)
        with asm.loop(self.plain_channels // len(halves)):
            with asm.loop(s.vectors):
                for i, half in enumerate(halves):
                    both_sides(asm, self.transform.weights,
                               [Address(at, k * tap) for k in range(9)],
                               [Address(out, k * self.u_point + i * line)
                                for k in range(self.transform.points)],
                               partial(load_factor, factors=s.factors, half=half))
                asm.advance(at, vector_bytes)
                asm.advance(out, self.level.bytes)
            asm.advance(out, (len(halves) - 1) * line)
            asm.advance(at, (self.packed.channel_lines - 1) * line)

    def _products(self, v: Register, m: Register, weights: Register, panel_bytes: int,
                  point_bytes: int, added: bool = False) -> None:
        """M of one group of panels, or what one chunk adds to it, from transformed weights."""
        asm, s = self.asm, self.schedule
        line = self.width * 4
        point, point_m, point_weights = asm.copy(v), asm.copy(m), asm.copy(weights)
        with asm.loop(self.transform.points):
            panel, panel_m = asm.copy(point_weights), asm.copy(point_m)
            with asm.loop(self.winograd.group):
                row, to = asm.copy(point), asm.copy(panel_m)
                for size, many in split_rows(self.blocks, s.rows):
                    with asm.loop(many):
                        held = (load_sums(asm, size, s.vectors, to, line) if added
                                else zero_sums(asm, size, s.vectors))
                        self._multiply_blocks(size, row, asm.copy(panel), held)
                        store_sums(asm, held, to, line)
                        asm.advance(row, size * self.level.bytes)
                        asm.advance(to, size * line)
                asm.advance(panel, panel_bytes)
                asm.advance(panel_m, self.m_bytes)
            asm.advance(point, self.v_point)
            asm.advance(point_m, self.m_point)
            asm.advance(point_weights, point_bytes)

    def _multiply_blocks(self, blocks: int, row: Register, weights: Register,
                         held: list[list[Register]]) -> None:
        """Add the products of a slice of V at neighbouring blocks, and of one panel, to `held`."""
        asm, s, lanes = self.asm, self.schedule, self.level.lanes
        shape = Micro(blocks, s.vectors, self.level.bytes, 4, self.width * 4, s.unroll)
        whole, part = divmod(self.depth, lanes)
        if whole:
            multiply(asm, shape, row, weights,
                     [Reduction(whole, self.v_vector), Reduction(lanes // s.unroll, 4 * s.unroll)],
                     held)
        if part:
            last = asm.copy(row)
            asm.advance(last, whole * self.v_vector)
            multiply(asm, shape, last, weights, [Reduction(part // s.unroll, 4 * s.unroll)], held)

    def _outputs(self, tile: Tile, m: Register) -> None:
        """Emit the results of one panel, a row of blocks at a time."""
        asm, s, f = self.asm, self.schedule, self.transform
        layout, line = self.layout(s.tile_x), self.width * 4
        sums = self._at(self.scratch_layout.sums)
        image, image_m = asm.copy(tile.b), asm.copy(m)
        with asm.loop(s.tile_b):
            left, y, source = self._rows(tile), asm.copy(tile.y), asm.copy(image_m)
            with asm.loop(self._block_rows(tile)):
                pixel, at = asm.copy(sums), asm.copy(source)
                with asm.loop(s.tile_x // f.size):
                    with asm.loop(s.vectors):
                        both_sides(asm, f.outputs,
                                   [Address(at, k * self.m_point) for k in range(f.points)],
                                   [Address(pixel, (i * s.tile_x + j) * line)
                                    for i in range(f.size) for j in range(f.size)])
                        asm.advance(at, self.level.bytes)
                        asm.advance(pixel, self.level.bytes)
                    asm.advance(pixel, (f.size - 1) * line)
                rows = f.size if isinstance(left, int) else smaller(asm, left, f.size)
                self._finish(replace(tile, b=image, y=y, images=1, rows=rows), s.tile_x, layout,
                             sums)
                if isinstance(left, Register):
                    asm.advance(left, -f.size)
                asm.advance(y, f.size)
                asm.advance(source, s.tile_x // f.size * line)
            asm.advance(image, 1)
            asm.advance(image_m, self.image_blocks * line)

    def _rows(self, tile: Tile) -> int | Register:
        """How many rows of pixels of the tile lie inside the output."""
        return tile.rows if isinstance(tile.rows, int) else self.asm.copy(tile.rows)

    def _block_rows(self, tile: Tile) -> int | Register:
        """How many rows of blocks of the tile lie inside the output, at least in part."""
        asm, size = self.asm, self.transform.size
        if isinstance(tile.rows, int):
            return tile.rows // size
        count = asm.copy(tile.rows)
        asm.advance(count, size - 1)
        asm.op("shift_right", count, size.bit_length() - 1)
        return count
