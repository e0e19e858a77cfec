"""The schedules of kernels on a CPU, as frozen records; `check` refuses what a CPU cannot run."""

from __future__ import annotations

from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS, Format


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a CPU schedules depend on: f32 lanes of a vector, vector registers (`vectors`),
    caches, threads."""

    lanes: int
    vectors: int
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    threads: int = 1
    pairs: bool = False
    """True if products of bf16 pairs are one instruction (`vdpbf16ps`)."""
    by_lane: bool = False
    """True if products take a factor from one lane of a vector: a micro-kernel then holds such a
    vector of each row, where it holds a single factor otherwise."""
    integers: str = ""
    """How integers of 8 bits are multiplied: "quads", "words", or "" for not at all."""
    blocks: bool = False
    """True if an instruction multiplies two rows by two columns of four bf16 (`bfmmla`), or of
    eight bytes (`usmmla`)."""

    def needed(self, rows: int, vectors: int, blocks: bool = False) -> int:
        """Vector registers that a micro-kernel of so many rows and vectors needs; `blocks` says
        that it multiplies such.

        >>> Limits(16, 32).needed(14, 2), Limits(4, 32, by_lane=True).needed(7, 3)
        (31, 31)
        >>> Limits(4, 32, by_lane=True, blocks=True).needed(6, 4, blocks=True)
        32
        """
        if blocks:
            return (rows + rows % 2) * (vectors + 1) + 2
        return rows * vectors + vectors + (rows if self.by_lane else 1)

    def rows(self, vectors: int, kept: int) -> int:
        """The most rows of a micro-kernel of so many vectors that leaves `kept` registers free.

        >>> Limits(16, 32).rows(2, 1), Limits(4, 32, by_lane=True).rows(3, 1)
        (14, 7)
        """
        free = self.vectors - kept - vectors
        return free // (vectors + 1) if self.by_lane else (free - 1) // vectors


@dataclass(frozen=True, slots=True)
class Direct:
    """The direct sum over the window, reading a staged patch: what a tile needs of the input is
    copied to scratch memory, a chunk of channels at a time, after applying the prologue."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """The direct sum over the window, reading the input where it is stored; results are written
    from registers. For inputs without prologue and padding."""


@dataclass(frozen=True, slots=True)
class Planar:
    """The direct sum over the window, reading a patch staged as a plane for each channel: whole
    rows of pixels are copied. Results are written from registers. For few channels that are stored
    as planes."""


BINDING, RUN, TILE = "binding", "run", "tile"
TRANSFORMED = (BINDING, RUN, TILE)
"""When Winograd's algorithm transforms weights: once as they are bound; at the start of each run,
into memory that is free at that time; or in each tile, the chunk of plain weights it needs."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """Winograd's minimal filtering F(size x size, 3 x 3), with `size` 2 or 4.

    `group` panels are multiplied at a time by each point of the transformed inputs. If `folded`, a
    nearest enlargement by 2 in front of the convolution is part of the input transform. If
    `shared`, the inputs of all tiles are transformed first, into memory that the threads share,
    instead of again for each block of panels. `transformed` is one of `TRANSFORMED`.
    """

    size: int
    group: int = 1
    folded: bool = False
    shared: bool = False
    transformed: str = BINDING

    def check(self) -> None:
        """Raise IllegalSchedule for values that Winograd's algorithm does not have."""
        if self.size not in (2, 4):
            raise IllegalSchedule(f"there is no F({self.size}), only F(2) and F(4)")
        if self.transformed not in TRANSFORMED:
            raise IllegalSchedule(f"weights are transformed at one of {', '.join(TRANSFORMED)}, "
                                  f"not {self.transformed!r}")


def group_registers(form: Format, rows: int, vectors: int, by_lane: bool = False) -> int:
    """Vector registers of a micro-kernel that multiplies bytes by the codes of `form`: a sum of f32
    and one of a group for each result, codes, a factor, and the sum of the factors of each row
    where a group has a minimum. Products that take factors by lane have a vector of them for each
    row, and constants in registers: one by which bytes get a sign, one that takes codes of 4 bits
    apart, and ones to be multiplied where there is a minimum.

    >>> group_registers(FORMATS["q8"], 7, 2), group_registers(FORMATS["q4_min"], 3, 4)
    (31, 32)
    >>> group_registers(FORMATS["q8"], 3, 4, by_lane=True)
    32
    """
    factors = rows + 1 + (form.bits == 4) + form.minimum if by_lane else 1
    return 2 * rows * vectors + vectors + factors + (rows if form.minimum else 0)


FACTOR_CHANNELS = {"f32": 1, "bf16": 2, "i16": 2, "u8": 4}
"""How many channels each factor of the patch has, by the dtype of factors."""
INTEGER_WEIGHTS = {"u8": "i8", "i16": "i16"}
"""The dtype of packed weights by that of the factors, of products of integers: bytes of the patch
without a sign times bytes of weights with one, or 16 bits times 16 bits."""

BLOCKS = (("bf16", "bf16"), ("u8", "i8"))
"""The dtypes of factors and weights of which an instruction multiplies two rows by two columns."""

Algorithm = Direct | InPlace | Planar | Winograd


@dataclass(frozen=True, slots=True)
class ContractionSchedule:
    """How a contraction is tiled.

    A tile of work is `tile_b` images of `tile_y` rows of `tile_x` pixels, times `panels` panels of
    `vectors` vectors of output channels. Input channels are taken `chunk` at a time. The register
    tile of a micro-kernel is up to `rows` pixels times one panel; its innermost loop takes `unroll`
    steps of channels an iteration. Factors are of `dtype`: f32, pairs of bf16, or of whole numbers
    "u8" (four bytes) or "i16" (two words). `weights` is the dtype in which packed
    weights are stored: halves are widened as they are loaded if factors are f32; quantised ones are
    converted in scratch memory, once for all pixels of a tile, or before they are transformed, and
    multiplied as they are by bytes.
    """

    tile_b: int
    tile_y: int
    tile_x: int
    panels: int
    chunk: int
    rows: int
    vectors: int
    unroll: int = 4
    dtype: str = "f32"
    weights: str = "f32"
    algorithm: Algorithm = Direct()

    @property
    def winograd(self) -> Winograd | None:
        """The algorithm if it is Winograd's, else None."""
        return self.algorithm if isinstance(self.algorithm, Winograd) else None

    @property
    def winograd_size(self) -> int:
        """m of the F(m) by which it is computed; 0 for the direct sum."""
        return self.winograd.size if self.winograd else 0

    @property
    def in_registers(self) -> bool:
        """True if results are written from the registers of the micro-kernel, so that sums are
        never in memory."""
        return isinstance(self.algorithm, InPlace | Planar)

    @property
    def factors(self) -> str:
        """What a micro-kernel multiplies: "f32" by f32, f32 by "f16", "pairs" of bf16, f32 by
        bf16 that are "widened" as they are loaded, "quads" of bytes or "words"."""
        if self.integers:
            return "quads" if self.dtype == "u8" else "words"
        if self.weights in FORMATS:
            return "pairs" if self.dtype == "bf16" else "f32"
        if self.weights != "bf16":
            return self.weights
        return "pairs" if self.dtype == "bf16" else "widened"

    @property
    def blocks(self) -> bool:
        """True if its products are of two rows and two pairs, or two quads, where an instruction
        does such: plain weights are packed for it, and a turn takes an even number of these."""
        return ((self.dtype, self.weights) in BLOCKS and not self.winograd
                and self.unroll % 2 == 0)

    @property
    def step(self) -> int:
        """Channels that one iteration of the innermost loop takes."""
        if self.weights == "bf16":
            return 2 * self.unroll
        return self.unroll * FACTOR_CHANNELS[self.dtype]

    @property
    def integers(self) -> bool:
        """True for products of integers, with sums of i32."""
        return self.dtype in INTEGER_WEIGHTS

    @property
    def by_group(self) -> bool:
        """True for products of bytes with the codes of quantised weights: sums of i32 are those of
        a group of channels, and are added to sums of f32, each times the scale of its group."""
        return self.integers and self.weights in FORMATS

    def check(self, limits: Limits) -> None:
        """Raise IllegalSchedule if a CPU of `limits` cannot run it."""
        needed = limits.needed(self.rows, self.vectors, limits.blocks and self.blocks)
        if needed > limits.vectors:
            raise IllegalSchedule(f"{self.rows} x {self.vectors} accumulators need {needed} vector "
                                  f"registers, there are {limits.vectors}")
        if self.chunk % self.step:
            raise IllegalSchedule(f"a chunk of {self.chunk} channels is no multiple of "
                                  f"{self.step}")
        form, winograd = FORMATS.get(self.weights), self.winograd
        if form is not None and self.chunk % form.group:
            raise IllegalSchedule(f"{self.weights} weights need chunks of whole groups of "
                                  f"{form.group} channels, not {self.chunk}")
        if form is not None and (isinstance(self.algorithm, Planar)
                                 or winograd and winograd.transformed == BINDING):
            raise IllegalSchedule(f"{self.weights} weights are neither staged as planes nor held "
                                  f"transformed")
        if winograd:
            winograd.check()
        if self.dtype == "bf16" and not limits.pairs:
            raise IllegalSchedule("bf16 products need a CPU that multiplies pairs of them")
        if self.dtype == "bf16" and self.weights != "bf16" and form is None:
            raise IllegalSchedule("bf16 products need bf16 weights or quantised ones")
        if self.integers:
            self._check_integers(limits)

    def _check_integers(self, limits: Limits) -> None:
        """Raise IllegalSchedule if a CPU of `limits` has no such products of integers."""
        if not limits.integers or limits.integers != "quads" and self.by_group \
                or limits.by_lane and self.dtype == "i16":
            raise IllegalSchedule(f"products of {self.dtype} need a CPU that has them")
        if self.weights != INTEGER_WEIGHTS[self.dtype] and (
                self.dtype != "u8" or self.weights not in FORMATS):
            raise IllegalSchedule(f"products of {self.dtype} need weights held as "
                                  f"{INTEGER_WEIGHTS[self.dtype]}, not {self.weights}")
        if not isinstance(self.algorithm, Direct | InPlace):
            raise IllegalSchedule("products of integers are direct sums")
        needed = (group_registers(FORMATS[self.weights], self.rows, self.vectors, limits.by_lane)
                  if self.by_group else self.rows * self.vectors + self.vectors + 2
                  + (self.dtype == "u8" and limits.integers == "words"))
        if needed > limits.vectors:
            raise IllegalSchedule(f"{self.rows} x {self.vectors} sums of integers leave no "
                                  f"register of {limits.vectors} for a product")


@dataclass(frozen=True, slots=True)
class MapSchedule:
    """How a map is tiled.

    A tile of work is `grain` steps of the axis just outside of the `inner` innermost axes; loops
    are unrolled `unroll` times.
    """

    grain: int
    unroll: int = 2
    inner: int = 1


@dataclass(frozen=True, slots=True)
class DepthwiseSchedule:
    """A tile of work is `tile_y` rows of pixels times `vectors` vectors of channels.

    Up to `pixels` pixels of `rows` neighbouring rows of one vector of channels are kept in
    registers. They are written together; or, with `sliding`, as a window goes down the image, so
    that `rows` are those that see a row of the input.
    """

    tile_y: int
    vectors: int
    pixels: int
    rows: int = 1
    sliding: bool = False

    def check(self, limits: Limits) -> None:
        """Raise IllegalSchedule if a CPU of `limits` cannot run it."""
        pixels = self.rows * self.pixels
        if pixels + 2 > limits.vectors:
            raise IllegalSchedule(f"{pixels} pixels need {pixels + 2} vector registers, there are "
                                  f"{limits.vectors}")
        if self.tile_y % self.rows and not self.sliding:
            raise IllegalSchedule(f"tiles of {self.tile_y} rows do not go by {self.rows} rows")


@dataclass(frozen=True, slots=True)
class ReductionSchedule:
    """How a reduction (sums or maxima) is tiled.

    If vectors run along results, a tile of work is `grain` vectors of results; if they run along a
    reduced axis, it is `grain` results. `ways` partial sums are made in turns, to hide latency.
    """

    grain: int
    ways: int


@dataclass(frozen=True, slots=True)
class MomentsSchedule:
    """How the statistics of a normalisation are tiled: pixels in `parts` parts for those of groups,
    `grain` rows a tile for those of rows."""

    parts: int
    grain: int


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """How attention is tiled.

    A tile of work is `groups` groups of `vectors` vectors of queries of one head. Keys and values
    are staged `keys` at a time for all groups; micro-kernels keep up to `rows` keys, or channels of
    the result, times one group in registers. `dtype` is that of the factors of both products.
    """

    vectors: int
    keys: int
    rows: int
    groups: int = 1
    dtype: str = "f32"

    def check(self, limits: Limits) -> None:
        """Raise IllegalSchedule if a CPU of `limits` cannot run it."""
        needed = limits.needed(self.rows, self.vectors)
        if needed > limits.vectors:
            raise IllegalSchedule(f"{self.rows} x {self.vectors} accumulators need {needed} vector "
                                  f"registers, there are {limits.vectors}")
        if self.dtype == "bf16" and not limits.pairs:
            raise IllegalSchedule("bf16 products need a CPU that multiplies pairs of them")


Schedule = (ContractionSchedule | DepthwiseSchedule | ReductionSchedule | MapSchedule
            | MomentsSchedule | AttentionSchedule)
