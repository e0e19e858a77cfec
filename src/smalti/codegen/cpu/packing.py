"""Packing a weight for the contractions that read it: the layout of `WeightPanels`.

    from [o][c][r][s], any strides       to [panel][chunk][r][s][c in chunk][o in panel]

A vector gathers the same (c, r, s) of neighbouring o. In bf16, two neighbouring c are rounded and
laid side by side under each o; for products of blocks, two such pairs. What lies behind the last o
or c is zero. A gathered half comes with what stands behind it: where that is the next c, it is
packed as well. Of quantised weights words are moved as f32 would be, without a look at the window.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.functions import absolute, reciprocal
from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.micro import add_quads, word_ones
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.weights import SUM_BITS, CodePanels, IntegerPanels, WeightPanels
from smalti.codegen.cpu.winograd_transforms import transform
from smalti.errors import IllegalSchedule
from smalti.graph.operation import HALVES
from smalti.graph.operations.contraction import SCALE_MIN
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import STORED_BYTES


def lower_packing(packed: WeightPanels, strides: tuple[int, ...], level: FeatureLevel,
                  dtype: str = "f32", at: tuple[int, int] = (0, 1),
                  batch: tuple[tuple[int, int], ...] = ()) -> KernelStep:
    """Code that packs one panel a tile; the pointers at `at` are the source and the target.

    `strides` are those of the source for o, c, r and s, in elements of `dtype`; `batch` are extents
    and strides of axes outside of them, for each place of which there is a packed weight. Of
    halves, up to 14 bytes behind the source are read, too. Raises IllegalSchedule where other than
    f16 are to be packed as f16, or others than quantised weights as these.
    """
    form = FORMATS.get(packed.dtype)
    if (form is not None or dtype in FORMATS) and packed.dtype != dtype:
        raise IllegalSchedule(f"weights given as {dtype} cannot be held as {packed.dtype}")
    if isinstance(packed, CodePanels):
        return GroupPacking(packed, (form.words_of(strides[0]), 1, 1, 1), level, "f32").lower(
            at, batch)
    if form is not None:
        channels, chunk = (form.words_of(n * packed.taps) for n in (packed.channels, packed.chunk))
        packed = replace(packed, dtype="f32", channels=channels, chunk=chunk, rows=1, columns=1)
        strides, dtype = (form.words_of(strides[0]), 1, 1, 1), "f32"
    if isinstance(packed, IntegerPanels):
        return IntegerPacking(packed, strides, level, dtype).lower(at, batch)
    return Packing(packed, strides, level, dtype).lower(at, batch)


class Packing:
    """Makes the code that packs a weight of floats."""

    def __init__(self, packed: WeightPanels, strides: tuple[int, ...], level: FeatureLevel,
                 dtype: str) -> None:
        self.packed, self.level, self.dtype = packed, level, dtype
        self.size = STORED_BYTES[dtype]
        self.o, self.c, self.r, self.s = (self.size * stride for stride in strides)
        self.asm = level.assembler("packing")
        self.copied = dtype == packed.dtype in HALVES
        self.neighbours = self.copied and self.c == self.size
        pairs = packed.dtype == "bf16" or packed.dtype == "f16" and self.neighbours
        self.step = 4 if packed.blocks else 2 if pairs else 1
        self.lines = 2 if packed.blocks or packed.dtype == "f16" and pairs else 1
        if packed.dtype == "f16" != dtype:
            raise IllegalSchedule(f"weights given as {dtype} cannot be held as f16")

    def lower(self, at: tuple[int, int], batch: tuple[tuple[int, int], ...]) -> KernelStep:
        asm, p, tiles = self.asm, self.packed, self.packed.panels
        table, panel = asm.argument(), asm.argument()
        source, target = asm.general(), asm.general()
        asm.op("mov", source, Address(table, 8 * at[0]))
        asm.op("mov", target, Address(table, 8 * at[1]))
        target = self._begun(target, panel)
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
        return KernelStep(asm.finish(), tiles)

    def _begun(self, target: Register, panel: Register) -> Register:
        """Where a panel, numbered among those of all weights, is written."""
        return self.asm.offset(target, panel, self.packed.panel_bytes)

    def _points(self, source: Register, target: Register, width: int) -> None:
        """G g G^T of every channel, for `width` neighbouring o."""
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        matrix = p.transform.weights
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
                        asm.store(Address(target, at), value)
            asm.advance(here, self.c)
            asm.advance(target, line)
        zero = asm.zero()
        for k in range(n * n):
            for i in range(p.chunks * p.chunk - p.channels):
                for v in range(p.width // lanes):
                    at = k * point + i * line + v * self.level.bytes
                    asm.store(Address(target, at), zero)

    def _tap(self, here: Register, index: Register, r: int, s: int, v: int,
             count: int) -> Register:
        asm = self.asm
        if not count:
            return asm.zero()
        at = asm.copy(here)
        asm.advance(at, r * self.r + s * self.s + v * self.level.lanes * self.o)
        return self._taken(at, index, count)

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
        at = asm.copy(pixel)
        if held // self.step:
            with asm.loop(held // self.step):
                self._turn(at, target, index, width, self.step)
                asm.advance(at, self.step * self.c)
                asm.advance(target, self.lines * p.line_bytes)
        done = held // self.step * self.lines
        if rest := held % self.step:
            self._turn(at, target, index, width, rest)
            lines = 2 if p.blocks else 1
            asm.advance(target, lines * p.line_bytes)
            done += lines
        zero = asm.zero()
        for _ in range(p.chunk * self.lines // self.step - done):
            for v in range(p.width // self.level.lanes):
                self._put(target, v, zero)
            asm.advance(target, p.line_bytes)

    def _turn(self, at: Register, target: Register, index: Register, width: int,
              channels: int) -> None:
        """One or two neighbouring channels of a panel: two lines of f16, or one of pairs; of blocks
        up to four, two lines."""
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        for v in range(p.width // lanes):
            count = max(0, min(lanes, width - v * lanes))
            here = asm.copy(at)
            asm.advance(here, v * lanes * self.o)
            if not count:
                values = [asm.zero()] * (2 if p.blocks else channels if self.lines == 2 else 1)
            elif p.dtype == "f16":
                value = asm.gather(here, index, count)
                values = [value, asm.result("shift_right_int", value, 16)][:channels]
            elif p.blocks:
                values = self._blocks(here, index, count, channels)
            elif p.dtype == "bf16":
                values = [self._pair(here, index, count, channels)]
            else:
                values = [self._taken(here, index, count)]
            for line, value in enumerate(values):
                self._put(target, v, value, line * p.line_bytes)

    def _blocks(self, here: Register, index: Register, count: int,
                channels: int) -> list[Register]:
        """bf16 of up to four channels: those of the first two o, and of the last two."""
        asm = self.asm
        low = self._pair(asm.copy(here), index, count, min(channels, 2))
        if channels > 2:
            asm.advance(here, 2 * self.c)
            high = self._pair(here, index, count, channels - 2)
        else:
            high = asm.zero()
        return [asm.result(name, low, high) for name in ("unpack_low", "unpack_high")]

    def _pair(self, here: Register, index: Register, count: int, channels: int) -> Register:
        """bf16 of one or two channels, the first in the lower half of each lane."""
        asm = self.asm
        if self.neighbours and channels == 2:
            return asm.gather(here, index, count)
        value = self._bf16(here, index, count)
        if channels == 1:
            return value
        asm.advance(here, self.c)
        high = asm.result("shift_left_int", self._bf16(here, index, count), 16)
        return asm.result("or", value, high)

    def _bf16(self, here: Register, index: Register, count: int) -> Register:
        """The bf16 of a channel in the lower halves of the lanes; the upper ones are 0."""
        value = self._taken(here, index, count)
        if self.copied:
            return self.asm.result("shift_right_int", value, 16)
        return elements.rounded(self.asm, value)

    def _put(self, target: Register, v: int, value: Register, offset: int = 0) -> None:
        """Store vector `v` of a line; of f16 the lower halves of its lanes."""
        if self.packed.dtype == "f16":
            at = Address(target, offset + v * self.level.bytes // 2)
            self.asm.store_low_words(at, value, self.level.lanes)
        else:
            self.asm.store(Address(target, offset + v * self.level.bytes), value)

    def _taken(self, here: Register, index: Register, count: int) -> Register:
        """`count` neighbouring o as f32."""
        if self.o == self.size:
            return elements.load(self.asm, self.dtype, Address(here), count)
        return elements.gather(self.asm, self.dtype, here, index, count)


class IntegerPacking(Packing):
    """Makes the code that packs a weight of integers, and sums each o up where that is wanted.

    Numbers are rounded to integers: a walk in front finds the largest magnitude of each o.
    """

    packed: IntegerPanels

    def __init__(self, packed: IntegerPanels, strides: tuple[int, ...], level: FeatureLevel,
                 dtype: str) -> None:
        super().__init__(packed, strides, level, dtype)
        self.together = 4 if packed.dtype == "i8" else 2
        self.step = 2 * self.together if packed.blocks else self.together
        self.neighbours = self.c == self.size
        self.totals: list[Register] = []
        self.inverses: list[Register] = []

    def _begun(self, target: Register, panel: Register) -> Register:
        """Where a panel is written; where its sums are to begin, and its scales, is kept."""
        asm, p = self.asm, self.packed
        if not p.heads and not p.rounded:
            return super()._begun(target, panel)
        whole, panel = asm.divide(panel, p.panels)
        target = asm.offset(target, whole, p.bytes)
        if p.heads:
            self.target_heads = asm.offset(target, panel, 4 * p.width)
            asm.advance(self.target_heads, p.data_bytes)
        if p.rounded:
            self.target_scales = asm.offset(target, panel, 4 * p.width)
            asm.advance(self.target_scales, p.scales_at)
        return asm.offset(target, panel, p.panel_bytes)

    def _panel(self, source: Register, target: Register, width: int) -> None:
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        if p.rounded:
            self.inverses = self._scaled(source, width)
        if p.heads:
            self.ones = asm.result("load", asm.integers([0x01010101] * lanes))
            self.totals = [asm.zero() for _ in range(p.width // lanes)]
            self.word_ones = word_ones(asm)
        super()._panel(source, target, width)
        for v, total in enumerate(self.totals):
            first = asm.result("mul_int", total, asm.integers([-p.zero] * lanes))
            asm.store(Address(self.target_heads, v * self.level.bytes), first)

    def _scaled(self, source: Register, width: int) -> list[Register]:
        """Store the scales of the numbers of a panel; their inverses, for each vector of o."""
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        index = asm.result("load", asm.integers([i * self.o for i in range(lanes)]))
        largest = [asm.zero() for _ in range(-(-width // lanes))]
        row = asm.copy(source)
        with asm.loop(p.rows):
            pixel = asm.copy(row)
            with asm.loop(p.columns):
                at = asm.copy(pixel)
                together = 2 if p.paired else 1
                if p.channels // together:
                    with asm.loop(p.channels // together):
                        self._enlarge(largest, at, index, width, together)
                if p.channels % together:
                    self._enlarge(largest, at, index, width, 1)
                asm.advance(pixel, self.s)
            asm.advance(row, self.r)
        inverses = []
        for v, top in enumerate(largest):
            scale = asm.result("mul", top, asm.constant(float(np.float32(1 / p.steps))))
            scale = asm.result("max", scale, asm.constant(SCALE_MIN))
            asm.store(Address(self.target_scales, v * self.level.bytes), scale)
            inverses.append(reciprocal(asm, scale))
        return inverses

    def _enlarge(self, largest: list[Register], at: Register, index: Register, width: int,
                 channels: int) -> None:
        """Make the largest magnitudes those of the next channel, too, or of the next two and of
        their sum."""
        asm, lanes, taken = self.asm, self.level.lanes, []
        for _ in range(channels):
            for v in range(len(largest)):
                here = asm.copy(at)
                asm.advance(here, v * lanes * self.o)
                taken.append(self._taken(here, index, min(lanes, width - v * lanes)))
            asm.advance(at, self.c)
        for v, top in enumerate(largest):
            values = taken[v::len(largest)]
            if channels > 1:
                values.append(asm.result("add", *values))
            for value in values:
                asm.op("max", top, top, absolute(asm, value))

    def _turn(self, at: Register, target: Register, index: Register, width: int,
              channels: int) -> None:
        """Up to four neighbouring channels of a panel as bytes, or two as words; of blocks up to
        eight, two lines."""
        asm, lanes = self.asm, self.level.lanes
        for v in range(self.packed.width // lanes):
            count, values = max(0, min(lanes, width - v * lanes)), []
            for first in range(0, self.step, self.together):
                here, held = asm.copy(at), min(self.together, channels - first)
                asm.advance(here, v * lanes * self.o + first * self.c)
                value = (self._together(here, index, count, held, v) if count and held > 0
                         else asm.zero())
                values.append(value)
                if self.totals:
                    add_quads(asm, self.totals[v], self.ones, value, self.word_ones)
            if self.packed.blocks:
                values = [asm.result(name, *values) for name in ("unpack_low", "unpack_high")]
            for line, value in enumerate(values):
                self._put(target, v, value, line * self.packed.line_bytes)

    def _together(self, here: Register, index: Register, count: int, channels: int,
                  v: int) -> Register:
        """The channels of `count` neighbouring o, vector `v`, the first in the lowest bits of each
        lane."""
        asm, bytes = self.asm, self.packed.dtype == "i8"
        without = "u8" if bytes else ""  # of bytes without a sign 128 is subtracted
        if bytes and self.neighbours and channels == 4 and not self.packed.rounded:
            value = asm.gather(here, index, count)
            flips = asm.integers([-0x7F7F7F80] * self.level.lanes)
            return asm.result("xor", value, flips) if self.dtype == without else value
        found, bits = None, 8 if bytes else 16
        for k in range(channels):
            value = self._whole(here, index, count, v)
            value = asm.result("shift_left_int", value, 32 - bits)
            if self.dtype == without:
                value = asm.result("xor", value, asm.integers([-1 << 31] * self.level.lanes))
            value = asm.result("shift_right_int", value, 32 - bits)
            if k:
                value = asm.result("shift_left_int", value, bits * k)
            found = value if found is None else asm.result("or", found, value)
            asm.advance(here, self.c)
        assert found is not None, channels
        return found

    def _whole(self, here: Register, index: Register, count: int, v: int) -> Register:
        """`count` neighbouring o as integers, words less their zero point; `v` is their vector."""
        asm, lanes, signed = self.asm, self.level.lanes, self.dtype == "i8"
        if self.packed.rounded:
            value = asm.result("mul", self._taken(here, index, count), self.inverses[v])
            return asm.result("to_int", value)
        if self.o == self.size:
            value = asm.widened("widen_signed_byte" if signed else "widen_byte", Address(here),
                                count)
        else:
            value = asm.result("shift_left_int", asm.gather(here, index, count), 24)
            value = asm.result("shift_right_signed_int" if signed else "shift_right_int", value,
                               24)
        if self.packed.dtype == "i16" and self.packed.weight_zero:
            zeros = asm.integers([-self.packed.weight_zero] * lanes)
            value = asm.result("add_int", value, zeros)
        return value


class GroupPacking(Packing):
    """Makes the code that lays quantised weights down for products of their codes with bytes."""

    packed: CodePanels

    def _panel(self, source: Register, target: Register, width: int) -> None:
        asm, p, lanes = self.asm, self.packed, self.level.lanes
        form = FORMATS[p.dtype]
        index = asm.result("load", asm.integers([i * self.o for i in range(lanes)]))
        with asm.loop(p.channels // form.group):
            for v in range(p.width // lanes):
                here = asm.copy(source)
                asm.advance(here, v * lanes * self.o)
                self._group(here, target, index, max(0, min(lanes, width - v * lanes)), v)
            asm.advance(source, self.size * form.words)
            asm.advance(target, (form.words + 1) * p.line_bytes)

    def _group(self, here: Register, target: Register, index: Register, count: int,
               v: int) -> None:
        """A group of `count` neighbouring o, vector `v` of a panel."""
        asm, form = self.asm, FORMATS[self.packed.dtype]

        def put(line: int, value: Register) -> None:
            self._put(target, v, value, line * self.packed.line_bytes)

        if not count:
            for line in range(form.words + 1):
                put(line, asm.zero())
            return
        scale = asm.gather(here, index, count)
        if form.minimum:  # codes from 0 on become codes with a sign
            asm.advance(here, self.size)
            half = asm.constant(float(1 << form.bits - 1))
            put(1, asm.result("add", asm.gather(here, index, count),
                              asm.result("mul", scale, half)))
        put(0, asm.result("mul", scale, asm.constant(1 / 16)) if form.bits == 4 else scale)
        ones = asm.result("load", asm.integers([0x01010101] * self.level.lanes))
        total = asm.zero()
        for word in range(form.group // form.codes):
            asm.advance(here, self.size)
            codes = asm.gather(here, index, count)
            for each in self._codes(codes, total, ones):
                put(form.heads + 1 + word, each)
        first = asm.integers([-self.packed.zero] * self.level.lanes)
        value = asm.result("mul_int", total, first)
        if self.level.by_lane:
            bits = asm.integers([SUM_BITS] * self.level.lanes)
            value = asm.result("add_int", value, bits)
        put(form.heads, value)

    def _codes(self, words: Register, total: Register, ones: Register) -> list[Register]:
        """A line of codes as they are multiplied; their sums are added to `total`."""
        asm, form, lanes = self.asm, FORMATS[self.packed.dtype], self.level.lanes
        if form.minimum:
            signs = -0x7F7F7F80 if form.bits == 8 else -0x77777778
            words = asm.result("xor", words, asm.integers([signs] * lanes))
        if form.bits == 8:
            asm.op("dot_quads", total, ones, words)
            return [words]
        found = None
        for k in range(form.codes):
            code = asm.result("shift_right_int", asm.result("shift_left_int", words, 28 - 4 * k)
                              if k < 7 else words, 28)
            place = 8 * (k % 4) + 4 * (k // 4)
            code = asm.result("shift_left_int", code, place) if place else code
            found = code if found is None else asm.result("or", found, code)
        upper = asm.integers([-0x0F0F0F10] * lanes)
        low = asm.result("and", asm.result("shift_left_int", found, 4), upper)
        asm.op("dot_quads", total, ones, low)
        asm.op("dot_quads", total, ones, asm.result("and", found, upper))
        return [found]
