"""Packing a weight for the contractions that read it: the layout of `PackedWeight`.

    from [o][c][r][s], any strides       to [panel][chunk][r][s][c in chunk][o in panel]

A vector gathers the same (c, r, s) of neighbouring o. In bf16, two neighbouring c are rounded and
laid side by side under each o. What lies behind the last o or c is zero.
"""

from __future__ import annotations

from smalti.kernel.form import ELEMENT_BYTES
from smalti.target.x86 import elements
from smalti.target.x86.assembler import Assembler, Memory, Register
from smalti.target.x86.elements import rounded
from smalti.target.x86.filtering import transform
from smalti.target.x86.instructions import Level
from smalti.target.x86.lowered import PackedWeight, Step


def lower_packing(packed: PackedWeight, strides: tuple[int, ...], level: Level,
                  dtype: str = "f32", at: tuple[int, int] = (0, 1),
                  batch: tuple[tuple[int, int], ...] = ()) -> Step:
    """Code that packs one panel a tile; the pointers at `at` are the source and the target.

    `strides` are those of the source for o, c, r and s, in elements of `dtype`; `batch` are extents
    and strides of axes outside of them, for each place of which there is a packed weight.
    """
    return _Packing(packed, strides, level, dtype).lower(at, batch)


class _Packing:
    def __init__(self, packed: PackedWeight, strides: tuple[int, ...], level: Level,
                 dtype: str) -> None:
        self.packed, self.level, self.dtype = packed, level, dtype
        self.size = ELEMENT_BYTES[dtype]
        self.o, self.c, self.r, self.s = (self.size * stride for stride in strides)
        self.asm = Assembler(level, "packing")
        self.pairs = packed.dtype == "bf16"

    def lower(self, at: tuple[int, int], batch: tuple[tuple[int, int], ...]) -> Step:
        asm, p, tiles = self.asm, self.packed, self.packed.panels
        table, panel = asm.argument(), asm.argument()
        source, target = asm.general(), asm.general()
        asm.op("mov", source, Memory(table, 8 * at[0]))
        asm.op("mov", target, Memory(table, 8 * at[1]))
        target = asm.offset(target, panel, p.panel_bytes)
        if batch:
            outer, panel = asm.divide(panel, p.panels)
            for extent, stride in reversed(batch):
                outer, place = asm.divide(outer, extent)
                source = asm.offset(source, place, self.size * stride)
                tiles *= extent
        which, panel = asm.divide(panel, p.part_panels)
        source = asm.offset(source, which, self.o * p.out_channels)
        source = asm.offset(source, panel, self.o * p.width)
        part = p.out_channels % p.width
        last, end = asm.label(), asm.label()
        if part:
            asm.op("compare_immediate", panel, p.part_panels - 1)
            asm.jump("equal", last)
        self._panel(source, target, p.width)
        if part:
            asm.jump("always", end)
            asm.place(last)
            self._panel(source, target, part)
            asm.place(end)
        return Step(asm.finish(), tiles)

    def _points(self, source: Register, target: Register, width: int) -> None:
        """G g G^T of every channel, for `width` neighbouring o."""
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        matrix = p.filtering.weights
        n = len(matrix)
        point, line = p.chunks * p.chunk * 4 * p.width, 4 * p.width
        index = asm.result("load", asm.integers([i * self.o for i in range(lanes)]))
        here = asm.copy(source)
        with asm.loop(p.channels):
            for v in range(p.width // lanes):
                count = max(0, min(lanes, width - v * lanes))
                columns = []
                for s in range(3):
                    held = [self._tap(here, index, r, s, v, count) for r in range(3)]
                    columns.append(transform(asm, matrix, held))
                for row in range(n):
                    values = transform(asm, matrix, [column[row] for column in columns])
                    for k, value in enumerate(values):
                        at = (n * row + k) * point + v * self.level.bytes
                        asm.store(Memory(target, at), value)
            asm.advance(here, self.c)
            asm.advance(target, line)
        zero = asm.zero()
        for k in range(n * n):
            for i in range(p.chunks * p.chunk - p.channels):
                for v in range(p.width // lanes):
                    at = k * point + i * line + v * self.level.bytes
                    asm.store(Memory(target, at), zero)

    def _tap(self, here: Register, index: Register, r: int, s: int, v: int,
             count: int) -> Register:
        asm = self.asm
        if not count:
            return asm.zero()
        at = asm.copy(here)
        asm.advance(at, r * self.r + s * self.s + v * self.level.lanes * self.o)
        return asm.gather(at, index, count)

    def _panel(self, source: Register, target: Register, width: int) -> None:
        if self.packed.winograd:
            self._points(source, target, width)
            return
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        index = asm.result("load", asm.integers([i * self.o for i in range(lanes)]))
        with asm.loop(p.chunks):
            row = asm.copy(source)
            with asm.loop(p.rows):
                pixel = asm.copy(row)
                with asm.loop(p.columns):
                    self._channels(pixel, target, index, width)
                    asm.advance(pixel, self.s)
                asm.advance(row, self.r)
            asm.advance(source, self.c * p.chunk)

    def _channels(self, pixel: Register, target: Register, index: Register, width: int) -> None:
        """The channels of one chunk, for `width` neighbouring o."""
        asm, p = self.asm, self.packed
        held = min(p.channels, p.chunk)
        step = 2 if self.pairs else 1
        line = 4 * p.width
        at = asm.copy(pixel)
        if held // step:
            with asm.loop(held // step):
                self._line(at, target, index, width, step)
                asm.advance(at, step * self.c)
                asm.advance(target, line)
        done = held // step
        if held % step:
            self._line(at, target, index, width, 1)
            asm.advance(target, line)
            done += 1
        zero = asm.zero()
        for _ in range(p.chunk // step - done):
            for v in range(p.width // self.level.lanes):
                asm.op("store", Memory(target, v * self.level.bytes), zero)
            asm.advance(target, line)

    def _line(self, at: Register, target: Register, index: Register, width: int,
              channels: int) -> None:
        """One channel (a pair of them in bf16) of a panel."""
        asm, lanes = self.asm, self.level.lanes
        for v in range(self.packed.width // lanes):
            count = max(0, min(lanes, width - v * lanes))
            if not count:
                value = asm.zero()
            else:
                here = asm.copy(at)
                asm.advance(here, v * lanes * self.o)
                value = self._taken(here, index, count)
                if self.pairs:
                    value = rounded(asm, value)
                if channels == 2:
                    asm.advance(here, self.c)
                    high = rounded(asm, self._taken(here, index, count))
                    value = asm.result("or", value, asm.result("shift_left_int", high, 16))
            asm.store(Memory(target, v * self.level.bytes), value)

    def _taken(self, here: Register, index: Register, count: int) -> Register:
        """`count` neighbouring o as f32."""
        if self.o == self.size:
            return elements.load(self.asm, self.dtype, Memory(here), count)
        return elements.gather(self.asm, self.dtype, here, index, count)
