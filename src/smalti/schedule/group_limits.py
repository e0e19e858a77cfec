"""The limits of work-groups, and what schedules of them have to be, whatever they are for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from smalti.errors import IllegalSchedule
from smalti.schedule.unit import UnitRates

LANES = (1, 2, 4)
"""Elements that an invocation reads or writes at once."""


@dataclass(frozen=True, slots=True, order=True)
class MatrixShape:
    """A product that one instruction of a matrix unit computes, by all invocations of a subgroup.

    `rows`×`depth` times `depth`×`columns` factors of dtype `factors`, added to sums of `sums`.
    """

    rows: int
    columns: int
    depth: int
    factors: str
    sums: str

    def __str__(self) -> str:
        return f"{self.text} {self.factors} to {self.sums}"

    @property
    def text(self) -> str:
        """Its sizes, as schedules name them.

        >>> MatrixShape(8, 16, 16, "f16", "f32").text
        '8x16x16'
        """
        return f"{self.rows}x{self.columns}x{self.depth}"


SEGMENT_ALIGNMENT = 256
"""Bytes, of which segments are whole multiples: the most that devices ask of where bindings begin.
"""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a device lets a work-group do and have.

    The defaults are what every device of Vulkan 1.2 and of WebGPU has, so that a schedule for them
    runs anywhere.

    >>> GroupLimits().invocations
    128
    """

    shared_bytes: int = 16 << 10
    """Bytes of all shared arrays of a work-group."""
    invocations: int = 128
    """Invocations of a work-group at most, in all and along its first axis."""
    subgroup_min: int = 1
    subgroup_max: int = 128
    """Programs run in subgroups of any power of two in between, unless they ask for one."""
    subgroup_choice: bool = False
    """True if a program may ask for one size of subgroups, and that they be full."""
    subgroup_operations: bool = False
    """True if a subgroup can vote, shuffle, and add without shared memory."""
    grid: tuple[int, int, int] = (65535, 65535, 65535)
    """Work-groups of a launch at most, along x, y and z."""
    buffer_bytes: int = 128 << 20
    """Bytes of one buffer, at most."""
    buffer_range: int = 128 << 20
    """Bytes that one binding can see of its buffer."""
    offset_alignment: int = 256
    """Where in a buffer a binding may begin is a multiple of this many bytes."""
    bindings: int = 4
    """Buffers that one program may use."""
    push_bytes: int = 128
    """Bytes of push constants: a word for each binding, then what else a program wants."""
    f16: bool = False
    """True if f16 is computed with; without it, stored only."""
    bf16: bool = False
    """True if bf16 is a type of its own, converted by the device."""
    storage16: bool = False
    """True if invocations load and store 16 bits; without it, words of 32."""
    storage8: bool = False
    """True if invocations load and store 8 bits; without it, words of 32."""
    keeps_nan: bool = False
    """True if programs may ask that NaN, infinities and signs of zero, of f32 and of f16 where it
    is computed with, stay what they are."""
    exact_f16: bool = False
    """True if programs may ask that arithmetic of f16 rounds to the nearest, and keeps numbers that
    are too small for full precision."""
    int16: bool = False
    """True if integers of 16 bits may lie in shared memory; without it, words of 32."""
    dot_i8: bool = False
    """True if an instruction multiplies four bytes of a word each with those of another and adds
    up; without it, ordinary arithmetic does."""
    fast_dot_i8: bool = False
    """True if the driver says that this instruction is faster than ordinary arithmetic. Programs do
    not rely on it."""
    matrices: tuple[MatrixShape, ...] = ()
    """What the matrix unit computes; empty where there is none that programs reach."""
    right_lines: str = ""
    """Which lines of a right factor of the matrix unit are held by one invocation each, in their
    order: "columns", "rows", or "" where nobody knows. Where it is known, a line is read as
    vectors."""
    sum_lines: str = ""
    """Which lines of a sum of the matrix unit are held by one invocation each; as of `right_lines`.
    """
    left_words: bool = False
    """True if invocation n of a subgroup holds the halves 2 n and 2 n + 1 of each row of a left
    factor, of twice as many columns as the subgroup has invocations."""
    registers: int = 256
    """Registers of 32 bits of an invocation, in the subgroups that the matrix unit wants."""
    units: int = 0
    """Compute units (streaming multiprocessors, execution units); 0 where the driver is silent."""
    unified: bool = False
    """True if the device computes in main memory."""
    architecture: str = ""
    """What its units are, by a name of `compute_units.py`; "" where that is not known."""
    rates: UnitRates = UnitRates()
    """What one of its units does in a clock. Programs do not rely on it."""

    @property
    def segment_bytes(self) -> int:
        """What lies between kernels is in segments, buffers of so many bytes; a value is in one.

        >>> GroupLimits(buffer_bytes=(2 << 30) - 1).segment_bytes == (2 << 30) - SEGMENT_ALIGNMENT
        True
        """
        return self.buffer_bytes // SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT

    @property
    def few_registers(self) -> bool:
        """True if an invocation has fewer registers than on most devices: those of a subgroup are
        one file then, and each invocation of a large subgroup has less of it.

        >>> GroupLimits(registers=128).few_registers, GroupLimits().few_registers
        (True, False)
        """
        return self.registers < GroupLimits().registers

    @property
    def unit_count(self) -> int:
        """Compute units: those that the driver tells, else those of `rates`."""
        return self.units or self.rates.units

    def covers(self, needed: GroupLimits) -> bool:
        """Whether a device of these limits runs what was made for `needed`: it has no less of
        anything that a program may rely on.

        >>> GroupLimits(invocations=256, f16=True).covers(GroupLimits())
        True
        >>> GroupLimits().covers(GroupLimits(f16=True))
        False
        """
        enough = all(getattr(self, name) >= getattr(needed, name) for name in (
            "shared_bytes", "invocations", "buffer_bytes", "buffer_range", "bindings",
            "push_bytes", "subgroup_choice", "subgroup_operations", "f16", "bf16", "storage16",
            "storage8", "keeps_nan", "exact_f16", "int16", "dot_i8"))
        sizes = needed.subgroup_min <= self.subgroup_min <= self.subgroup_max <= needed.subgroup_max
        return (enough and (sizes or not needed.subgroup_operations)
                and all(n >= m for n, m in zip(self.grid, needed.grid, strict=True))
                and needed.offset_alignment % self.offset_alignment == 0
                and set(needed.matrices) <= set(self.matrices)
                and needed.right_lines in ("", self.right_lines)
                and needed.sum_lines in ("", self.sum_lines)
                and needed.left_words <= self.left_words)


@lru_cache(maxsize=64)
def sizes_of(matrix: str) -> tuple[int, int, int]:
    """Rows, columns and depth of a matrix that a schedule names. Raises IllegalSchedule for another
    text."""
    try:
        rows, columns, depth = map(int, matrix.split("x"))
    except ValueError:
        raise IllegalSchedule(f"{matrix!r} are no sizes of a matrix, as 16x16x16") from None
    return rows, columns, depth


def check_group(size: int, lanes: int, limits: GroupLimits) -> None:
    """Raise IllegalSchedule unless work-groups of `size` can be, and `lanes` be read at once."""
    if not 1 <= size <= limits.invocations:
        raise IllegalSchedule(f"a work-group of {size} invocations, of {limits.invocations} at "
                              f"most")
    if lanes not in LANES:
        raise IllegalSchedule(f"{lanes} lanes, of {', '.join(map(str, LANES))}")


def check_share(size: int, share: int, subgroup: int, limits: GroupLimits) -> None:
    """Raise IllegalSchedule unless `share` invocations of `size` can combine what they hold, in
    subgroups of `subgroup`, or of any size where that is 0."""
    if share < 1 or share & (share - 1) or size % share:
        raise IllegalSchedule(f"{share} of {size} invocations share a result")
    if not subgroup:
        return
    known = limits.subgroup_choice or limits.subgroup_min == limits.subgroup_max
    if not (limits.subgroup_operations and known and size % subgroup == 0
            and limits.subgroup_min <= subgroup <= limits.subgroup_max):
        raise IllegalSchedule(f"the device has no full subgroups of {subgroup} in groups of {size}")
