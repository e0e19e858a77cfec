"""Merges neighbouring axes of a kernel into one, where every load and store allows it.

Two neighbouring axes can be merged if in each access the outer stride is the inner stride times the
inner extent: 64 x 64 pixels are then 4096 rows, and a batch of rows of tokens is one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.kernel.form import (
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Load,
    Stage,
    affine,
    loads,
    rounded_weights,
)

ROW_MIN, LONG_MIN = 256, 1 << 15
"""The fewest elements of a row of a map, and of a map that is worth being cut into several
tiles."""
KEPT_MAX = 4096
"""Kernels of which each function here keeps what it has found, as many as 30 programs have (the
UNet of Stable Diffusion 1.5 has 119): a server compiles for other sizes as long as it runs."""


@dataclass(frozen=True, slots=True)
class Access:
    """The address that a load or store has at each point of the axes, in elements of `dtype`.

    address = offset + sum of stride * axis over `strides` + sum of stride * index over `divided`,
    indices with a divisor, + sum of stride * value over `indirect`, where the value is what another
    access, of integers, loads.
    """

    buffer: str
    strides: tuple[tuple[str, int], ...]
    offset: int
    divided: tuple[tuple[int, Index], ...] = ()
    indirect: tuple[tuple[int, Access], ...] = ()
    dtype: str = "f32"

    def stride(self, axis: str) -> int:
        """How many elements the address moves with a step of `axis`."""
        return dict(self.strides).get(axis, 0)


def access(kernel: Kernel, load: Load) -> Access:
    """The address of a load: its indices times the strides of its buffer."""
    strides: dict[str, int] = {}
    offset, divided, indirect = 0, [], []
    buffer = kernel.buffer(load.buffer)
    for index, stride in zip(load.index, buffer.strides):
        if isinstance(index, Load):
            indirect.append((stride, access(kernel, index)))
        elif index.divisor != 1:
            divided.append((stride, index))
        else:
            offset += stride * index.offset
            for name, coefficient in index.terms:
                strides[name] = strides.get(name, 0) + stride * coefficient
    kept = tuple((name, stride) for name, stride in strides.items() if stride)
    return Access(load.buffer, kept, offset, tuple(divided), tuple(indirect), buffer.dtype)


def store(kernel: Kernel, axes: Sequence[tuple[str, int]], result: str) -> Access:
    """The address of a stage's stores to `result`."""
    buffer = kernel.buffer(result)
    strides = tuple((name, s) for (name, n), s in zip(axes, buffer.strides) if n > 1)
    return Access(result, strides, 0, dtype=buffer.dtype)


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents of a contraction's axes after merging, and its strides and dilations.

    `o` counts channels of the result, each made of `parts` sums that are `o` channels apart.
    """

    b: int
    y: int
    x: int
    o: int
    r: int
    s: int
    c: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    parts: int = 1


def integer_sums(kernel: Kernel) -> bool:
    """True for a contraction of integers, with sums of i32, or of these times a scale."""
    return rounded_weights(kernel) or any(
        b.name == "sum" and b.dtype == "i32" for b in kernel.buffers)


def bytes_shift(kernel: Kernel) -> int | None:
    """What the patch of a contraction of integers lacks to be bytes without a sign, where that and
    the weights as bytes with a sign are known; else None: then factors are words.

    The patch is a byte less its zero point. Weights without a sign have one if their zero point is
    subtracted, which is 128 then; rounded ones always have one.
    """
    options = dict(kernel.options)
    weight, zero = kernel.buffer("weight").dtype, options.get("weight_zero", 0)
    if "zero" not in options or zero != (128 if weight == "u8" else 0):
        return None
    return int(options["zero"]) + (128 if options["signed"] else 0)


def bytes_excess(kernel: Kernel) -> int:
    """How much more than they mean the bytes of a patch are, as bytes with a sign. Raises
    IllegalSchedule where factors are no bytes."""
    shift = bytes_shift(kernel) if integer_sums(kernel) else None
    if shift is None:
        raise IllegalSchedule("the factors of the contraction are no bytes with known zero points")
    return shift - 128


def weights_batched(kernel: Kernel) -> bool:
    """True if a contraction has another weight for each image and row: a batch of products."""
    return len(kernel.buffer("weight").shape) == 6


def weights_bound(kernel: Kernel) -> bool:
    """True if the weight of a contraction is a parameter, so that it is packed while binding."""
    return kernel.buffer("weight").role == "parameter" and not weights_batched(kernel)


@lru_cache(maxsize=KEPT_MAX)
def contraction_extents(kernel: Kernel) -> Extents:
    """The extents of a contraction, with b and y merged into x where that is possible."""
    patch, total, out = kernel.stages
    (_, b), (_, y), (_, x), (_, o) = total.axes
    (_, r), (_, s), (_, c) = total.reduced
    read = affine(next(loads(total.value)))
    steps = (read[1].coefficient("y"), read[2].coefficient("x"),
             read[1].coefficient("r"), read[2].coefficient("s"))
    if r == s == 1 and steps[:2] == (1, 1) and not patch.guards and not weights_batched(kernel):
        accesses = [access(kernel, load) for load in (*loads(patch.value), *loads(out.value))
                    if load.buffer != "sum"]
        accesses.append(store(kernel, out.axes, "out"))
        if not any(a.divided or a.indirect for a in accesses):
            if all(y == 1 or a.stride("y") == a.stride("x") * x for a in accesses):
                inner, y, x = x, 1, y * x
                if all(b == 1 or a.stride("b") == (
                        a.stride("x") * x if inner > 1 else a.stride("y") * x)
                        for a in accesses):
                    b, x = 1, b * x
    made = out.axes[-1][1]
    return Extents(b, y, x, made, r, s, c, *steps, parts=o // made)


@lru_cache(maxsize=KEPT_MAX)
def halved(patch: Stage) -> Stage | None:
    """The stage `patch` of a 3x3 convolution of an image enlarged by 2 (nearest), rewritten to read
    the small image.

    `patch` reads pixel ((y - 1) // 2, (x - 1) // 2) of the small image; the result reads pixel
    (y - 1, x - 1), so y and x count its pixels. None if something is read in another way.

        patch[b, y, x, c] = x0[b, c, (y - 1) // 2, (x - 1) // 2]  where 0 <= y - 1 < 64, ...
        patch[b, y, x, c] = x0[b, c, y - 1, x - 1]                where 0 <= y - 1 < 32, ...
    """
    whole = {name: Index(((name, 1),), -1, 2) for name in "yx"}
    half = {name: Index(((name, 1),), -1) for name in "yx"}
    guards = dict(patch.guards)
    extents = dict(patch.axes)
    if set(guards) != set(half.values()) or any(extents[n] % 2 for n in "yx") or any(
            guards[half[n]] != extents[n] - 2 for n in "yx"):
        return None

    def load_of(load: Load) -> Load:
        return Load(load.buffer, tuple(
            load_of(index) if isinstance(index, Load) else index_of(index) for index in load.index))

    def index_of(index: Index) -> Index:
        return next((half[name] for name, divided in whole.items() if index == divided), index)

    def value_of(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            return load_of(expr)
        if isinstance(expr, Call):
            return Call(expr.function, tuple(map(value_of, expr.arguments)))
        return expr

    value = value_of(patch.value)
    read = [index for load in loads(patch.value) for index in load.index
            if isinstance(index, Index) and (index.coefficient("y") or index.coefficient("x"))]
    if not read or any(index not in whole.values() for index in read):
        return None
    axes = tuple((name, (n - 2) // 2 + 2 if name in half else n) for name, n in patch.axes)
    return Stage(patch.result, axes, value,
                 guards=tuple((index, extent // 2) for index, extent in patch.guards))


def in_place_source(kernel: Kernel) -> Load | None:
    """What the micro-kernel of a contraction may read instead of a patch; None if the patch is
    computed. Bytes without a sign are their own factors, whatever their zero point."""
    value = kernel.stages[0].value
    if integer_sums(kernel) and isinstance(value, Call) and value.function == "sub" \
            and isinstance(value.arguments[1], Const):
        (value, _) = value.arguments
    return value if isinstance(value, Load) else None


@lru_cache(maxsize=KEPT_MAX)
def in_place(kernel: Kernel, dtype: str) -> bool:
    """True if the micro-kernel of a contraction can read its input in place.

    That is, if it is stored as `dtype` with the channels of a pixel adjacent, and there is neither
    a prologue nor padding.
    """
    return not kernel.stages[0].guards and lies_as(kernel, dtype)


@lru_cache(maxsize=KEPT_MAX)
def lies_as(kernel: Kernel, dtype: str) -> bool:
    """True if what the patch of a contraction holds is stored as `dtype`, with the channels of a
    pixel adjacent, so that staging copies it as it is; bytes where products want none with a sign.
    """
    source = in_place_source(kernel)
    if source is None:
        return False
    read = access(kernel, source)
    return not (read.divided or read.indirect) and read.stride("c") == 1 \
        and kernel.buffer(read.buffer).dtype == dtype


@lru_cache(maxsize=KEPT_MAX)
def in_planes(kernel: Kernel) -> bool:
    """True if a contraction reads an image stored as a plane for each channel, pixels of a row
    adjacent."""
    patch, *_ = kernel.stages
    read = [access(kernel, load) for load in loads(patch.value)]
    return any(a.stride("x") == 1 for a in read) and all(
        a.stride("x") in (0, 1) and not a.divided and not a.indirect for a in read)


@lru_cache(maxsize=KEPT_MAX)
def map_axes(kernel: Kernel) -> tuple[tuple[tuple[str, int], ...], tuple[Access, ...]]:
    """The merged axes of a map, outermost first and the vector axis last, and its accesses.

    An axis whose index is divided or looked up cannot be the vector axis; an axis of extent 1 is
    added after it. A single long axis is split in two, because tiles are steps of the axes outside
    of the vector axis.
    """
    (stage,) = kernel.stages
    out = store(kernel, stage.axes, "out")
    accesses = [access(kernel, load) for load in dict.fromkeys(loads(stage.value))]
    every = [out, *accesses, *(a for outer in accesses for _, a in outer.indirect)]
    fixed = {name for a in every for _, index in a.divided for name, _ in index.terms}
    looked_up = {name for outer in accesses for _, a in outer.indirect for name, _ in a.strides}
    axes = sorted((a for a in stage.axes if a[1] > 1), key=lambda a: -out.stride(a[0]))
    if not axes or axes[-1][0] in fixed | looked_up:
        axes.append(("", 1))
    merged = [axes[0]]
    for name, extent in axes[1:]:
        last, outer = merged[-1]
        if name and not {name, last} & fixed and all(
                a.stride(last) == a.stride(name) * extent for a in every):
            merged[-1] = (name, outer * extent)
        else:
            merged.append((name, extent))
    return tuple(_in_rows(axes) if len(merged) == 1 else merged), tuple(accesses)


def _in_rows(axes: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Axes that could be merged into one, merged into two if they are long.

    >>> _in_rows([("y", 64), ("x", 64), ("c", 320)]), _in_rows([("y", 64), ("c", 8)])
    ([('x', 4096), ('c', 320)], [('c', 512)])
    """
    rows = [math.prod(extent for _, extent in axes[at:]) for at in range(len(axes))]
    fitting = [at for at in range(1, len(axes)) if rows[at] >= ROW_MIN]
    if rows[0] < LONG_MIN or not fitting:
        return [(axes[-1][0], rows[0])]
    at = fitting[-1]
    return [(axes[at - 1][0], rows[0] // rows[at]), (axes[-1][0], rows[at])]


@lru_cache(maxsize=KEPT_MAX)
def crossed(kernel: Kernel) -> tuple[str, tuple[Load, ...]] | None:
    """For a map that transposes: the axis along which operands have adjacent elements and the
    result does not, and the loads of these operands; None if there is no such axis."""
    (stage,) = kernel.stages
    axes, _ = map_axes(kernel)
    out, last = store(kernel, stage.axes, "out"), axes[-1][0]
    outer = {index for load in loads(stage.value) for index in load.index
             if isinstance(index, Load)}
    found: dict[str, list[Load]] = {}
    for load in dict.fromkeys(loads(stage.value)):
        read = access(kernel, load)
        across = [name for name, _ in axes[:-1] if read.stride(name) == 1]
        if across and out.stride(last) == 1 and read.stride(last) > 1 and load not in outer \
                and not read.divided and not read.indirect:
            found.setdefault(across[0], []).append(load)
    if not found:
        return None
    best = max(found, key=lambda name: len(found[name]))
    return best, tuple(found[best])


@dataclass(frozen=True, slots=True)
class ReductionAxes:
    """The merged axes of a reduction, outermost first: those `kept` and those `reduced`.

    `lanes` is the axis along which vectors run: the last one of `kept` or of `reduced`, or "" if
    every extent is 1.
    """

    kept: tuple[tuple[str, int], ...]
    reduced: tuple[tuple[str, int], ...]
    lanes: str

    @property
    def across(self) -> bool:
        """True if vectors run along a reduced axis, so that their lanes are combined in the end."""
        return any(name == self.lanes for name, _ in self.reduced)


@lru_cache(maxsize=KEPT_MAX)
def reduction_axes(kernel: Kernel) -> ReductionAxes:
    """The axes of a reduction; vectors run along the axis along which most loads are of adjacent
    elements."""
    total, out = kernel.stages
    read = [access(kernel, load) for load in dict.fromkeys(loads(total.value))]
    behind = [access(kernel, load) for load in dict.fromkeys(loads(out.value))
              if load.buffer != "total"]
    every = [*read, *behind, store(kernel, out.axes, "out")]
    kept, reduced = (tuple(_merged(axes, every)) for axes in (total.axes, total.reduced))
    side_by_side = {name: sum(a.stride(name) == 1 for a in read) for name, _ in (*kept, *reduced)}
    lanes = max(side_by_side, key=side_by_side.__getitem__, default="")
    kept, reduced = (tuple(sorted(axes, key=lambda a: a[0] == lanes)) for axes in (kept, reduced))
    return ReductionAxes(kept, reduced, lanes)


def _merged(axes: Sequence[tuple[str, int]],
            every: Sequence[Access]) -> list[tuple[str, int]]:
    """Axes of extents above 1, neighbours merged where all accesses in `every` allow it."""
    found: list[tuple[str, int]] = []
    for name, extent in axes:
        if extent == 1:
            continue
        if found and all(a.stride(found[-1][0]) == a.stride(name) * extent for a in every):
            found[-1] = (name, found[-1][1] * extent)
        else:
            found.append((name, extent))
    return found
