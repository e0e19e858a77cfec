"""What a GPU is not used for, though its driver offers it: records, and what they leave.

A removal comes from the table of known faults (`quirks.py`), or from a check on this machine. It
only takes away, so that what is left runs without it:

    removal = Removal("subgroup operations", why="…", instead="…", source="MoltenVK #2756")
    limits = reduced(adapter.limits, [removal])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from smalti.errors import DeviceError
from smalti.schedule.group import GroupLimits, MatrixShape

DEVICE = "device"
"""No program runs on it."""
AUTOMATIC = "automatic choice"
"""It is used where its name is given, and never chosen by `auto`."""
MATRICES = "matrices"
"""The matrix unit; of one shape only where that follows: "matrices 16x16x16 f16 to f32"."""
MATRIX_LINES = "matrices by lines"
"""What is said of who holds which line of a factor: matrices are loaded as the driver does it."""
SUBGROUP_OPERATIONS = "subgroup operations"
SUBGROUP_SIZES = "subgroup sizes"
"""What is said of how large subgroups are, and asking for one size, which matrices need."""
F16, BF16, STORAGE8, STORAGE16 = "f16", "bf16", "storage8", "storage16"
DOT_PRODUCTS = "dot products"
"""The instruction that multiplies four bytes of a word each with those of another."""
TRANSFER_QUEUE = "transfer queue"
"""The queue that only copies: copies go to that of programs."""
KEPT_NAN = "kept NaN"
"""The promises of a driver: NaN, infinities and signs of zero stay what they are, and arithmetic of
f16 is rounded as it is asked to be."""
TIMES = "times"
"""What the device's clock says."""
NAMES = (DEVICE, AUTOMATIC, MATRICES, MATRIX_LINES, SUBGROUP_OPERATIONS, SUBGROUP_SIZES, F16, BF16,
         STORAGE8, STORAGE16, DOT_PRODUCTS, TRANSFER_QUEUE, KEPT_NAN, TIMES)
GROUPS, SHARED, BINDINGS, GRIDS, BUFFERS = (
    "work-groups", "shared memory", "buffers of a program", "grids", "buffers")
"""Larger ones than the number that follows, of invocations, bytes, buffers, work-groups along an
axis, and bytes: "work-groups above 256"."""
SHAPE = re.compile(rf"{MATRICES} (\d+)x(\d+)x(\d+) (\w+) to (\w+)")
SIZE = re.compile(rf"({GROUPS}|{SHARED}|{BINDINGS}|{GRIDS}|{BUFFERS}) above (\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Removal:
    """Something that a device is not used for.

    `what` is one of `NAMES`, "matrices ROWSxCOLUMNSxDEPTH FACTORS to SUMS" or, as `above` gives it,
    "work-groups above NUMBER" and the like. `why` and `instead` are sentences for the user: what
    goes wrong, and what is done. `source` is where that is known from: a thread, or the check of
    this machine.

    >>> Removal("f32", "it is slow.", "nothing", "nobody")
    Traceback (most recent call last):
    ValueError: nothing of a device is called 'f32'
    """

    what: str
    why: str
    instead: str
    source: str

    def __post_init__(self) -> None:
        if self.what not in NAMES and not SHAPE.fullmatch(self.what) \
                and not SIZE.fullmatch(self.what):
            raise ValueError(f"nothing of a device is called {self.what!r}")

    def __str__(self) -> str:
        return f"{self.what}: {self.why} {self.instead} ({self.source})"

    def record(self) -> dict[str, str]:
        """Its fields, as they are kept in a file; `Removal(**record)` is the same again."""
        return asdict(self)


def unexplained(what: str) -> Removal:
    """A removal by its name, as a check tries it."""
    return Removal(what, "", "", "")


def matrix_shape(shape: MatrixShape) -> str:
    """What a removal of one shape is called.

    >>> matrix_shape(MatrixShape(16, 16, 16, "f16", "f32"))
    'matrices 16x16x16 f16 to f32'
    """
    return f"{MATRICES} {shape}"


def above(what: str, most: int) -> str:
    """What a removal of everything larger than `most` is called, of `GROUPS` and the others.

    >>> above(GROUPS, 256)
    'work-groups above 256'
    """
    return f"{what} above {most}"


def reduced(limits: GroupLimits, removals: Iterable[Removal]) -> GroupLimits:
    """What a device of these limits is used for, without what is removed of it.

    >>> limits = GroupLimits(invocations=1024, f16=True)
    >>> reduced(limits, [Removal("work-groups above 256", "", "", "")]).invocations
    256
    """
    for removal in removals:
        limits = _without(limits, removal.what)
    return limits


FIELDS: Mapping[str, Mapping[str, Any]] = {
    MATRICES: {"matrices": ()},
    MATRIX_LINES: {"right_lines": "", "sum_lines": "", "left_words": False},
    SUBGROUP_OPERATIONS: {"subgroup_operations": False},
    SUBGROUP_SIZES: {"subgroup_choice": False, "subgroup_min": GroupLimits().subgroup_min,
                     "subgroup_max": GroupLimits().subgroup_max, "matrices": ()},
    F16: {"f16": False},
    BF16: {"bf16": False},
    STORAGE8: {"storage8": False},
    STORAGE16: {"storage16": False},
    DOT_PRODUCTS: {"dot_i8": False, "fast_dot_i8": False},
    KEPT_NAN: {"keeps_nan": False, "exact_f16": False},
}
"""What of the limits each name means. The device, its choice, queues and clock are not among them.
"""
MOST: Mapping[str, tuple[str, ...]] = {
    GROUPS: ("invocations",), SHARED: ("shared_bytes",), BINDINGS: ("bindings",),
    BUFFERS: ("buffer_bytes", "buffer_range")}
"""The limits that are bounded by each kind of size; `GRIDS` bounds all axes."""


def _without(limits: GroupLimits, what: str) -> GroupLimits:
    """The limits without one thing; matrices of factors that are gone go with them."""
    if shape := SHAPE.fullmatch(what):
        rows, columns, depth = map(int, shape.groups()[:3])
        gone = MatrixShape(rows, columns, depth, *shape.groups()[3:])
        return replace(limits, matrices=tuple(m for m in limits.matrices if m != gone))
    if size := SIZE.fullmatch(what):
        most = int(size[2])
        if size[1] == GRIDS:
            x, y, z = (min(n, most) for n in limits.grid)
            return replace(limits, grid=(x, y, z))
        return replace(limits, **{name: min(getattr(limits, name), most)
                                  for name in MOST[size[1]]})
    if what in (F16, BF16):
        limits = replace(limits, matrices=tuple(
            m for m in limits.matrices if what not in (m.factors, m.sums)))
    return replace(limits, **FIELDS.get(what, {}))


def require_clock(name: str, removals: Iterable[Removal]) -> None:
    """Raise DeviceError for a device whose clock is removed, saying why."""
    removed = removal_of(TIMES, removals)
    if removed is not None:
        raise DeviceError(f"nothing can be timed on {name}: {removed.why} {removed.instead}")


def removal_of(what: str, removals: Iterable[Removal]) -> Removal | None:
    """The first removal of `what` as a whole, or None where nobody removes that."""
    return next((each for each in removals if each.what == what), None)
