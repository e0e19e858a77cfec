"""About how long a contraction takes on a GPU under a schedule.

`GroupWork.clocks` is what bounds a product on a compute unit: its multiply-adds, what invocations
issue besides, shared memory, caches, device memory, and the latency of the chunks of one
work-group, which others hide as far as registers and shared memory let them be there. Rates are
those of the device (`GroupLimits.rates`); the constants here are guesses, and a tuner measures the
best few.
"""

from __future__ import annotations

import math

from smalti.dataclass import dataclass
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, STORED_BYTES, Expr, Kernel, Load, functions, loads
from smalti.schedule.compute_units import known_unit, needs_of
from smalti.schedule.group import (
    BYTES,
    WIDE_BYTES,
    WORD_OF_BYTES,
    GroupContraction,
    GroupLimits,
)
from smalti.schedule.merge import access, contraction_extents, integer_sums, weights_batched
from smalti.schedule.residency import (
    LANES,
    RIGHT_EARLY,
    CompilerNeeds,
    ComputeUnit,
    KeptWords,
    subgroups_of,
)
from smalti.schedule.unit import UnitRates

SIMPLE = {"add", "sub", "mul", "div", "max", "min", "neg", "abs", "relu"}
FULL = 128
"""Invocations that a unit has to have in order to be busy with an attention."""
ISSUED_FOR_A_VECTOR, ISSUED_FOR_A_FUNCTION = 12, 14
"""Instructions of an invocation to stage a vector of 4, and those of a function of the prologue."""
ISSUED_FOR_WORDS, ISSUED_FOR_BORDERS = {True: 2, False: 3}, {True: 3, False: 10}
"""Those to stage 8 halves for the matrix unit, and more where a window has borders: where chunks
are loaded ahead, or not, and each asks again where it is."""
ISSUED_FOR_SOME, ISSUED_FOR_HALVES = 25, 1.5
"""Those where only some invocations bring 8 halves (with a branch in it, Mesa takes nothing out of
a loop), and to widen and narrow each that is computed with. Read off the listings of AMD's
compiler."""
ISSUED_FOR_A_BYTE = 2.5
"""Those to stage a byte for the matrix unit, which is read as a word of 32 bits: a part of a load
of four, and a mask, a shift and an or with its neighbours, some of which units do at once."""
ISSUED_FOR_A_CODE = 5
"""Those to widen a quantised weight: a shift and a mask, which some units do as they convert, the
conversion, the sum with the least code, the product with the scale."""
ISSUED_TO_FIND, ISSUED_ELSEWHERE, ISSUED_FOR_ONE = 8, 6, 2.5
"""Those to divide by an extent where an invocation has another row and another column in each turn;
for each vector beside the first in a loop, whose addresses are then its own; and for an element
that is loaded alone, and converted. Read off the same listings."""
UNIFORM, PLACES, PLACES_OF_A_VECTOR, PLACES_FOR_BORDERS, PLACES_ELSEWHERE, HEADS = (
    6.0, 1.0, 3.0, 3.0, 5.0, 2.0)
"""Words that an invocation keeps: what is the same for a subgroup; where it is, where it reads and
writes each vector, and more of these where a window has borders, and for each vector beside the
first that has another row and another column; scales of quantised weights."""
CHUNK_LATENCY, CHUNK_LATENCY_AHEAD, BARRIER, STALL = 900, 300, 30, 250
"""Clocks of a chunk of a work-group that is alone, beside its work, and of a barrier: those that
everybody pays, and those that another work-group can fill. In the matrix unit chunks that are not
loaded ahead count as if they were: that is on Intel, where eight subgroups of an engine take turns.
"""
START, LAUNCH = 1500, 5000
"""Clocks until the first chunk and for the result of a work-group, and for a step more."""
ISSUED_FOR_A_DOT = 12
"""Those of a dot product of two words of four bytes without an instruction for it: four times two
bytes to be taken out, multiplied and added."""
SPILL, SURE = 8, 0.92
"""Registers too many that make a loop twice as long, and the share of an invocation's registers
that is thought to be enough: guesses."""
CACHED = 0.8
"""What is read again is found in a cache if it takes at most this share of it, as of element-wise
operations (machine/rows.py)."""
OVERLAP = 4
"""Exponent with which times that overlap are added: 1 not at all."""
WORD, WIDE = 4, 8
"""Bytes of a register, and halves that are staged at once for the matrix unit."""
VALUE_BYTES = {**STORED_BYTES, "i8": 4, "u8": 4}
"""Bytes of an element between kernels, where those of integers are words."""
LINE_READ = 1 / 4
"""How long it takes to read a matrix as vectors of 16 bytes, of the time for its words."""


def issued_for(value: Expr) -> float:
    """Instructions for a point of an expression, beside the first load.

    >>> from smalti.kernel.form import Call, axis
    >>> issued_for(Call("exp", (Load("x", (axis("i"),)),)))
    14
    """
    if isinstance(value, Load):
        return 0.0
    names = list(functions(value))
    simple = sum(name in SIMPLE for name in names)
    return (len(list(loads(value))) - 1 + simple + ISSUED_FOR_A_FUNCTION * (len(names) - simple))


def wide(s: GroupContraction) -> int:
    """Elements of a weight that are staged at once for the matrix unit: 8 halves, or 16 bytes."""
    return WIDE_BYTES if s.dtype == BYTES else WIDE


@dataclass(frozen=True)
class GroupWork:
    """What a contraction takes on a device, whatever its schedule.

    An element of the patch reads `given` bytes, of which `common` are those of all rows of an image
    of `image` rows, and a result takes `stored`. `prologue` are
    instructions for an element of the patch, which has `points` of them, reads so many
    `loads` and has `borders` or none; for the matrix unit it is brought `lanes` elements at a time,
    which are `apart` in memory or not. `registers` is what an invocation may have, `unit` what
    is known of the units of the device, and `needs` what its compiler takes for what is kept.
    Where an invocation is known to hold a column of right factors (`by_columns`), it reads them as
    vectors. `dots` are dot products of words of four bytes in a clock.
    """

    batch: int
    rows: int
    columns: int
    parts: int
    channels: int
    depth: int
    points: int
    given: int
    common: int
    image: int
    stored: int
    prologue: float
    loads: int
    borders: bool
    lanes: int
    apart: bool
    units: int
    registers: int
    rates: UnitRates
    unit: ComputeUnit | None
    needs: CompilerNeeds
    by_columns: bool
    dots: float

    @classmethod
    def of(cls, kernel: Kernel, limits: GroupLimits) -> GroupWork:
        """The work of a kernel."""
        e, patch = contraction_extents(kernel), kernel.stages[0]
        batch, rows = (e.b * e.y, e.x) if weights_batched(kernel) else (1, e.b * e.y * e.x)
        read = {load: access(kernel, load) for load in loads(patch.value)}
        sizes = {load: VALUE_BYTES[kernel.buffer(load.buffer).dtype] for load in read}
        common = sum(sizes[load] for load, a in read.items()
                     if not (a.stride("y") or a.stride("x") or a.divided or a.indirect))
        return cls(batch, rows, e.o, e.parts, e.c, e.r * e.s * e.c,
                   math.prod(n for _, n in patch.axes), sum(sizes.values()), common,
                   e.x if weights_batched(kernel) else e.y * e.x,
                   VALUE_BYTES[kernel.buffer("out").dtype], issued_for(patch.value), len(read),
                   bool(patch.guards), math.gcd(e.c, WIDE_BYTES if integer_sums(kernel) else WIDE),
                   any(a.stride("c") != 1 for a in read.values()),
                   limits.unit_count, limits.registers, limits.rates,
                   known_unit(limits.architecture), needs_of(limits),
                   limits.right_lines == "columns",
                   limits.rates.dots if limits.dot_i8 and limits.fast_dot_i8
                   else limits.rates.factors / ISSUED_FOR_A_DOT)

    def grid(self, s: GroupContraction) -> tuple[int, int, int]:
        """The work-groups of a schedule: along columns, rows, and the batch and parts of the depth.
        """
        return -(-self.columns // s.tile_n), -(-self.rows // s.tile_m), self.batch * s.split

    def groups(self, s: GroupContraction) -> int:
        """How many work-groups a schedule makes."""
        return math.prod(self.grid(s))

    def throughput(self, s: GroupContraction) -> float:
        """Clocks for all of it of one unit that has enough to do at any time."""
        return self.groups(s) * -(-self.depth // s.tile_k) * self._chunk(s)[0]

    def rank(self, s: GroupContraction) -> tuple[float, float]:
        """Smaller for a schedule that is better: of those that take equally long, as they wait
        equally long for a cache or memory, the one whose unit is busy for the shortest time."""
        return self.clocks(s), self._busy(s) * self.groups(s) * -(-self.depth // s.tile_k)

    def clocks(self, s: GroupContraction) -> float:
        """About how many clocks of a compute unit this takes under a schedule."""
        groups, steps = self.groups(s), -(-self.depth // s.tile_k)
        chunks = -(-steps // s.split)
        step, latency = self._chunk(s)
        alone = START + chunks * max(latency, step)
        each = -(-groups // self.units)
        stall = STALL * (3 - s.buffers)
        shown = max(step, (step + stall) / min(each, self.resident(s)))
        busy = each * (START / 4 + chunks * shown)
        terms = alone, busy, self.traffic(s)
        total = sum(term ** OVERLAP for term in terms) ** (1 / OVERLAP)
        memory = self.rates.memory
        if s.split > 1:
            sums = self.batch * self.rows * self.columns * self.parts
            total += LAUNCH + 8 * s.split * sums / (memory * self.units)
        if s.prepared:
            work = self.points * (self.prologue + ISSUED_FOR_A_VECTOR / 4) / self.rates.factors
            moved = self.points * 2 * STORED_BYTES[s.dtype] / memory
            total += LAUNCH + max(work, moved) / self.units
        return total

    def traffic(self, s: GroupContraction) -> float:
        """Clocks for the bytes that the last cache brings to all units, or memory to it.

        Work-groups run in the order of their columns, then rows. Those in flight share what they
        read; later rows of tiles read the weight again, from the nearest cache that holds it. A
        work-group takes no more bytes a clock than its unit does from a cache.
        """
        across, tiles, _ = self.grid(s)
        weight = self.depth * self.parts * self.columns * ELEMENT_BYTES[s.weights]
        passes = -(-tiles // max(1, self.units * self.resident(s) // across))
        once = self.stored * self.batch * self.rows * (self.channels + self.columns)

        def moved(held: int) -> float:
            """Bytes that pass a cache that holds so many: a part of the depth is swept at a time.
            """
            again = 1 if weight / s.split <= CACHED * held else passes
            return once + self.batch * weight * again

        rates, groups = self.rates, self.groups(s)
        return max(moved(held) / min(rate * self.units, rates.cache * groups)
                   for held, rate in ((rates.cache_bytes, rates.last),
                                      (rates.last_bytes, rates.memory)))

    def resident(self, s: GroupContraction) -> int:
        """Work-groups that a unit holds at a time, by registers and shared memory. Those that a
        compiler gives away for loads ahead count: what is ahead waits for nobody, either."""
        unit, shared = self.unit, s.shared_bytes(self.parts)
        if unit is not None:
            size = s.subgroup or LANES
            subgroups = unit.resident(round(self.held(s)), size, s.invocations, shared)
            return max(1, subgroups * unit.sharers // subgroups_of(s.invocations, size))
        held = min(self.held(s), self.registers)
        registers = self.rates.registers / (held * s.invocations)
        return max(1, int(min(registers, self.rates.shared_bytes / shared)))

    def held(self, s: GroupContraction) -> float:
        """Registers that the compiler takes for an invocation, where most is alive."""
        return max(map(self.needs.words, self.kept(s)))

    def kept(self, s: GroupContraction) -> tuple[KeptWords, ...]:
        """What an invocation keeps alive while a chunk is multiplied, and while one is staged."""
        columns = s.block_n * self.parts
        word = STORED_BYTES[s.dtype] / WORD
        if not s.matrix:
            staged = s.tile_k * (s.tile_m * (word if self._plain(s) else self.loads)
                                 + word * s.tile_n * self.parts) / s.invocations
            sums = s.block_m * columns + 4 * (s.block_m + columns)  # and vectors of both factors
            places = PLACES + PLACES_OF_A_VECTOR * staged / 4
            return (KeptWords(values=sums + s.ahead * staged, places=places, uniform=UNIFORM),)
        rows, across, depth = s.shape
        own = s.block_m * columns / s.subgroup
        factors = word * depth * (s.block_m + across) / s.subgroup
        early = word * ((s.tile_k - depth) * s.block_m + RIGHT_EARLY * (
            s.tile_k * columns - depth * across)) / s.subgroup
        right = 0.0
        if s.direct and s.ahead:  # those of the whole chunk, also while its patch is staged
            right = word * s.tile_k * columns / s.subgroup
            factors = right + word * depth * s.block_m / s.subgroup
            early = word * (s.tile_k - depth) * s.block_m / s.subgroup
        waiting, places = self._waiting(s), self._places(s)
        if s.tile_k >= self.depth:  # no sums while it is staged, and nothing for a turn to come
            return (KeptWords(own, factors, uniform=UNIFORM),
                    KeptWords(0.0, right, waiting, places, UNIFORM))
        ahead = s.ahead and not s.direct
        return (KeptWords(own, factors, ahead * waiting, places, UNIFORM, early=early),
                KeptWords(own, right, waiting, places, UNIFORM))

    def _plain(self, s: GroupContraction) -> bool:
        """Whether nothing is done to the patch as it is staged."""
        return s.prepared or not self.prologue

    def _waiting(self, s: GroupContraction) -> float:
        """Words that were loaded for a chunk and are not staged yet."""
        patch, weight = self._spots(s)
        if s.prepared:
            held = self.lanes * STORED_BYTES[s.dtype] / WORD * patch
        else:
            shared = self.image % s.tile_m == 0 and not self._uneven(s)[0]
            each = self.given - self.common if shared else self.given
            held = self.lanes * (each * patch + (self.given - each)) / WORD
        if s.weights in FORMATS:
            return held + (WIDE / FORMATS[s.weights].codes + HEADS) * weight
        return held + wide(s) * ELEMENT_BYTES[s.weights] / WORD * weight

    def _places(self, s: GroupContraction) -> float:
        """Numbers that say where an invocation reads and writes."""
        patch, weight = self._spots(s)
        found = PLACES + PLACES_OF_A_VECTOR * (patch + weight)
        found += PLACES_ELSEWHERE * self._elsewhere(s)
        if self.borders and not s.prepared:
            found += PLACES_FOR_BORDERS * patch
        return found

    def partial(self, s: GroupContraction) -> int:
        """Of how many factors only some invocations bring a vector, as there are fewer pads than
        others to put something into."""
        return sum(idle > lines for idle, lines in
                   zip(self._idle(s), (s.tile_m, s.tile_n * self.parts)))

    def even(self, s: GroupContraction) -> bool:
        """Whether all invocations bring as many vectors of the patch, and of the weight."""
        return not any(self._idle(s))

    def _idle(self, s: GroupContraction) -> tuple[int, int]:
        """How many invocations have nothing of the patch to bring in the last turn; and of the
        weight."""
        patch, weight = self._spots(s)
        return (patch * s.invocations - s.tile_m * (s.tile_k // self.lanes),
                weight and weight * s.invocations - s.tile_n * self.parts * (s.tile_k // wide(s)))

    def _spots(self, s: GroupContraction) -> tuple[int, int]:
        """Vectors that an invocation brings of the patch, and of 16 bytes of the weight."""
        size, columns = s.invocations, s.tile_n * self.parts
        return (-(-s.tile_m * (s.tile_k // self.lanes) // size),
                0 if s.direct else -(-columns * (s.tile_k // wide(s)) // size))

    def _uneven(self, s: GroupContraction) -> tuple[bool, bool]:
        """Whether an invocation has another row of the patch and another place along the depth in
        each turn; and the same of the weight. Neighbours go along the depth where it lies so."""
        size, columns = s.invocations, s.tile_n * self.parts
        line = s.tile_m if self.apart else s.tile_k // self.lanes
        return size % line != 0 != line % size, size % columns != 0 != columns % size

    def _elsewhere(self, s: GroupContraction) -> int:
        """Vectors of an invocation beside the first of a factor that have another row and another
        column than that."""
        return sum(n - 1 for n, uneven in zip(self._spots(s), self._uneven(s)) if uneven)

    def _chunk(self, s: GroupContraction) -> tuple[float, float]:
        """Clocks of a chunk of a work-group while others are at work too, and when it is alone."""
        rates, columns = self.rates, s.tile_n * self.parts
        products, size = s.tile_m * columns * s.tile_k, STORED_BYTES[s.dtype]
        factors = 1 / s.block_m + 1 / (s.block_n * self.parts)
        read = s.tile_m * (VALUE_BYTES[s.dtype] if s.dtype == BYTES else size)
        cached = s.tile_k * (read + columns * ELEMENT_BYTES[s.weights]) / rates.cache
        if s.matrix:
            work = self._busy(s, cached)
        else:
            shared = products * factors * size / rates.shared
            if s.direct:
                shared = s.tile_m * s.tile_k * columns / 4 * size / rates.shared
            # f16 is widened by an instruction for each
            more = 8 / s.block_m / s.block_n + (factors if s.dtype == "f16" else 0)
            multiplied = products / rates.factors
            if s.dtype == BYTES:
                multiplied, more = products / WORD_OF_BYTES / self.dots, more / WORD_OF_BYTES
            staged = s.tile_k * (s.tile_m + columns) * (ISSUED_FOR_A_VECTOR / 4)
            if s.weights in FORMATS:
                staged += s.tile_k * columns * ISSUED_FOR_A_CODE
            if not s.prepared:
                staged += s.tile_m * s.tile_k * self.prologue
            work = max(multiplied + products * more / rates.factors, shared, cached)
            work += staged / rates.factors
        work += BARRIER * (3 - s.buffers)
        work *= 1 + max(0.0, self.held(s) - SURE * self.registers) / SPILL
        few = max(1.0, rates.factors / s.invocations)  # lanes that have nothing to do
        hidden = (s.ahead and not (s.matrix and s.direct)) or s.matrix and s.shape[0] == 8
        latency = CHUNK_LATENCY_AHEAD if hidden else CHUNK_LATENCY
        return work, latency + work * few

    def _busy(self, s: GroupContraction, cached: float = 0.0) -> float:
        """Clocks of a chunk in the part of a unit that is busy longest, or waits for a cache; 0
        without the matrix unit."""
        if not s.matrix:
            return cached
        arithmetic, staged, shared = self._matrix_clocks(s)
        if self.rates.exclusive:
            return max(arithmetic + staged, shared, cached)
        return max(arithmetic, staged, shared, cached) + staged / 4

    def matrix_unit_waits(self, s: GroupContraction) -> bool:
        """Whether products in the matrix unit do not bound a chunk: other instructions take turns
        with them, or they or shared memory take longer."""
        arithmetic, staged, shared = self._matrix_clocks(s)
        return self.rates.exclusive or max(staged, shared) > arithmetic

    def _matrix_clocks(self, s: GroupContraction) -> tuple[float, float, float]:
        """Clocks of a chunk in the matrix unit, of the instructions beside, and of shared memory:
        reading, and bringing; a cache in front of what is not brought is as wide."""
        rates, columns = self.rates, s.tile_n * self.parts
        products, size = s.tile_m * columns * s.tile_k, STORED_BYTES[s.dtype]
        factors = 1 / s.block_m + 1 / (s.block_n * self.parts)
        issued = rates.made * self._issued(s) + rates.read * self._read(s)
        brought = s.tile_m + (0 if s.direct else columns)
        shared = products * factors * size * rates.copies + s.tile_k * brought * size
        multiplied = rates.matrix_bytes if s.dtype == BYTES else rates.matrix
        return products / multiplied, issued * s.invocations / rates.factors, (
            shared / rates.shared)

    def _read(self, s: GroupContraction) -> float:
        """Matrices that a subgroup reads for a chunk, as many as take as long to read as words: of
        those that are read where the weight is, drivers merge the words."""
        rows, columns, depth = s.shape
        whole = s.dtype == BYTES  # which are put into their places one by one: drivers load those
        lines = s.direct or self.by_columns and s.subgroup == columns and not whole
        right = LINE_READ if lines else 1.0
        return (s.block_m / rows + right * s.block_n * self.parts / columns) * s.tile_k / depth

    def _issued(self, s: GroupContraction) -> float:
        """Instructions of an invocation to stage a chunk for the matrix unit."""
        patch, weight = self._spots(s)
        issued: float = ISSUED_FOR_WORDS[s.ahead] * (patch + weight)
        issued += ISSUED_FOR_SOME * self.partial(s)
        if s.tile_k >= self.depth:  # once, and nothing of it in front of a loop
            issued += ISSUED_TO_FIND * sum(
                n for n, uneven in zip(self._spots(s), self._uneven(s)) if uneven)
        else:
            issued += ISSUED_ELSEWHERE * self._elsewhere(s)
        if s.weights in FORMATS:
            issued += WIDE * ISSUED_FOR_A_CODE * weight
        if not s.prepared:
            again = s.ahead and s.tile_k < self.depth
            issued += ISSUED_FOR_BORDERS[again] * self.borders * patch
            if self.apart:
                issued += ISSUED_FOR_ONE * self.lanes * patch
            if s.dtype == BYTES:  # to subtract a zero point is no instruction
                issued += self.lanes * (max(0, self.prologue - 1) + ISSUED_FOR_A_BYTE) * patch
            elif self.prologue:
                issued += self.lanes * (self.prologue + ISSUED_FOR_HALVES) * patch
        return issued
