"""Schedules for GPUs, frozen and printable; the limits that bound them: `group_limits.py`."""

from __future__ import annotations

import math

from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS
from smalti.schedule.group_limits import (
    GroupLimits,
    MatrixShape,
    check_group,
    check_share,
    sizes_of,
)
from smalti.schedule.line_attention import GroupLineAttention

HELD = 8
"""Vectors of a row that an invocation keeps in registers, rather than reading them twice."""
PIXELS_MAX = 16
"""Pixels that an invocation has sums of, in registers."""


@dataclass(frozen=True, slots=True)
class GroupMap:
    """A map by work-groups of `size` invocations; each makes `lanes` results side by side."""

    size: int
    lanes: int = 1

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        check_group(self.size, self.lanes, limits)


@dataclass(frozen=True, slots=True)
class GroupTransposition:
    """A map whose operands lie across its result, by work-groups of `size` invocations: each makes
    `tile` by `tile` results, through shared memory."""

    size: int
    tile: int = 32

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        check_group(self.size, 1, limits)
        if self.tile < 1:
            raise IllegalSchedule(f"tiles of {self.tile}")


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Totals by work-groups of `size` invocations, `share` of which make one together, with `lanes`
    elements at once.

    `parts` work-groups share a total, and a second step combines theirs. In subgroups of
    `subgroup` invocations, where that is not 0, they are combined without shared memory.
    """

    size: int
    share: int
    lanes: int = 1
    parts: int = 1
    subgroup: int = 0

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        check_group(self.size, self.lanes, limits)
        check_share(self.size, self.share, self.subgroup, limits)
        if self.parts < 1:
            raise IllegalSchedule(f"totals of {self.parts} parts")


@dataclass(frozen=True, slots=True)
class GroupReduction(GroupTotals):
    """A reduction: each invocation takes `lanes` points at once where those lie side by side, else
    it makes `lanes` results."""


@dataclass(frozen=True, slots=True)
class GroupMoments(GroupTotals):
    """Statistics of normalisations.

    Groups of channels in `parts` greater than 1 are made from statistics of each channel in so many
    parts of the pixels, of which `share` invocations take part in each.
    """


QUERIES = 4
"""Queries of an invocation of an attention: they stand side by side in a vector."""
PADDING = 4
"""Elements behind each row of shared memory, so that rows begin in different banks."""


@dataclass(frozen=True, slots=True)
class GroupAttention:
    """An attention by work-groups of `rows` by `columns` invocations.

    A row of them has `QUERIES` queries, of which each invocation takes `each` keys at a time, and
    of the values every fourth channels of a column. `channels` are staged at a time, as `dtype`.
    In subgroups of `subgroup`, where that is not 0, rows are folded without shared memory.

    >>> GroupAttention(8, 16, 2, 64).shared(64)
    {'query': 2176, 'stage': 2176, 'weight': 1152, 'part': 512}
    """

    rows: int
    columns: int
    each: int
    channels: int
    dtype: str = "f32"
    subgroup: int = 0

    @property
    def size(self) -> int:
        """Invocations of a work-group."""
        return self.rows * self.columns

    @property
    def queries(self) -> int:
        """Queries of a work-group."""
        return self.rows * QUERIES

    @property
    def keys(self) -> int:
        """Keys that a work-group stages at a time."""
        return self.columns * self.each

    @property
    def vectors(self) -> int:
        """Vectors of `QUERIES` by 4 sums that an invocation has for each `channels` of the
        values."""
        return -(-self.channels // (4 * self.columns))

    def depth(self, channels: int) -> int:
        """Channels of a query in shared memory: whole turns of staging."""
        return -(-channels // self.channels) * self.channels

    def stride(self, elements: int) -> int:
        """From one row of shared memory to the next."""
        return elements + PADDING

    def shared(self, channels: int) -> dict[str, int]:
        """Elements of each shared array, for heads of so many channels."""
        arrays = {"query": self.queries * self.stride(self.depth(channels)),
                  "stage": self.keys * self.stride(self.channels),
                  "weight": self.keys * self.stride(self.queries)}
        return arrays if self.subgroup else {**arrays, "part": self.columns * self.queries}

    def shared_bytes(self, channels: int) -> int:
        """Bytes of shared memory, for heads of so many channels."""
        return sum(n * (2 if self.dtype == "f16" and name != "part" else 4)
                   for name, n in self.shared(channels).items())

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        check_group(self.size, 1, limits)
        check_share(self.size, self.columns, self.subgroup, limits)
        if self.subgroup and self.columns > self.subgroup:
            raise IllegalSchedule(f"{self.columns} columns in a subgroup of {self.subgroup}")
        if min(self.each, self.channels) < 1 or self.channels % 4:
            raise IllegalSchedule(f"{self.each} keys and {self.channels} channels at a time")
        if self.dtype not in ("f32", "f16") or self.dtype == "f16" and not limits.f16:
            raise IllegalSchedule(f"the device has no shared memory of {self.dtype}")


@dataclass(frozen=True, slots=True)
class GroupDepthwise:
    """A depthwise convolution or pooling by work-groups of `size` invocations; each makes `pixels`
    results of a row, `lanes` channels of each."""

    size: int
    lanes: int = 1
    pixels: int = 1

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        check_group(self.size, self.lanes, limits)
        if not 1 <= self.pixels <= PIXELS_MAX:
            raise IllegalSchedule(f"{self.pixels} pixels, of {PIXELS_MAX} at most")


@dataclass(frozen=True, slots=True)
class GroupMatrixAttention:
    """An attention in the matrix unit, by work-groups of `subgroups` subgroups of `subgroup`.

    Sets of `across` subgroups share queries, `blocks` rows of matrices of the shape `matrix`
    ("16x16x16": rows, columns, depth) of them. Each subgroup of a set computes the scores of its
    part of the `keys` of a tile, `columns` matrices of them at a time, and the sums of its part of
    the channels. Where a tile has fewer keys than that, subgroups share scores in several `ways`:
    each goes along its part of the depth, and what they find is added. Keys and values are staged
    whole, or `channels` at a time if that is not 0.
    Queries wait in shared memory, or are `held` in registers; with `ahead`, so is the next tile.
    Factors are of `dtype`, sums of f32.

    >>> GroupMatrixAttention(4, 2, 32, "16x16x16", 32, held=True).shared_bytes(64, 64)
    38400
    """

    subgroups: int
    blocks: int
    keys: int
    matrix: str
    subgroup: int
    dtype: str = "f16"
    across: int = 1
    columns: int = 1
    channels: int = 0
    held: bool = False
    ahead: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of `matrix`."""
        return sizes_of(self.matrix)

    @property
    def size(self) -> int:
        """Invocations of a work-group."""
        return self.subgroups * self.subgroup

    @property
    def rows(self) -> int:
        """Queries of a set of subgroups."""
        return self.blocks * self.shape[0]

    @property
    def queries(self) -> int:
        """Queries of a work-group."""
        return self.subgroups // self.across * self.rows

    @property
    def share(self) -> int:
        """How many invocations share a query: of one subgroup, so that they need no barrier.
        Where a set has more, some of its subgroups have none."""
        return min(self.across * self.subgroup // self.rows, self.subgroup)

    @property
    def ways(self) -> int:
        """Subgroups that share a score."""
        return max(1, self.across * self.shape[1] * self.columns // self.keys)

    @property
    def score_stride(self) -> int:
        """From one row of scores to the next."""
        return self.ways * self.keys + PADDING

    def padded(self, depth: int, width: int) -> tuple[int, int]:
        """Channels of keys, and of values, in whole matrices or chunks."""
        _, columns, k = self.shape
        whole = (self.channels,) * 2 if self.channels else (k, self.across * columns)
        return -(-depth // whole[0]) * whole[0], -(-width // whole[1]) * whole[1]

    def counts(self, keys: int, width: int) -> bool:
        """Whether matrices reach behind the last channel of values, and there are several tiles of
        keys: then the first place there counts weights."""
        return not self.channels and keys > self.keys and self.padded(width, width)[1] > width

    def stride(self, elements: int) -> int:
        """From one row of factors to the next: they begin at multiples of 16 bytes."""
        return elements + 8

    def shared(self, depth: int, width: int) -> dict[str, int]:
        """Elements of each shared array, for heads of so many channels."""
        key_width, value_width = self.padded(depth, width)
        arrays = {"score": self.queries * self.score_stride,
                  "weight": self.queries * self.stride(self.keys)}
        if not self.held:
            arrays["query"] = self.queries * self.stride(key_width)
        if self.channels:
            arrays["stage"] = max(self.keys * self.stride(self.channels),
                                  self.channels * self.stride(self.keys))
        else:
            arrays["key"] = self.keys * self.stride(key_width)
            arrays["value"] = value_width * self.stride(self.keys)
        return arrays

    def shared_bytes(self, depth: int, width: int) -> int:
        """Bytes of shared memory, for heads of so many channels."""
        return sum(n * (4 if name == "score" else 2)
                   for name, n in self.shared(depth, width).items())

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        if not any((m.text, m.factors, m.sums) == (self.matrix, self.dtype, "f32")
                   for m in limits.matrices):
            raise IllegalSchedule(f"the matrix unit has no {self.matrix} of {self.dtype}")
        _, columns, depth = self.shape
        check_group(self.size, 1, limits)
        if min(self.blocks, self.share, self.across) < 1 or (
                self.across * self.subgroup % self.rows or self.subgroups % self.across):
            raise IllegalSchedule(f"sets of {self.across} of {self.subgroups} subgroups of "
                                  f"{self.subgroup} share {self.rows} queries")
        check_share(self.size, self.share, self.subgroup, limits)
        if self.columns * columns > self.keys:
            raise IllegalSchedule(f"{self.columns} matrices at a time of {self.keys} keys in "
                                  f"{self.matrix}")
        if self.keys < 1 or self.columns < 1 or self.keys % depth or self.keys % (
                4 * self.share) or self.ways * self.keys % (
                self.across * columns * self.columns) or (
                self.across * columns % (4 * self.share)):
            raise IllegalSchedule(f"{self.keys} keys, {self.columns} matrices at a time, for "
                                  f"{self.share} invocations a query in {self.matrix}")
        if self.channels % math.lcm(self.across * columns, depth):
            raise IllegalSchedule(f"{self.channels} channels at a time in {self.matrix}")
        if self.ways > 1 and (not self.channels or self.channels % (self.ways * depth)):
            raise IllegalSchedule(f"{self.ways} subgroups share scores of {self.channels} channels "
                                  f"at a time in {self.matrix}")
        if self.channels and (self.held or self.ahead or (
                self.ways * self.keys != self.across * columns * self.columns)):
            raise IllegalSchedule("with some channels at a time, queries and tiles are in shared "
                                  "memory, and all scores of a tile in registers")


@dataclass(frozen=True, slots=True)
class GroupContraction:
    """A contraction as products of matrices, by tiles of `tile_m` pixels and `tile_n` channels.

    A work-group stages `tile_k` of the depth (window and input channels) at a time in shared
    memory, as `dtype`; rows lie `pad` elements further apart than they are long. An invocation
    holds a block of `block_m` by `block_n` sums of each part; with `matrix` ("16x16x16": rows,
    columns, depth) a subgroup of `subgroup` invocations does, in the matrix unit. `ways` sets of
    invocations share each chunk of the depth, and `split` work-groups the whole of it.

    Products of integers have the `dtype` "i8": four of them are a word, in which rows and `pad` are
    counted then.

    `ahead`: a chunk is loaded into registers while the one before is multiplied, and with two
    `buffers` it also has shared memory of its own. `direct`: each invocation, or subgroup, reads
    the weight where it is, which pays where few pixels use it; matrices `ahead` before their
    patch is staged. `prepared`: a step in front writes the patch, prologue applied. `weights` is
    the dtype that packed weights are held in; quantised ones are widened as they are staged.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    block_m: int
    block_n: int
    ways: int = 1
    split: int = 1
    buffers: int = 1
    pad: int = 4
    ahead: bool = False
    direct: bool = False
    prepared: bool = False
    dtype: str = "f32"
    weights: str = "f32"
    matrix: str = ""
    subgroup: int = 0

    @property
    def places(self) -> int:
        """Places along the depth of a chunk in shared memory: elements, or words of four bytes."""
        return self.tile_k // WORD_OF_BYTES if self.dtype == BYTES else self.tile_k

    @property
    def line_words(self) -> int:
        """Words from one row of a factor of matrices to the next in shared memory."""
        return self.places + self.pad if self.dtype == BYTES else (self.places + self.pad) // 2

    @property
    def sums(self) -> str:
        """What sums are of."""
        return "i32" if self.dtype == BYTES else "f32"

    @property
    def blocks(self) -> int:
        """Blocks of a tile."""
        return (self.tile_m // self.block_m) * (self.tile_n // self.block_n)

    @property
    def invocations(self) -> int:
        """Invocations of a work-group."""
        return self.blocks * self.ways * (self.subgroup if self.matrix else 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of `matrix`."""
        return sizes_of(self.matrix)

    def region(self, parts: int = 1) -> int:
        """Columns of sums of each part that a subgroup writes at a time: as many as fit where the
        factors were, or `REGION` where only one of them was staged, and divide its block."""
        columns = self.shape[1]
        blocks = self.block_n // columns
        return columns * max(n for n in range(1, blocks + 1) if blocks % n == 0 and (
            n == 1 or self._written_bytes(parts, n * columns) <= self._staged_bytes(parts)
            or self.direct and n * columns <= REGION))

    def _staged_bytes(self, parts: int) -> int:
        """Bytes of both factors."""
        columns, line = parts * self.tile_n, self.places + self.pad
        right = columns * line if self.matrix else self.places * (columns + self.pad)
        staged = self.tile_m * line + (0 if self.direct else right)
        return self.buffers * staged * (4 if self.dtype in ("f32", BYTES) else 2)

    def _written_bytes(self, parts: int, columns: int) -> int:
        """Bytes of a row of matrices of so many columns, of each subgroup, as f32."""
        return 4 * self.blocks * self.shape[0] * (parts * columns + MATRIX_PAD)

    def shared_bytes(self, parts: int = 1) -> int:
        """Bytes of shared memory, where a result is made of `parts` sums."""
        size, columns = self._staged_bytes(parts), parts * self.tile_n
        if self.matrix:
            return max(size, self._written_bytes(parts, self.region(parts)))
        return size + 4 * (self.ways - 1) * self.tile_m * columns

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        if self.tile_m % self.block_m or self.tile_n % self.block_n:
            raise IllegalSchedule(f"blocks of {self.block_m} x {self.block_n} do not divide a tile "
                                  f"of {self.tile_m} x {self.tile_n}")
        if self.block_n % 4 or self.pad % 4 or self.places % (4 * self.ways) or (
                self.dtype == BYTES and self.tile_k % WORD_OF_BYTES):
            raise IllegalSchedule("blocks, chunks of each way and pads are whole vectors of 4")
        if self.buffers == 2 and not self.ahead or self.buffers not in (1, 2):
            raise IllegalSchedule("a second buffer is for chunks that are loaded ahead")
        if self.dtype == BYTES and (self.weights != BYTES or self.prepared):
            raise IllegalSchedule("bytes are multiplied with bytes, and staged as they are brought")
        if self.dtype not in (*PRODUCTS, BYTES) or self.weights not in (
                *PRODUCTS, *FORMATS, *([BYTES] if self.dtype == BYTES else [])):
            raise IllegalSchedule(f"no products of {self.dtype}, or weights held as {self.weights}")
        if self.dtype == "f16" and not limits.f16 or self.dtype == "bf16" and not limits.bf16:
            raise IllegalSchedule(f"the device does not compute with {self.dtype}")
        if self.weights in FORMATS:
            run = FORMATS[self.weights].codes * (self.ways if self.direct else 1)
            if self.tile_k % run:
                raise IllegalSchedule(f"chunks of {self.tile_k} are no whole words of "
                                      f"{self.weights}")
        if self.matrix:
            self._check_matrix(limits)
        check_group(self.invocations, 4, limits)
        if self.shared_bytes() > limits.shared_bytes:
            raise IllegalSchedule(f"a tile takes {self.shared_bytes()} bytes of shared memory, of "
                                  f"{limits.shared_bytes}")

    def _check_matrix(self, limits: GroupLimits) -> None:
        rows, columns, depth = self.shape
        if self.line_words % 4:
            raise IllegalSchedule("rows that matrices are read from begin at multiples of 16 bytes")
        if MatrixShape(*self.shape, self.dtype, self.sums) not in limits.matrices:
            raise IllegalSchedule(f"the matrix unit has no {self.matrix} of {self.dtype}")
        if self.block_m % rows or self.block_n % columns or self.tile_k % depth:
            raise IllegalSchedule(f"matrices {self.matrix} do not divide blocks of {self.block_m} "
                                  f"x {self.block_n} and chunks of {self.tile_k}")
        if self.ways > 1 or self.direct and (self.buffers > 1 or self.weights != self.dtype):
            raise IllegalSchedule("matrices are not shared by ways, and read in place only where "
                                  f"weights are held as {self.dtype}, without a second buffer")
        sizes = limits.subgroup_min, limits.subgroup_max
        if not sizes[0] <= self.subgroup <= sizes[1] or not (
                limits.subgroup_choice or sizes == (self.subgroup, self.subgroup)):
            raise IllegalSchedule(f"subgroups of {self.subgroup} cannot be asked for, they have "
                                  f"{sizes[0]} to {sizes[1]} invocations")


PRODUCTS = ("f32", "f16", "bf16")
"""What factors of products are, with sums of f32."""
BYTES, WORD_OF_BYTES = "i8", 4
"""What factors of products of integers are, with sums of i32, and how many of them, neighbours
along the depth, are staged and multiplied as a word."""
WIDE_BYTES = 16
"""Bytes, neighbours along the depth, that are read and staged at once for the matrix unit."""
REGION, MATRIX_PAD = 32, 4
"""Columns that a subgroup writes at a time where there is room, and f32 between rows of sums."""

GroupSchedule = (GroupMap | GroupTransposition | GroupReduction | GroupMoments | GroupDepthwise
                 | GroupContraction | GroupAttention | GroupMatrixAttention | GroupLineAttention)
