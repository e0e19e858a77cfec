"""What a check of a GPU is made of: probes, and what comes of each.

    probe.case(target, limits) → ProbeCase       what it tries under these limits, without a device
    case.run(bench) → ""                    or what is wrong: "the result is off by 3e-01"

A case names the removals that would let its work be done in another way, the likeliest first: they
are what is suspected where it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from smalti.codegen.gpu.form import GroupProgram, Op, expressions
from smalti.codegen.gpu.instructions import DOT, SUBGROUP
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.types import Matrix
from smalti.codegen.target import Target
from smalti.dataclass import dataclass
from smalti.runtime.doctor.bench import Bench
from smalti.runtime.gpu.removals import (
    BF16,
    DOT_PRODUCTS,
    F16,
    GROUPS,
    MATRICES,
    MATRIX_LINES,
    SHARED,
    STORAGE8,
    STORAGE16,
    SUBGROUP_OPERATIONS,
    SUBGROUP_SIZES,
    above,
    matrix_shape,
)
from smalti.schedule.group import GroupLimits, MatrixShape

GROUPS_OF_MOST = (256, 128)
"""Invocations that nearly every device runs in a work-group, and those that every device does."""
SHARED_OF_MOST = (48 << 10, 32 << 10, 16 << 10)
"""Bytes of shared memory that many devices have, nearly every one, and every one."""


@dataclass(frozen=True)
class ProbeCase:
    """What a probe tries on a device of some limits.

    Those of equal `key` try the same. `suspects` are names of removals. `run` gives what is wrong,
    or nothing; what the device refuses, and a device that is lost, are errors that it raises.
    """

    key: Hashable
    suspects: tuple[str, ...]
    run: Callable[[Bench], str]


@dataclass(frozen=True)
class DeviceProbe:
    """One thing that programs rely on. `case` gives None where a device of these limits is not
    asked for it."""

    name: str
    case: Callable[[Target, GroupLimits], ProbeCase | None]


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `trouble` is empty where nothing is wrong. `suspects` are those of the
    case; what ended with the process or the device is `fatal`."""

    trouble: str = ""
    suspects: tuple[str, ...] = ()
    fatal: bool = False


def suspects_of(programs: Sequence[GroupProgram], limits: GroupLimits) -> tuple[str, ...]:
    """Names of the removals that would change these programs, on a device of these limits: what
    drivers get wrong most often first."""
    found: list[str] = []
    used = [each for program in programs for each in expressions(program.body)]
    stored = {b.dtype for program in programs for b in program.bindings}
    stored |= {b.dtype for program in programs for b in program.shared}
    shapes = {shape_of(each) for each in used
              if isinstance(each, Op) and each.instruction == "matrix_multiply_add"}
    if shapes:
        found += [*([MATRIX_LINES] if limits.right_lines else []),
                  *map(matrix_shape, sorted(shapes)), MATRICES]
    if any(isinstance(each, Op) and each.instruction in SUBGROUP for each in used):
        found.append(SUBGROUP_OPERATIONS)
    if any(program.subgroup for program in programs):
        found.append(SUBGROUP_SIZES)
    largest = max((program.size for program in programs), default=0)
    found += [above(GROUPS, size) for size in GROUPS_OF_MOST if size < largest]
    shared = max((sum(a.elements * STORED_DTYPES[a.dtype].itemsize for a in program.shared)
                  for program in programs), default=0)
    found += [above(SHARED, size) for size in SHARED_OF_MOST if size < shared]
    computed = {each.type.scalar for each in used}
    if limits.f16 and ("f16" in stored or "f16" in computed):
        found.append(F16)
    if limits.bf16 and "bf16" in stored:
        found.append(BF16)
    if limits.dot_i8 and any(isinstance(each, Op) and each.instruction == DOT for each in used):
        found.append(DOT_PRODUCTS)
    if limits.storage8 and stored & {"i8", "u8"}:
        found.append(STORAGE8)
    if limits.storage16 and stored & {"f16", "bf16"}:
        found.append(STORAGE16)
    return tuple(found)


def relied_on(limits: GroupLimits) -> tuple[Hashable, ...]:
    """What programs rely on that does not show in them."""
    return (limits.f16, limits.bf16, limits.storage8, limits.keeps_nan, limits.right_lines,
            limits.dot_i8)


def shape_of(product: Op) -> MatrixShape:
    """What the matrix unit is asked for by a product."""
    a, b, total = (each.type for each in product.arguments)
    assert isinstance(a, Matrix) and isinstance(b, Matrix), product
    return MatrixShape(a.rows, b.columns, a.columns, a.scalar, total.scalar)
