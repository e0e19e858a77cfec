"""Direct contractions without staging: products of pixels whose channels lie side by side.

The micro-kernel spreads its factors straight from the input, and results leave from its registers:

    for each panel, for each run of pixels:
        micro-kernel over the window and all channels               sums, in registers
        epilogue applied, stored

It is for inputs without a prologue and without borders, stored as the products want their factors:
1x1 convolutions and matrix products.
"""

from __future__ import annotations

import itertools

from smalti.codegen.cpu.direct import DirectLowering, ScratchLayout, Tile
from smalti.codegen.cpu.micro import Reduction, load_sums, multiply, split_rows, zero_sums
from smalti.codegen.cpu.nest import AccessStream, stream_of
from smalti.codegen.cpu.operands import Register
from smalti.codegen.cpu.results import RegisterResults
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Load, loads
from smalti.schedule.merge import access, in_place


class InPlaceLowering(DirectLowering):
    """Makes the code of a direct contraction that reads its input where it is."""

    def check(self) -> None:
        """Raise IllegalSchedule where the input has to be staged."""
        super().check()
        s = self.schedule
        if not in_place(self.kernel, s.dtype) or self.e.parts > 1:
            raise IllegalSchedule("the input of this contraction has to be staged")
        if s.chunk != self.e.c or s.chunk % s.step:
            raise IllegalSchedule(f"a chunk of {s.chunk} in steps of {s.step} is not all "
                                  f"{self.e.c} channels")

    @property
    def flipped(self) -> bool:
        """True if micro-kernels read bytes without a sign and multiply such with one."""
        return self.level.signed and self.schedule.dtype == "u8"

    @property
    def read(self) -> Load:
        """What the products read, as `check` has found."""
        assert isinstance(self.patch.value, Load), self.patch
        return self.patch.value

    def layout(self, tile_x: int) -> ScratchLayout:
        """The strides of the input; there are no sums in memory."""
        pixel, row, image = (self.size * access(self.kernel, self.read).stride(axis)
                             for axis in "xyb")
        return ScratchLayout(pixel, row, image, 0, 0, 0, self.plain_bytes)

    def reduction(self, layout: ScratchLayout) -> tuple[list[Reduction], int, int]:
        """Its loops, the bytes of a step of the innermost one, and how many steps a turn does."""
        return self.window(layout, self.e.c), 4, self.schedule.unroll

    def _tile(self, tile: Tile, tile_x: int) -> None:
        asm, e, layout = self.asm, self.e, self.layout(tile_x)
        zero = asm.immediate(0)
        origins = {"b": tile.b, "y": asm.offset(zero, tile.y, e.stride_y),
                   "x": asm.offset(zero, tile.x, e.stride_x)}
        source = stream_of(asm, access(self.kernel, self.read), self.pointers, origins)
        source = AccessStream(source.base, {"b": layout.image, "y": e.stride_y * layout.row,
                                            "x": e.stride_x * layout.pixel})
        self._by_panels(tile, lambda panel, panels, channels: self._panels(
            tile, tile_x, source, panel, panels, channels))

    def _panels(self, tile: Tile, tile_x: int, source: AccessStream, panel: Register,
                panels: int | Register, channels: int) -> None:
        """Emit the results of `panels` panels from `panel` on, `channels` of each."""
        asm, result = self.asm, self.result
        origins = {"b": tile.b, "y": tile.y, "x": tile.x,
                   "o": asm.offset(asm.immediate(0), panel, self.width)}
        behind = {load: self._panelled(load, origins)
                  for load in dict.fromkeys(loads(result.value)) if load.buffer != "sum"}
        results = RegisterResults(asm, result.value, "sum", behind, self._out(origins), "x", "o",
                                  {self.patch.value: source})
        weights, heads = self._weights(tile, panel), self._heads(tile, panel)
        with results.walk("panel", panels) as each:
            plain = self._plain(weights, self.layout(tile_x), tile_x)
            with each.walk("b", tile.images) as image, image.walk("y", tile.rows) as line:
                self._line(line.own("x"), tile_x, plain, channels, heads)
            asm.advance(weights, self.packed.panel_bytes)
            if heads is not None:
                asm.advance(heads, 4 * self.width)

    def _line(self, here: RegisterResults, tile_x: int, weights: Register, channels: int,
              heads: Register | None = None) -> None:
        """Emit the micro-kernels along one row of pixels."""
        asm, s, lanes = self.asm, self.schedule, self.level.lanes
        vectors, layout = -(-channels // lanes), self.layout(tile_x)
        loops, step, unroll = self.reduction(layout)
        for size, many in split_rows(tile_x, s.rows):
            shape = self.micro(size, vectors, layout, tile_x, step, unroll)
            with asm.loop(many):
                sums = (zero_sums(asm, size, vectors) if heads is None
                        else load_sums(asm, size, vectors, heads, 0))
                multiply(asm, shape, here.sources[self.patch.value].base, asm.copy(weights), loops,
                         sums)
                for register in itertools.chain(*sums) if self._sum_dtype == "i32" else ():
                    asm.op("from_int", register, register)
                here.write(sums, lanes=channels - (vectors - 1) * lanes)
                here.advance("x", size)
