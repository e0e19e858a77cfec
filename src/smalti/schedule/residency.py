"""Predicts how many subgroups a compute unit of a GPU holds at a time (occupancy), and whether
registers suffice or are spilled.

    unit.resident(96, 32, 256, 18432)        subgroups, by registers, groups and shared memory
    unit.held(kept, 32)                      registers that a compiler makes of what is kept alive
    unit.capacity(32, 256)                   registers that an invocation may have before it spills

A `ComputeUnit` is data of an architecture (`compute_units.py`): sizes, and what its compiler makes
of words that are kept alive (`CompilerNeeds`), fitted to what compilers say. Nothing is timed.
"""

from __future__ import annotations

from smalti.dataclass import dataclass

LANES = 32
"""Registers are counted in units of 32 lanes; a register of a subgroup of 64 counts as two."""
WORD = 4
"""Bytes of a register of a lane."""
AHEAD_SHARE = 12 / 512
"""Registers that AMD's scheduler adds to what a program needs when it works out how many subgroups
to leave, as a share of the file: Mesa, src/amd/compiler/aco_scheduler.cpp (schedule_program)."""
AHEAD_LEAST, AHEAD_SUBGROUPS = 24, 8
"""Registers that it takes for needed at least, and subgroups that it leaves at least."""
RIGHT_EARLY = 1 / 6
"""How much of right factors is loaded early, as much as of left ones being 1: what Intel's compiler
does, which tells the most registers for factors."""


@dataclass(frozen=True, slots=True)
class KeptWords:
    """Words (values of 4 bytes) that an invocation keeps alive at a point of a program, by kind.

    `sums` and `factors` are its share of matrices, `values` are numbers that it computes with,
    `places` are integers that differ between invocations, and `uniform` those of a whole subgroup.
    `unrolled` is what all turns of a short loop load, which drivers make straight code of. `early`
    are factors that the same straight code loads later, so that compilers may load them at once:
    left ones, which all columns want, and the share `RIGHT_EARLY` of right ones. `held` are factors
    that were loaded before a loop, as queries are, and stay for all of its turns.
    """

    sums: float = 0.0
    factors: float = 0.0
    values: float = 0.0
    places: float = 0.0
    uniform: float = 0.0
    unrolled: float = 0.0
    early: float = 0.0
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class CompilerNeeds:
    """How many registers a vendor's compiler uses for each word of `KeptWords`, and `base` for the
    rest.

    Less than one means that it keeps them elsewhere or for a shorter time, more that it keeps
    copies or loads ahead. They are fitted to what the compiler says of Smalti's programs. It gives
    registers `step` at a time. Its scheduler does with the share `saves` fewer where more subgroups
    run then. Factors that are `held` for a loop have no loads ahead of them: a compiler that needs
    another number for these than for other `factors` has it here, 0 says the same.
    """

    sums: float
    factors: float
    values: float
    places: float
    uniform: float
    unrolled: float
    early: float
    base: float
    step: int = 1
    saves: float = 0.0
    held: float = 0.0

    def words(self, kept: KeptWords) -> float:
        """Registers for the words that are alive at one point, before they are given in steps."""
        return (self.base + self.sums * kept.sums + self.factors * kept.factors
                + self.values * kept.values + self.places * kept.places
                + self.uniform * kept.uniform + self.unrolled * kept.unrolled
                + self.early * kept.early + (self.held or self.factors) * kept.held)

    def registers(self, kept: KeptWords) -> int:
        """Registers for the words that are alive at one point."""
        return max(1, -(-round(self.words(kept)) // self.step) * self.step)


@dataclass(frozen=True, slots=True)
class ComputeUnit:
    """What runs subgroups: a SIMD unit (AMD), a multiprocessor (NVIDIA), a vector engine (Intel).

    `file_bytes` are its registers. Where each subgroup has an equal part of them whatever it needs,
    that is `fixed_bytes`, else 0, and they are given out `granule` registers of `LANES` lanes at a
    time, `registers_max` to an invocation at most. `subgroups` run at a time at most, `step` more
    at a time. `sharers` units have `shared_bytes` together, of which a work-group takes a multiple
    of `shared_granule`, or the next of `shared_sizes`, and `shared_reserved` besides; `groups` of
    more than one subgroup they run at most (0: nobody says). Where a program multiplies matrices,
    a compiler that `gives` subgroups away has more registers for loads ahead of the products.
    `source` is where this is from.

    >>> rdna3 = ComputeUnit("rdna3", 192 << 10, registers_max=256, granule=24, subgroups=16,
    ...                     sharers=2, shared_bytes=64 << 10, shared_granule=1024, groups=16)
    >>> rdna3.resident(192, 32, 256, 0), rdna3.resident(193, 32, 256, 0)
    (8, 4)
    >>> rdna3.resident(96, 32, 256, 33 << 10)  # one group, of eight subgroups, on two units
    4
    """

    architecture: str
    file_bytes: int
    registers_max: int = 0
    fixed_bytes: int = 0
    granule: int = 1
    subgroups: int = 16
    step: int = 1
    sharers: int = 1
    shared_bytes: int = 64 << 10
    shared_granule: int = 1
    shared_sizes: tuple[int, ...] = ()
    shared_reserved: int = 0
    groups: int = 0
    double: bool = False
    """True if a subgroup of 64 counts as two of 32, as drivers of AMD tell it."""
    gives: bool = False
    needs: CompilerNeeds = CompilerNeeds(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    source: str = ""

    def held(self, kept: KeptWords) -> int:
        """Registers that the compiler takes for what is kept alive.

        >>> saving = CompilerNeeds(1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 8.0, step=8, saves=0.06)
        >>> unit = ComputeUnit("ada", 256 << 10, registers_max=253, granule=8, step=4, needs=saving)
        >>> unit.held(KeptWords(sums=124)), unit.held(KeptWords(sums=132))  # 16 subgroups, or 12
        (128, 144)
        """
        wanted = self.needs.registers(kept)
        if not self.needs.saves or self.fixed_bytes:
            return wanted
        words = self.file_bytes // (WORD * LANES)
        subgroups = words // wanted // self.step * self.step + self.step
        fewer = words // subgroups // self.granule * self.granule
        enough = self.needs.words(kept) <= fewer * (1 + self.needs.saves)
        return fewer if enough and wanted > fewer else wanted

    def capacity(self, subgroup: int, invocations: int) -> int:
        """Registers that an invocation may have in work-groups of so many; above, it spills."""
        if self.fixed_bytes:
            return self.fixed_bytes // (WORD * subgroup)
        words = self.file_bytes // (WORD * subgroup)
        beside = -(-subgroups_of(invocations, subgroup) // self.sharers)
        granule = max(1, self.granule * LANES // subgroup)
        return min(self.registers_max, words // beside // granule * granule)

    def resident(self, registers: int, subgroup: int, invocations: int, shared: int,
                 matrices: bool = False) -> int:
        """Subgroups that a unit runs at a time, of work-groups of so many invocations and bytes of
        shared memory, whose invocations need so many registers, of a program that multiplies
        `matrices` or not. What is more than the capacity is spilled."""
        each = subgroups_of(invocations, subgroup)
        most = self.subgroups
        if not self.fixed_bytes:
            granule = max(1, self.granule * LANES // subgroup)
            asked = min(max(registers, 1), self.capacity(subgroup, invocations))
            words = self.file_bytes // (WORD * subgroup)
            most = min(most, words // (-(-asked // granule) * granule))
            if matrices and self.gives:
                most = self._left(most, words, registers, each, shared, granule)
        most = max(most // self.step * self.step, -(-each // self.sharers))
        groups = most * self.sharers // each
        if self.double:  # as its driver tells it, also where no whole group is left
            groups = -(-most * self.sharers // each)
        if shared:
            groups = min(groups, self.shared_bytes // self.taken(shared))
        if self.groups and each > 1:
            groups = min(groups, self.groups)
        found = -(-max(groups, 1) * each // self.sharers)
        return min(found, most) * (subgroup // LANES) if self.double else found

    def _left(self, most: int, words: int, registers: int, each: int, shared: int,
              granule: int) -> int:
        """How many of `most` subgroups a scheduler leaves that gives some away: whole work-groups
        of `each` of them, for which there is shared memory; and what more can run with the
        registers that those may have, in whole granules."""
        wanted = max(AHEAD_LEAST, registers) + int(AHEAD_SHARE * words)
        groups = max(AHEAD_SUBGROUPS, words // wanted) * self.sharers // each
        if shared:
            groups = min(groups, self.shared_bytes // self.taken(shared))
        if not groups:
            return most
        left = -(-groups * each // self.sharers)
        given = max(1, words // left // granule) * granule
        return min(most, max(left, words // given))

    def taken(self, shared: int) -> int:
        """Bytes of shared memory that a work-group takes which asks for `shared`.

        >>> ComputeUnit("xe2_hpg", 64 << 10, shared_sizes=(1024, 24576, 32768)).taken(25000)
        32768
        """
        for size in self.shared_sizes:
            if size >= shared:
                return size
        return -(-shared // self.shared_granule) * self.shared_granule + self.shared_reserved


def subgroups_of(invocations: int, subgroup: int) -> int:
    """Subgroups of a work-group."""
    return max(1, -(-invocations // subgroup))
