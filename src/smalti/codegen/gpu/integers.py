"""Products of integers of 8 bits: both factors are staged as words of four bytes with a sign,
neighbours along the depth, and multiplied by dot products with sums of i32.

    a [row][depth / 4]      BytePatch: bytes as they are stored, with their zero point
    b [depth / 4][column]   PackedWeight: packed when it was bound; ByteValues: a value like others
    b [column][depth / 4]   PackedColumns, ByteColumns: the same for the matrix unit

A byte without a sign is staged as itself less 128, and so is its zero point. What bytes are more
than they mean, z, is the same for all of them, and beyond borders they are that. So a sum is too
large by z times the sum of the weights of its column. Where the weight is packed, what each sum
begins with is laid behind it; of other weights the products add it up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.expressions import Values
from smalti.codegen.gpu.factors import (
    WEIGHT,
    Area,
    ComputedColumns,
    Fetched,
    Lines,
    Patch,
)
from smalti.codegen.gpu.form import Binding, Expr, number, op, select, vector
from smalti.codegen.gpu.instructions import DOT
from smalti.codegen.gpu.packed import ComputedWeight
from smalti.codegen.gpu.product import Place, Product
from smalti.codegen.gpu.spots import clamped
from smalti.codegen.gpu.types import VectorType
from smalti.codegen.gpu.weights import VECTOR
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Call, Const, Load, loads
from smalti.kernel.form import Expr as KernelExpr
from smalti.schedule.group import WIDE_BYTES, WORD_OF_BYTES, GroupContraction
from smalti.schedule.merge import bytes_excess

BYTE, SIGN = 0xFF, 0x80
ALL_ONE, ALL_SIGN = 0x01010101, 0x80808080
"""Words of four bytes, of which each is 1, or changes its sign."""
BITS = 8  # of a byte


def words_of(b: Builder, bytes: Sequence[Expr], masked: bool = True) -> Expr:
    """Words of four bytes, of u32 that hold them in their lowest bits; nothing else if they need
    not be `masked`."""
    parts = []
    for place, each in enumerate(bytes):
        last = place == len(bytes) - 1
        value = each & BYTE if masked and not last else each
        parts.append(value << BITS * place if place else value)
    first, second, third, fourth = parts
    return b.let(first | second | (third | fourth))


def plain_bytes(value: KernelExpr, dtypes: Mapping[str, str]) -> Load | None:
    """The load of integers that a patch is, less a constant or not; None where it is anything else.
    """
    if isinstance(value, Call) and value.function == "sub" and isinstance(
            value.arguments[1], Const):
        value = value.arguments[0]
    return value if isinstance(value, Load) and dtypes[value.buffer] in ("u8", "i8") else None


class ByteLines(Lines):
    """Lines of bytes along the depth: words, of which an invocation brings one at a time, or up to
    four for the matrix unit. What is beyond borders is `border` of them, with a sign."""

    def prepare(self, border: int) -> None:
        """Find out what is read. Raises IllegalSchedule where no words are."""
        c = self.product.extents.c
        if self.lanes % WORD_OF_BYTES:
            raise IllegalSchedule(f"{c} channels are no whole words of bytes")
        self.border = border
        dtypes = {each.name: each.dtype for each in self.product.kernel.buffers}
        self.bytes = plain_bytes(self.value, dtypes)
        self.unsigned = self.bytes is not None and dtypes[self.bytes.buffer] == "u8"
        self.whole = self.bytes is not None

    @property
    def widest(self) -> int:
        return WIDE_BYTES if self.schedule.matrix else WORD_OF_BYTES

    @property
    def padded(self) -> bool:
        return bool(self.schedule.matrix) and self.lanes == WORD_OF_BYTES * self.schedule.pad

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        b, count = self.b, self.lanes // WORD_OF_BYTES
        border = number((self.border & BYTE) * ALL_ONE, VectorType("u32", count))
        for n, (spot, each) in enumerate(zip(self.spots, fetched)):
            inside = self.tap.lines[n].inside if self.tap else each.inside
            words: Expr = border
            if each.values:
                found = [self._word(each, at) for at in range(0, self.lanes, WORD_OF_BYTES)]
                words = vector(*found) if count > 1 else found[0]
            if inside is not None and each.values:
                words = b.let(select(inside, words, border))
            line, inner = spot.place
            self.store(spot, buffer, line, inner, count, [words])

    def _word(self, fetched: Fetched, at: int) -> Expr:
        """Four bytes that were fetched for a spot, from one of its elements on."""
        b = self.b
        if self.bytes is not None:
            raw = b.let(fetched.values[self.bytes, at].bits("u32"))
            word = words_of(b, [raw.lane(n) for n in range(WORD_OF_BYTES)], not self.unsigned)
            return b.let(word ^ ALL_SIGN) if self.unsigned else word
        known: dict[KernelExpr, Expr] = {load: fetched.values[load, at] for load in self.loads}
        value = Values(b, self.product.kernel, self.bindings, {}, "c", self.each,
                       known=known).value(self.value)
        whole = b.let((value + float(self.border)).to("i32").bits("u32"))
        return words_of(b, [whole.lane(n) for n in range(WORD_OF_BYTES)])


class BytePatch(ByteLines, Patch):
    """The left factor: rows of bytes from `first` on."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place, area: Area) -> None:
        super().__init__(b, product, schedule, bindings, first, outer, area)
        self.prepare(bytes_excess(product.kernel))


class ByteColumns(ByteLines, ComputedColumns):
    """The right factor of the matrix unit where it is a value like others: its columns."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place, area: Area) -> None:
        super().__init__(b, product, schedule, bindings, first, outer, area)
        self.prepare(0)


@dataclass(frozen=True)
class Starts:
    """Reads what sums begin with, behind a packed weight."""

    b: Builder
    binding: Binding
    packed: PackedBytes
    tile: int

    def __call__(self, part: int, column: Expr) -> Expr:
        """That of a part, of four columns from number `column` on, or of the last four; tiles of
        columns begin at multiples of `tile`."""
        b, packed = self.b, self.packed
        at = clamped(b, b.let(column), self.tile, packed.columns, VECTOR)
        words = b.load(self.binding, at + (packed.starts_at + part * packed.columns), VECTOR)
        return b.let(words.bits("i32"))


class ByteValues(ComputedWeight):
    """The right factor where it is a value like others, read through its strides: the four lines of
    a word one after the other."""

    def __init__(self, b: Builder, product: Product, schedule: GroupContraction,
                 bindings: Mapping[str, Binding], first: Expr, outer: Place, area: Area) -> None:
        super().__init__(b, product, schedule, bindings, first, outer, area)
        _, self.read = loads(product.kernel.stages[1].value)
        self.unsigned = product.kernel.buffer(self.read.buffer).dtype == "u8"

    def fetch(self, chunk: Expr) -> list[Fetched]:
        b, product, tile = self.b, self.product, self.schedule.tile_k
        found = []
        for spot, origin, walk in zip(self.spots, self.origins, self.walks):
            parts = {}
            for n in range(WORD_OF_BYTES):
                k: Expr = b.let(spot.outer * WORD_OF_BYTES + n)
                if product.depth % tile:
                    k = b.let(op("min", chunk * tile + k, product.depth - 1) - chunk * tile)
                step = product.within(b, chunk, tile, k)
                values = Values(b, product.kernel, self.bindings, {**origin, **step}, "o",
                                self.lanes, where=spot.where, places=walk.place(b, step, {}))
                parts[WEIGHT, n] = b.let(values.load(self.found).bits("u32"))
            found.append(Fetched(parts, None))
        return found

    def put(self, fetched: Sequence[Fetched], buffer: Expr) -> None:
        for spot, each in zip(self.spots, fetched):
            word = words_of(self.b, [each.values[WEIGHT, n] for n in range(WORD_OF_BYTES)])
            if self.unsigned:
                word = self.b.let(word ^ ALL_SIGN)
            self.store(spot, buffer, spot.outer, spot.inner, self.lanes, [word])


def sum_of_bytes(words: Expr) -> Expr:
    """What the bytes of words add up to."""
    return op(DOT, number(ALL_ONE, words.type), words)
