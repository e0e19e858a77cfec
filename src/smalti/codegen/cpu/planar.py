"""Direct contractions of few channels, each of them stored as a plane: the first of a model.

Three channels would fill a fifth of a vector, so rows are staged instead, one plane a channel:

    patch [c][y][x]: rows copied whole, zeros around them       weights [panel][c][r][s][o]

The micro-kernel then walks channels, rows and columns of the window.
"""

from __future__ import annotations

from smalti.codegen.cpu.direct import DirectLowering, ScratchLayout, Tile
from smalti.codegen.cpu.in_place import InPlaceLowering
from smalti.codegen.cpu.micro import Reduction
from smalti.codegen.cpu.nest import AccessStream, LoopAxis, Nest, Sink, stream_of
from smalti.codegen.cpu.operands import Register
from smalti.errors import IllegalSchedule
from smalti.kernel.form import loads
from smalti.schedule.merge import access, in_planes

COLUMNS_MAX = 16
"""Columns of a window in straight code; windows over sound have hundreds."""


class PlanarLowering(InPlaceLowering):
    """Makes the code of a direct contraction whose patch is a plane for each channel."""

    def check(self) -> None:
        """Raise IllegalSchedule where the patch cannot be staged so."""
        DirectLowering.check(self)
        e, s = self.e, self.schedule
        if not in_planes(self.kernel) or s.factors != "f32" or e.parts > 1:
            raise IllegalSchedule("the channels of this contraction are no planes")
        if (s.chunk, s.unroll, s.tile_b) != (1, 1, 1):
            raise IllegalSchedule("planes are staged one channel and one image at a time")
        if "x" in self._guards() and s.tile_x != e.x:
            raise IllegalSchedule("tiles of an image with borders are as wide as it is")

    def _guards(self) -> dict[str, tuple[int, int]]:
        return {index.terms[0][0]: (index.offset, extent) for index, extent in self.patch.guards}

    def layout(self, tile_x: int) -> ScratchLayout:
        """Planes of rows; `image` is a plane."""
        e, s = self.e, self.schedule
        row = 4 * ((tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1)
        row += -row % 64
        plane = row * ((s.tile_y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1)
        return ScratchLayout(4, row, plane, 0, 0, 0, e.c * plane)

    def reduction(self, layout: ScratchLayout) -> tuple[list[Reduction], int, int]:
        """Channels, rows, and all columns of the window a turn, or an equal part of them."""
        e = self.e
        unroll = max(n for n in range(1, COLUMNS_MAX + 1) if e.s % n == 0)
        step = 4 * e.dilation_x
        return [Reduction(e.c, layout.image), Reduction(e.r, e.dilation_y * layout.row),
                Reduction(e.s // unroll, unroll * step)], step, unroll

    def _tile(self, tile: Tile, tile_x: int) -> None:
        e, layout = self.e, self.layout(tile_x)
        self._stage_planes(tile, tile_x, layout)
        source = AccessStream(self.scratch, {"y": e.stride_y * layout.row, "x": 4 * e.stride_x})
        self._by_panels(tile, lambda panel, panels, channels: self._panels(
            tile, tile_x, source, panel, panels, channels))

    def _stage_planes(self, tile: Tile, tile_x: int, layout: ScratchLayout) -> None:
        """Copy rows through the prologue; zeros where the image has none, and beside it."""
        asm, e = self.asm, self.e
        rows: int | Register
        if isinstance(tile.rows, int):
            rows = (tile.rows - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1
        else:
            rows = asm.offset(asm.immediate(0), tile.rows, e.stride_y)
            asm.advance(rows, (e.r - 1) * e.dilation_y + 1 - e.stride_y)
        columns = (tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1
        offset, extent = self._guards().get("x", (0, columns))
        left, right = min(columns, max(0, -offset)), max(0, min(columns, extent - offset))
        self._rows(tile, layout, rows, (0, left), False)
        self._rows(tile, layout, rows, (left, right), True)
        self._rows(tile, layout, rows, (max(left, right), columns), False)

    def _rows(self, tile: Tile, layout: ScratchLayout, rows: int | Register,
              columns: tuple[int, int], inside: bool) -> None:
        """Copy columns from the first to the last of all rows and planes; zeros if not `inside`."""
        asm, e, (first, end) = self.asm, self.e, columns
        if end <= first:
            return
        x = asm.offset(asm.immediate(0), tile.x, e.stride_x)
        asm.advance(x, first)
        origins = {"b": tile.b, "y": asm.offset(asm.immediate(0), tile.y, e.stride_y), "x": x}
        streams = {load: stream_of(asm, access(self.kernel, load), self.pointers, origins)
                   for load in dict.fromkeys(loads(self.patch.value))} if inside else {}
        target = asm.copy(self.scratch)
        asm.advance(target, 4 * first)
        guards = [self._guards()["y"]] if "y" in self._guards() and inside else []
        axes = [LoopAxis("c", e.c), LoopAxis("y", rows, origins["y"], guards),
                LoopAxis("x", end - first)]
        sink = Sink(AccessStream(target, {"c": layout.image, "y": layout.row, "x": 4}))
        Nest(asm, axes, self.patch.value if inside else None, streams, sink).emit()
