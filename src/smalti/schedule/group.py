"""Schedules for GPUs, frozen and printable, and the limits of work-groups that bound them."""

from __future__ import annotations

from dataclasses import dataclass

from smalti.errors import IllegalSchedule


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


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a device lets a work-group do and have.

    The defaults are what every device of Vulkan 1.2 and of WebGPU has, so that a schedule for them
    runs anywhere.

    >>> GroupLimits().invocations
    128
    """

    shared_bytes: int = 16 << 10
    """Of all shared arrays of a work-group."""
    invocations: int = 128
    """Of a work-group at most, and along its first axis."""
    subgroup_min: int = 1
    subgroup_max: int = 128
    """Programs run in subgroups of any power of two in between, unless they ask for one."""
    subgroup_choice: bool = False
    """Whether a program may ask for one size of subgroups, and that they be full."""
    subgroup_operations: bool = False
    """Whether a subgroup can vote, shuffle, and add without shared memory."""
    grid: tuple[int, int, int] = (65535, 65535, 65535)
    """Work-groups of a launch at most, along x, y and z."""
    buffer_bytes: int = 128 << 20
    """Of one buffer."""
    buffer_range: int = 128 << 20
    """Bytes that one binding can see of its buffer."""
    offset_alignment: int = 256
    """Where in a buffer a binding may begin is a multiple of this many bytes."""
    bindings: int = 4
    """Of one program."""
    push_bytes: int = 128
    """Of push constants: a word for each binding, then what else a program wants."""
    f16: bool = False
    """Whether f16 is computed with; without it, stored only."""
    bf16: bool = False
    """Whether bf16 is a type of its own, converted by the device."""
    storage16: bool = False
    """Whether invocations load and store 16 bits; without it, words of 32."""
    storage8: bool = False
    """Whether invocations load and store 8 bits; without it, words of 32."""
    keeps_nan: bool = False
    """Whether programs may ask that NaN, infinities and signs of zero, of f32 and of f16 where it
    is computed with, stay what they are."""
    matrices: tuple[MatrixShape, ...] = ()
    """What the matrix unit computes; empty where there is none that programs reach."""
    units: int = 0
    """Compute units (streaming multiprocessors, execution units); 0 where the driver is silent."""
    unified: bool = False
    """Whether the device computes in main memory."""


LANES = (1, 2, 4)
"""Elements that an invocation reads or writes at once."""


@dataclass(frozen=True, slots=True)
class GroupMap:
    """A map by work-groups of `size` invocations; each makes `lanes` results side by side."""

    size: int
    lanes: int = 1

    def check(self, limits: GroupLimits) -> None:
        """Raise IllegalSchedule when `limits` cannot run it."""
        check_group(self.size, self.lanes, limits)


@dataclass(frozen=True, slots=True)
class GroupReduction:
    """A reduction by work-groups of `size` invocations, `share` of which make a result together.

    Each takes `lanes` points at once where those lie side by side, else it makes `lanes` results.
    `parts` work-groups share a result, and a second step combines their totals. Of `subgroup`
    invocations, where that is not 0, results are combined without shared memory.
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
            raise IllegalSchedule(f"{self.parts} parts of a result")


@dataclass(frozen=True, slots=True)
class GroupMoments:
    """Statistics by work-groups of `size` invocations, `share` of which take part in each, reading
    `lanes` elements at once.

    Groups of channels in `parts` greater than 1 are made from statistics of each channel in so many
    parts of the pixels, of which `share` invocations take part in each. `subgroup` is as for
    `GroupReduction`.
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
            raise IllegalSchedule(f"pixels in {self.parts} parts")


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


GroupSchedule = GroupMap | GroupReduction | GroupMoments
