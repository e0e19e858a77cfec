"""Direct contractions: convolutions and matrix products, one pipeline.

For each tile of output pixels and panels of output channels:

    for each chunk of input channels:
        stage the input patch: prologue applied, borders zeroed         patch [b][y][x][c]
        for each panel, for each run of pixels:
            micro-kernel over the window and the chunk                  sums [panel][b][y][x][o]
    write the result: epilogue applied

The patch and the sums lie in the thread's scratch memory and stay in its second-level cache;
packed weights stream through once for each tile. Weights that are computed, and those of which each
image or row has its own, are packed by a step in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.integer_stages import SCALES, as_bytes, scaled
from smalti.codegen.cpu.integers import unrounded
from smalti.codegen.cpu.lowered import (
    KernelStep,
    NativeKernel,
    count_left,
    load_pointers,
    pointers,
)
from smalti.codegen.cpu.micro import (
    LINE_BYTES,
    Micro,
    Reduction,
    load_sums,
    multiply,
    split_rows,
    store_sums,
    widen,
    zero_sums,
)
from smalti.codegen.cpu.nest import AccessStream, LoopAxis, Nest, Sink, stream_of
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.cpu.unpacking import pair, registers, unpack
from smalti.codegen.cpu.weights import CodePanels, IntegerPanels, weight_panels
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS, Format
from smalti.kernel.form import (
    STORED_BYTES,
    Const,
    Kernel,
    Load,
    Stage,
    affine,
    loads,
    paired_weights,
    rounded_weights,
)
from smalti.schedule.merge import (
    access,
    bytes_shift,
    contraction_extents,
    integer_sums,
    store,
    weights_batched,
    weights_bound,
)
from smalti.schedule.schedule import ContractionSchedule

PIXEL_PAD_BYTES = 64
"""A cache line between staged pixels, so that the rows of a register tile fall into different cache
sets."""
AHEAD_PIXELS_MAX = 168
"""A panel that several runs of pixels, up to so many pixels in all, use asks for the next one while
it is used. How long it may take to come from memory depends on pixels, whatever vectors hold.
Measured with `ROWS_MAX` of `schedule.choose`: matrix products take 6 to 13 % less time with AVX-512
(12 runs of 14 pixels), up to 7 % less with AVX2 (28 of 6)."""
STAGED_AHEAD = 4
"""Rows of a matrix that are asked for ahead while those of a chunk are staged: each is a short
piece of a long one, by whose end the CPU has only begun to load ahead by itself. Measured on Zen 3
for products of 256 and 1024 rows: 3 to 4 % less time, with 2 rows as with 4."""
WIDENED_RUNS_MIN = 3
"""Runs of pixels from which on halves of a panel are widened once for all of them, where products
take factors by lane. There each widening takes a unit that multiplies, `fcvtl` for two clocks, and
a store one for a clock: two runs would gain nothing."""


@dataclass(frozen=True)
class ScratchLayout:
    """Bytes of the staged patch, of the sums, and of a panel of quantised weights as factors, for
    one width of tile."""

    pixel: int
    row: int
    image: int
    sums_at: int
    sum_panel: int
    plain_at: int
    total: int


@dataclass
class Tile:
    """Where a tile begins, and how much of it lies inside the output."""

    b: Register
    y: Register
    x: Register
    panel: Register
    images: int | Register
    rows: int | Register
    panels: int | Register
    columns: int | Register | None = None
    """Where that is not the width of the tile."""


class DirectLowering:
    """Makes the code of a direct contraction whose input patch is staged in scratch memory; the
    other algorithms are made of its parts."""

    def __init__(self, kernel: Kernel, schedule: ContractionSchedule, level: FeatureLevel) -> None:
        self.kernel, self.schedule, self.level = kernel, schedule, level
        self.e = contraction_extents(kernel)
        self.width = schedule.vectors * level.lanes
        self.size = STORED_BYTES[schedule.dtype]
        self.packed = weight_panels(kernel, schedule, level)
        self.chunks = -(-self.e.c // schedule.chunk)
        self.patch, _, out = kernel.stages
        self.result = replace(out, value=unrounded(out.value, kernel.buffer("out").dtype))
        if rounded_weights(kernel) and not schedule.by_group:
            self.result = replace(self.result, value=scaled(self.result.value))
        if schedule.dtype == "u8":
            self.patch = as_bytes(kernel, level.signed and not self.flipped)
        self.batched = weights_batched(kernel)
        self.asm = level.assembler("contraction")
        self.check()

    def check(self) -> None:
        """Raise IllegalSchedule where tiles or chunks do not divide what they must."""
        e, schedule = self.e, self.schedule
        if self.chunks > 1 and e.c % schedule.chunk:
            raise IllegalSchedule(f"chunks of {schedule.chunk} do not divide {e.c} channels")
        step = schedule.step
        if schedule.chunk > -(-e.c // step) * step:  # what is staged has no more zeros behind it
            raise IllegalSchedule(f"a chunk of {schedule.chunk} is more than {e.c} channels in "
                                  f"steps of {step}")
        given = self.kernel.buffer("weight").dtype
        if schedule.weights == "f16" != given:
            raise IllegalSchedule(f"weights given as {given} cannot be held as f16")
        if schedule.weights != given and (schedule.weights in FORMATS or given in FORMATS):
            raise IllegalSchedule(f"weights given as {given} cannot be held as "
                                  f"{schedule.weights}")
        if schedule.integers != integer_sums(self.kernel):
            raise IllegalSchedule(f"factors of {schedule.dtype} with sums of "
                                  f"{self.kernel.buffer('sum').dtype}")
        if schedule.dtype == "u8" and bytes_shift(self.kernel) is None:
            raise IllegalSchedule("these factors are no bytes, with a sign and without")
        if schedule.dtype == "u8" and self.level.integers == "words" \
                and not paired_weights(self.kernel):
            raise IllegalSchedule("products of u8 need a CPU that has them, or weights by which "
                                  "two of them fit 16 bits")
        if schedule.by_group and (e.r * e.s > 1 or not rounded_weights(self.kernel)):
            raise IllegalSchedule("codes of quantised weights are multiplied by bytes in matrix "
                                  "products of rounded weights only")
        if e.parts > 1 and schedule.winograd:
            raise IllegalSchedule("Winograd has one sum for each result")
        if e.b % schedule.tile_b:
            raise IllegalSchedule(f"tiles of {schedule.tile_b} do not divide {e.b} images")
        if self.batched and (schedule.tile_b, schedule.tile_y) != (1, 1):
            raise IllegalSchedule("a tile is one row of one image where each has its own weight")
        if schedule.winograd and not weights_bound(self.kernel):
            raise IllegalSchedule("Winograd has weights that are bound")

    def layout(self, tile_x: int) -> ScratchLayout:
        """The layout for tiles `tile_x` pixels wide."""
        e, s = self.e, self.schedule
        pixel = -(-s.chunk * self.size // 64) * 64 + PIXEL_PAD_BYTES
        row = pixel * ((tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1)
        image = row * ((s.tile_y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1)
        sum_panel = s.tile_b * s.tile_y * tile_x * self.width * 4
        sums_at = s.tile_b * image + PIXEL_PAD_BYTES
        plain_at = sums_at + e.parts * s.panels * sum_panel
        return ScratchLayout(pixel, row, image, sums_at, sum_panel, plain_at,
                             plain_at + self.plain_bytes)

    @property
    def flipped(self) -> bool:
        """True if micro-kernels read bytes without a sign and multiply such with one."""
        return False

    @property
    def asks_evenly(self) -> bool:
        """True where rows are asked for before they are staged, and of the next panel no more than
        is needed: a turn of AVX2 takes 256 bytes, which 22 runs share, and whole lines would be
        five panels' worth. With AVX-512 they are less than twice the panel."""
        return not (self.level.wide or self.level.by_lane)

    @property
    def plain_bytes(self) -> int:
        """Bytes of a chunk of a panel as factors, where they are made in scratch memory."""
        made = (self.quantised and not self.schedule.by_group
                or self._widened(self.schedule.tile_x))
        return 4 * self.schedule.chunk * self.packed.taps * self.width if made else 0

    def _form(self, tile_x: int) -> Format | None:
        """The format of weights that a micro-kernel unpacks in registers: where it is the only one
        of a tile that reads them."""
        s = self.schedule
        if s.by_group:
            return FORMATS[s.weights]
        if not self.quantised or self.packed.taps > 1 or s.tile_b * s.tile_y * tile_x > s.rows:
            return None
        form = FORMATS[s.weights]
        needed = s.rows * s.vectors + registers(form, s.vectors)
        if self.level.by_lane:
            needed += s.rows
        return form if needed <= self.level.vectors else None

    def _widened(self, tile_x: int) -> bool:
        """True if halves become f32 in scratch memory, not as the micro-kernel loads them."""
        s = self.schedule
        runs = s.tile_b * s.tile_y * -(-tile_x // s.rows)
        return (self.level.by_lane and s.factors in ("f16", "widened")
                and runs >= WIDENED_RUNS_MIN)

    def _plain(self, panel: Register, layout: ScratchLayout, tile_x: int) -> Register:
        """Where a chunk of a panel lies as the micro-kernel reads it: quantised ones, and halves
        that are widened once, in scratch."""
        asm, s, widened = self.asm, self.schedule, self._widened(tile_x)
        if not widened and (not self.quantised or self._form(tile_x)):
            return panel
        plain = asm.copy(self.scratch)
        asm.advance(plain, layout.plain_at)
        if widened:
            widen(asm, s.factors, s.vectors, asm.copy(panel), asm.copy(plain),
                  s.chunk * self.packed.taps)
        else:
            self._unpack(asm.copy(panel), plain, s.chunk)
        return plain

    def micro(self, rows: int, vectors: int, layout: ScratchLayout, tile_x: int, step: int = 4,
              unroll: int | None = None, ahead: int = 0) -> Micro:
        """The micro-kernel of `rows` pixels of a tile, whose factors are `step` bytes apart."""
        s, p, row = self.schedule, self.packed, self.e.stride_x * layout.pixel
        if self._widened(tile_x):
            return Micro(rows, vectors, row, step, 4 * self.width, s.step, ahead=ahead)
        factors = s.factors
        if p.blocks:
            factors = "blocks of quads" if s.integers else "blocks"
        return Micro(rows, vectors, row, step, p.channel_bytes, unroll or s.unroll, factors, ahead,
                     self._form(tile_x), p.zero if isinstance(p, CodePanels) else 0, self.flipped)

    def _unpack(self, source: Register, target: Register, channels: int) -> None:
        """Make factors of `channels` channels of a panel; `source` is left behind them."""
        s, taps = self.schedule, self.packed.taps
        unpack(self.asm, FORMATS[s.weights], s.vectors, source, self.asm.copy(target),
               channels * taps, pairs=s.dtype == "bf16" and taps == 1)
        if s.dtype == "bf16" and taps > 1:
            pair(self.asm, s.vectors, target, channels, taps)

    @property
    def quantised(self) -> bool:
        """True if weights are held as codes and scales."""
        return self.schedule.weights in FORMATS

    def window(self, layout: ScratchLayout, channels: int) -> list[Reduction]:
        """The loops of a micro-kernel over the window and `channels` channels."""
        e, s, p = self.e, self.schedule, self.packed
        turns, back = channels // s.step, 0
        if p.channel_lines > 1:  # to the next tap of the first channel
            back = p.line_bytes * (1 - turns * s.unroll * p.channel_lines)
        return [Reduction(e.r, e.dilation_y * layout.row),
                Reduction(e.s, e.dilation_x * layout.pixel, back),
                Reduction(turns, s.step * self.size)]

    def lower(self) -> NativeKernel:
        """Emit everything."""
        e, s, asm = self.e, self.schedule, self.asm
        counts = [-(-e.x // s.tile_x), -(-e.y // s.tile_y), e.b // s.tile_b,
                  -(-self.packed.part_panels // s.panels)]
        table, index, self.scratch = asm.argument(), asm.argument(), asm.argument()
        names = pointers(self.kernel)
        self.pointers = load_pointers(asm, table, names)
        if not weights_bound(self.kernel):
            asm.op("mov", self.pointers["weight"], Address(table, 8 * len(names)))
        index = asm.copy(index)
        index, x_tile = asm.divide(index, counts[0])
        index, y_tile = asm.divide(index, counts[1])
        panel_tile, b_tile = asm.divide(index, counts[2])
        zero = asm.immediate(0)
        b, y, x, panel = (asm.offset(zero, register, step) for register, step in (
            (b_tile, s.tile_b), (y_tile, s.tile_y), (x_tile, s.tile_x), (panel_tile, s.panels)))
        tile = Tile(b, y, x, panel, s.tile_b, 0, 0)
        tile.rows = count_left(asm, tile.y, s.tile_y, e.y)
        tile.panels = count_left(asm, tile.panel, s.panels, self.packed.part_panels)
        narrow, last, end = e.x % s.tile_x, asm.label(), asm.label()
        if narrow:
            asm.op("compare_immediate", x_tile, counts[0] - 1)
            asm.jump("equal", last)
        self._tile(tile, s.tile_x)
        if narrow:
            asm.jump("always", end)
            asm.place(last)
            self._tile(tile, narrow)
            asm.place(end)
        step = KernelStep(asm.finish(), counts[0] * counts[1] * counts[2] * counts[3])
        scratch = self.layout(s.tile_x).total
        if weights_bound(self.kernel):
            return NativeKernel((step,), names, scratch, packed=self.packed)
        weight, each = self.kernel.buffer("weight"), e.b * e.y if self.batched else 1
        batch = tuple(zip(weight.shape[:-4], weight.strides[:-4]))
        packing = lower_packing(self.packed, weight.strides[-4:], self.level, weight.dtype,
                                (names.index("weight"), len(names)), batch)
        return NativeKernel((packing, step), names, scratch, each * self.packed.bytes)

    def _weights(self, tile: Tile, panel: Register) -> Register:
        """Where the packed weights of a tile begin, from `panel` on."""
        weights = self.asm.offset(self.pointers["weight"], panel, self.packed.panel_bytes)
        if self.batched:
            weights = self.asm.offset(weights, tile.b, self.e.y * self.packed.bytes)
            weights = self.asm.offset(weights, tile.y, self.packed.bytes)
        return weights

    def _heads(self, tile: Tile, panel: Register) -> Register | None:
        """Where the first values of the sums of a tile stand, from `panel` on; None where sums
        begin with 0."""
        packed = self.packed
        if not isinstance(packed, IntegerPanels) or not packed.heads:
            return None
        heads = self._weights(tile, self.asm.immediate(0))
        self.asm.advance(heads, packed.data_bytes)
        return self.asm.offset(heads, panel, 4 * self.width)

    @property
    def _raw(self) -> bool:
        """True if sums of i32 are the results, so that they are stored as they are."""
        return (self.schedule.integers and isinstance(self.result.value, Load)
                and self.kernel.buffer("out").dtype == "i32")

    @property
    def _sum_dtype(self) -> str:
        """What the epilogue reads sums as: bits that are only moved are moved as those of f32."""
        s = self.schedule
        return "i32" if s.integers and not s.by_group and not self._raw else "f32"

    def _out(self, origins: dict) -> AccessStream:
        """Where results go, with the stride from panel to panel."""
        to = store(self.kernel, self.result.axes, "out")
        out = stream_of(self.asm, to, self.pointers, origins)
        return replace(out, strides={**out.strides, "panel": out.stride("o") * self.width},
                       dtype="f32" if self._raw else out.dtype)

    # ------------------------------------------------------------------ one tile

    def _tile(self, tile: Tile, tile_x: int) -> None:
        asm, layout = self.asm, self.layout(tile_x)
        patch, sums = self.scratch, asm.copy(self.scratch)
        asm.advance(sums, layout.sums_at)
        weights, heads = self._weights(tile, tile.panel), self._heads(tile, tile.panel)
        if self.chunks == 1:
            self._stage(tile, tile_x, layout, patch, 0)
            self._multiply(tile, tile_x, layout, patch, sums, weights, heads)
        else:
            if heads is None:
                self._clear(tile, layout, sums)
            else:
                self._set_first(tile, layout, sums, heads)
            channel = asm.immediate(0)
            chunk_bytes = self.packed.panel_bytes // self.chunks
            with asm.loop(self.chunks):
                self._stage(tile, tile_x, layout, patch, channel)
                self._multiply(tile, tile_x, layout, patch, sums, weights)
                asm.advance(weights, chunk_bytes)
                asm.advance(channel, self.schedule.chunk)
        self._finish(tile, tile_x, layout, sums)

    def _clear(self, tile: Tile, layout: ScratchLayout, sums: Register) -> None:
        """Zero the sums that the chunks will be added to."""
        asm = self.asm
        zero, part = asm.zero(), asm.copy(sums)
        with asm.loop(self.e.parts):
            at = asm.copy(part)
            with asm.loop(tile.panels):
                with asm.loop(layout.sum_panel // self.level.bytes):
                    asm.op("store", Address(at), zero)
                    asm.advance(at, self.level.bytes)
            asm.advance(part, self.schedule.panels * layout.sum_panel)

    def _set_first(self, tile: Tile, layout: ScratchLayout, sums: Register,
                   heads: Register) -> None:
        """Set the sums that the chunks will be added to to their first values."""
        asm, line = self.asm, 4 * self.width
        part, part_heads = asm.copy(sums), asm.copy(heads)
        with asm.loop(self.e.parts):
            at, head = asm.copy(part), asm.copy(part_heads)
            with asm.loop(tile.panels):
                (first,) = load_sums(asm, 1, self.schedule.vectors, head, 0)
                with asm.loop(layout.sum_panel // line):
                    store_sums(asm, [first], at, 0)
                    asm.advance(at, line)
                asm.advance(head, line)
            asm.advance(part, self.schedule.panels * layout.sum_panel)
            asm.advance(part_heads, self.packed.part_panels * line)

    def _stage(self, tile: Tile, tile_x: int, layout: ScratchLayout, patch: Register,
               channel: Register | int) -> None:
        """Copy the input patch of one chunk into scratch, through the prologue."""
        asm, e = self.asm, self.e
        zero = asm.immediate(0)
        origins = {"b": tile.b, "y": asm.offset(zero, tile.y, e.stride_y),
                   "x": asm.offset(zero, tile.x, e.stride_x), "c": channel}
        rows: int | Register
        if isinstance(tile.rows, int):
            rows = (tile.rows - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1
        else:
            rows = asm.offset(zero, tile.rows, e.stride_y)
            asm.advance(rows, (e.r - 1) * e.dilation_y + 1 - e.stride_y)
        columns = (tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1
        self._copy(self.patch, origins, (tile.images, rows, columns), layout, patch)

    def _copy(self, stage: Stage, origins: Mapping[str, Register | int],
              extents: tuple[int | Register, int | Register, int], layout: ScratchLayout,
              patch: Register, clipped: Sequence[str] = ()) -> None:
        """Emit the copy of images, rows and columns of one chunk of `stage` into the patch.

        Along the axes in `clipped` the patch may reach behind the end of the stage.
        """
        asm, s, e = self.asm, self.schedule, self.e
        streams = {load: stream_of(asm, access(self.kernel, load), self.pointers, origins)
                   for load in dict.fromkeys(loads(stage.value))}
        guards: dict[str, list[tuple[int, int]]] = {"y": [], "x": []}
        for index, extent in stage.guards:
            guards[index.terms[0][0]].append((index.offset, extent))
        for axis in clipped:
            guards[axis].append((0, dict(stage.axes)[axis]))
        images, rows, columns = extents
        axes = [LoopAxis("b", images), LoopAxis("y", rows, origins["y"], guards["y"]),
                LoopAxis("x", columns, origins["x"], guards["x"]),
                LoopAxis("c", s.chunk if self.chunks > 1 else e.c)]
        sink = Sink(AccessStream(patch, {"b": layout.image, "y": layout.row, "x": layout.pixel,
                                         "c": self.size}, dtype=s.dtype), s.step)
        outside = Const(stage.outside) if stage.outside else None
        rows_ahead = STAGED_AHEAD if self.asks_evenly and e.r == e.s == 1 else 0
        Nest(asm, axes, stage.value, streams, sink, outside=outside, ahead=rows_ahead).emit()

    def _multiply(self, tile: Tile, tile_x: int, layout: ScratchLayout, patch: Register,
                  sums: Register, weights: Register, heads: Register | None = None) -> None:
        """Add the products of the staged chunk to the sums of every part, panel and pixel, which
        begin at `heads` where there are some and only one chunk."""
        asm, s = self.asm, self.schedule
        part, part_sums = asm.copy(weights), asm.copy(sums)
        part_heads = None if heads is None else asm.copy(heads)
        with asm.loop(self.e.parts):
            self._multiply_part(tile, tile_x, layout, patch, part_sums, part, part_heads)
            asm.advance(part, self.packed.part_panels * self.packed.panel_bytes)
            asm.advance(part_sums, s.panels * layout.sum_panel)
            if part_heads is not None:
                asm.advance(part_heads, self.packed.part_panels * 4 * self.width)

    def _multiply_part(self, tile: Tile, tile_x: int, layout: ScratchLayout, patch: Register,
                       sums: Register, weights: Register, heads: Register | None) -> None:
        """Emit the products of the panels of one part."""
        asm, e, s = self.asm, self.e, self.schedule
        panel, panel_sums = asm.copy(weights), asm.copy(sums)
        head = None if heads is None else asm.copy(heads)
        turn = self._ahead_bytes(tile_x)
        with asm.loop(tile.panels):
            ahead = None
            if turn:
                ahead = asm.copy(panel)
                asm.advance(ahead, self.packed.panel_bytes)
            plain = self._plain(panel, layout, tile_x)
            image, image_sums = asm.copy(patch), asm.copy(panel_sums)
            with asm.loop(tile.images):
                row, row_sums = asm.copy(image), asm.copy(image_sums)
                with asm.loop(tile.rows):
                    self._row(tile_x, layout, row, row_sums, plain, ahead, turn, head)
                    asm.advance(row, e.stride_y * layout.row)
                    asm.advance(row_sums, tile_x * self.width * 4)
                asm.advance(image, layout.image)
                asm.advance(image_sums, s.tile_y * tile_x * self.width * 4)
            asm.advance(panel, self.packed.panel_bytes)
            asm.advance(panel_sums, layout.sum_panel)
            if head is not None:
                asm.advance(head, 4 * self.width)

    def _ahead_bytes(self, tile_x: int) -> int:
        """Bytes of the next panel that each turn of a micro-kernel asks for: with few runs of
        pixels, a panel that only comes from memory while it is used is waited for."""
        e, s = self.e, self.schedule
        runs = s.tile_b * s.tile_y * -(-tile_x // s.rows)
        if self.quantised or e.r * e.s > 1 or runs < 2 or runs * s.rows > AHEAD_PIXELS_MAX:
            return 0
        turn = -(-s.unroll * self.packed.line_bytes // runs)
        return turn if self.asks_evenly else -(-turn // LINE_BYTES) * LINE_BYTES

    def _row(self, tile_x: int, layout: ScratchLayout, row: Register, row_sums: Register,
             panel: Register, ahead: Register | None, turn: int, head: Register | None) -> None:
        """Emit the micro-kernels along one row of pixels."""
        asm, e, s = self.asm, self.e, self.schedule
        loops = self.window(layout, s.chunk)
        at, at_sums = asm.copy(row), asm.copy(row_sums)
        for size, many in split_rows(tile_x, s.rows):
            shape = self.micro(size, s.vectors, layout, tile_x, ahead=turn)
            with asm.loop(many):
                if head is not None:
                    held = load_sums(asm, size, s.vectors, head, 0)
                elif self.chunks == 1:
                    held = zero_sums(asm, size, s.vectors)
                else:
                    held = load_sums(asm, size, s.vectors, at_sums, self.width * 4)
                multiply(asm, shape, at, asm.copy(panel), loops, held, ahead)
                store_sums(asm, held, at_sums, self.width * 4)
                asm.advance(at, size * e.stride_x * layout.pixel)
                asm.advance(at_sums, size * self.width * 4)

    # ------------------------------------------------------------------ the epilogue

    def _finish(self, tile: Tile, tile_x: int, layout: ScratchLayout, sums: Register) -> None:
        """Write the results of all panels."""
        def write(panel: Register, panels: int | Register, channels: int) -> None:
            before = self.asm.copy(panel)
            self.asm.op("isub", before, tile.panel)
            self._write(tile, tile_x, layout, self.asm.offset(sums, before, layout.sum_panel),
                        panel, panels, channels)

        self._by_panels(tile, write)

    def _by_panels(self, tile: Tile,
                   emit: Callable[[Register, int | Register, int], None]) -> None:
        """Call `emit(first, count, channels of each)` for the panels of a tile; the last of all may
        have fewer channels than the others."""
        asm, part = self.asm, self.e.o % self.width
        if not part:
            emit(tile.panel, tile.panels, self.width)
            return
        whole = self.packed.part_panels - 1
        full, skip, end = asm.immediate(whole), asm.label(), asm.label()
        asm.op("isub", full, tile.panel)
        wanted = (asm.immediate(tile.panels) if isinstance(tile.panels, int)
                  else tile.panels)
        larger = asm.label()
        asm.op("compare", full, wanted)
        asm.jump("less", larger)
        asm.op("mov", full, wanted)
        asm.place(larger)
        asm.op("compare_immediate", full, 0)
        asm.jump("equal", skip)
        emit(tile.panel, full, self.width)
        asm.place(skip)
        asm.op("compare", full, wanted)
        asm.jump("equal", end)
        emit(asm.immediate(whole), 1, part)
        asm.place(end)

    def _write(self, tile: Tile, tile_x: int, layout: ScratchLayout, sums: Register,
               panel: Register, panels: int | Register, channels: int) -> None:
        """Write the results of `panels` panels from `panel` on, `channels` of each."""
        asm, s = self.asm, self.schedule
        origins = {"b": tile.b, "y": tile.y, "x": tile.x,
                   "o": asm.offset(asm.immediate(0), panel, self.width)}
        streams = {}
        for load in dict.fromkeys(loads(self.result.value)):
            if load.buffer == "sum":
                which = asm.copy(sums)
                asm.advance(which, affine(load)[3].offset // self.e.o * s.panels * layout.sum_panel)
                stream = AccessStream(which, {
                    "panel": layout.sum_panel, "b": s.tile_y * tile_x * self.width * 4,
                    "y": tile_x * self.width * 4, "x": self.width * 4, "o": 4},
                    dtype=self._sum_dtype)
            else:
                stream = self._panelled(load, origins)
            streams[load] = stream
        out = self._out(origins)
        axes = [LoopAxis("panel", panels), LoopAxis("b", tile.images), LoopAxis("y", tile.rows),
                LoopAxis("x", tile_x if tile.columns is None else tile.columns),
                LoopAxis("o", channels)]
        Nest(asm, axes, self.result.value, streams, Sink(out)).emit()

    def _panelled(self, load: Load, origins: dict) -> AccessStream:
        """The stream of a load in the epilogue, with the stride from panel to panel."""
        if load.buffer == SCALES:
            part = affine(load)[0].offset // self.e.o * self.packed.part_panels
            assert isinstance(self.packed, IntegerPanels), self.packed
            base = self.asm.offset(self.pointers["weight"], origins["o"], 4)
            self.asm.advance(base, self.packed.scales_at + 4 * self.width * part)
            return AccessStream(base, {"panel": 4 * self.width, "o": 4})
        stream = stream_of(self.asm, access(self.kernel, load), self.pointers, origins)
        if stream.divided or stream.indirect:
            raise IllegalSchedule("an epilogue reads by plain strides only")
        return replace(stream, strides={**stream.strides, "panel": stream.stride("o") * self.width})
