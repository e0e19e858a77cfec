"""Contractions on GPUs: products of matrices whose left factor is read through a window.

    rows       pixels b, y, x of the result; of one row of one image where each has its own weight
    columns    channels o of the result, of each part
    depth      r, s, c: what a sum runs over

A work-group computes a tile of the result. Chunk by chunk of the depth it stages its rows of the
patch, prologue applied and zeros beyond borders, and its columns of the weight:

    for each chunk of the depth:
        a [row][depth], b [depth][column] = patch, weight        shared memory; for the matrix unit
                                                                 b is [column][depth]
        sums += a b                                              registers, or the matrix unit
    out = result of sums

Where tiles are too few for the device, the depth is split among work-groups: they write their sums
to the workspace, and a step behind adds these in their order. Where the prologue is much work, a
step in front writes the patch to the workspace, with its borders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.chunks import Chunks
from smalti.codegen.gpu.expressions import Values, bind_for, unravel, work_groups
from smalti.codegen.gpu.factors import Area, ComputedColumns, Factor, Patch
from smalti.codegen.gpu.form import Binding, Expr, GroupProgram, op, select
from smalti.codegen.gpu.integers import ByteColumns, BytePatch, ByteValues, Starts
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.packed import (
    ComputedWeight,
    PackedColumns,
    PackedWeight,
    PlacedColumns,
)
from smalti.codegen.gpu.product import ZERO, Place, Product, reads, vector_lanes
from smalti.codegen.gpu.results import (
    Corner,
    Moved,
    PartWriter,
    Results,
    Writer,
    line_of_sums,
)
from smalti.codegen.gpu.sums import Matrices, Registers, sums_type
from smalti.codegen.gpu.unpacking import QuantisedColumns, QuantisedWeight
from smalti.codegen.gpu.weights import VECTOR, WIDE, packed_weight, padded
from smalti.codegen.target import WORKSPACE
from smalti.errors import IllegalSchedule
from smalti.graph.operation import HALVES
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import STORED_BYTES, Buffer, Kernel, Load, axis, loads
from smalti.schedule.group import BYTES, GroupContraction, GroupLimits
from smalti.schedule.merge import access, integer_sums, store, weights_bound

STEP_INVOCATIONS = 128
"""Of a work-group of the steps in front and behind, where the device allows so many."""


def lower_contraction(kernel: Kernel, schedule: GroupContraction,
                      limits: GroupLimits) -> GroupSteps:
    """The programs of a contraction. Raises IllegalSchedule where the schedule does not fit it."""
    if schedule.prepared:
        return _prepared(kernel, schedule, limits)
    return _Contraction(kernel, schedule, limits).lower()


class _Contraction:
    def __init__(self, kernel: Kernel, schedule: GroupContraction, limits: GroupLimits) -> None:
        self.kernel, self.s, self.limits = kernel, schedule, limits
        self.whole = schedule.dtype == BYTES
        if self.whole != integer_sums(kernel):
            raise IllegalSchedule("products of integers are products of bytes, and others are not")
        self.product = Product(kernel)
        self.results = Results(self.product)
        self.bound = weights_bound(kernel)
        self.packed = packed_weight(self.product, schedule) if self.bound else None
        self.chunks = -(-self.product.depth // schedule.tile_k)
        self.each = -(-self.chunks // schedule.split)
        if self.bound and (given := kernel.buffer("weight").dtype) != schedule.weights and (
                not FORMATS.keys().isdisjoint((given, schedule.weights))):
            raise IllegalSchedule(f"a weight of {given} is not held as {schedule.weights}")
        if schedule.direct and not self.bound:
            raise IllegalSchedule("only packed weights are read where they are")
        if schedule.matrix and not self.whole and self.product.extents.c % 2:
            raise IllegalSchedule("matrices are staged in words of two halves, and channels of the "
                                  f"patch are {self.product.extents.c}")
        if kernel.stages[0].outside:
            raise IllegalSchedule("beyond the borders of a contraction are zeros")
        if (schedule.split - 1) * self.each >= self.chunks:
            raise IllegalSchedule(f"{self.chunks} chunks are too few for {schedule.split} groups")

    def lower(self) -> GroupSteps:
        s, product = self.s, self.product
        if s.split == 1:
            return GroupSteps((self._multiply(),), packed=self.packed)
        elements = s.split * product.batch * product.rows * line_of_sums(product)
        return GroupSteps((self._multiply(), self._add()), 4 * elements, self.packed)

    # ------------------------------------------------------------------ the product

    def _multiply(self) -> GroupProgram:
        s, product, kernel = self.s, self.product, self.kernel
        b = Builder("contraction", s.invocations, s.subgroup if s.matrix else 0)
        patch = kernel.stages[0]
        uses = [(access(kernel, load), "c") for load in reads(patch.value)]
        if not self.bound:
            _, weight = loads(kernel.stages[1].value)
            uses.append((access(kernel, weight), "c" if s.matrix else "o"))
        extents = {"c": product.extents.c, "o": product.columns}
        vectors = [(found, lane, vector_lanes(extents[lane], most)) for found, lane in uses
                   for most in ((VECTOR, WIDE) if s.matrix and found.dtype in HALVES
                                else (VECTOR,))]
        if s.split == 1:
            vectors += [(found, "o", self.results.lanes) for found in self.results.accesses]
        bindings = bind_for(b, kernel, vectors)
        if self.packed is not None:
            p = self.packed
            lanes = WIDE if p.dtype in HALVES and s.matrix else VECTOR
            bindings["weight"] = b.binding("weight", p.dtype, p.elements, "read", lanes)
        if s.split > 1:
            bindings[WORKSPACE] = self._workspace(b, "write")
        which, outer, start, stop = self._place(b)
        row = b.let(b.group[1] * s.tile_m)
        column = b.let(b.group[0] * s.tile_n)
        sums = (Matrices if s.matrix else Registers)(b, product, s, self.results.by_rows)
        of_weight = b.let(column + sums.column) if s.matrix and s.direct else column
        self._chunks(b, bindings, row, of_weight, outer, (start, stop), sums)
        corner = Corner(b, row, column)
        tile = s.tile_m, s.tile_n
        writer = (PartWriter(b, product, bindings[WORKSPACE], which, tile) if s.split > 1 else
                  Writer(b, self.results, bindings, outer, tile, self._starts(b, bindings)))
        sums.finish(lambda r, c, values, where: writer.write(*corner(r, c), values, where))
        return b.finish((-(-product.columns // s.tile_n), -(-product.rows // s.tile_m),
                         product.batch * s.split))

    def _starts(self, b: Builder, bindings: Mapping[str, Binding], tile: int = 0) -> Starts | None:
        """What sums of integers begin with, where the weight is packed."""
        if not isinstance(self.packed, PackedBytes) or not self.packed.less:
            return None
        return Starts(b, bindings["weight"], self.packed, tile or self.s.tile_n)

    def _place(self, b: Builder) -> tuple[Expr, Place, Expr, Expr]:
        """Which part of the sums this work-group makes, b and y of its batch, and its chunks."""
        s, product = self.s, self.product
        number: Expr = b.group[2]
        part: Expr = ZERO
        if s.split > 1:
            number, part = b.let(b.group[2] % product.batch), b.let(b.group[2] // product.batch)
        outer = unravel(b, number, product.axes[1])
        if s.split == 1:
            return ZERO, outer, ZERO, op("add", ZERO, self.chunks)
        start = b.let(part * self.each)
        stop = start + self.each
        if self.chunks % self.each:
            stop = op("min", stop, self.chunks)
        return b.group[2], outer, start, b.let(stop)

    def _chunks(self, b: Builder, bindings: dict, row: Expr, column: Expr, outer: Place,
                span: tuple[Expr, Expr], sums: Registers | Matrices) -> None:
        """Add up the products of all chunks of `span`."""
        a, right, own = self._areas(b)
        kind = BytePatch if self.whole else Patch
        patch = kind(b, self.product, self.s, bindings, row, outer, a)
        weight = self._weight(b, bindings, column, outer, right)

        def multiply(chunk: Expr, at_a: Expr, at_b: Expr) -> None:
            sums.multiply(a, weight, chunk, at_a, at_b)

        Chunks(b, self.s, patch, weight, multiply, self.chunks, self.each, own).run(*span)

    def _weight(self, b: Builder, bindings: dict, column: Expr, outer: Place,
                area: Area | None) -> Factor:
        """The right factor, as the products take it."""
        s, product = self.s, self.product
        if self.bound:
            factor: type[Factor]
            if s.matrix and s.direct:
                return PlacedColumns(b, product, s, bindings, column)
            if s.weights in FORMATS:
                factor = QuantisedColumns if s.matrix else QuantisedWeight
            else:
                factor = PackedColumns if s.matrix else PackedWeight
            return factor(b, product, s, bindings, column, area)
        of_bytes, others = (ByteColumns, ComputedColumns) if s.matrix else (
            ByteValues, ComputedWeight)
        computed = of_bytes if self.whole else others
        return computed(b, product, s, bindings, column, outer, area)

    def _areas(self, b: Builder) -> tuple[Area, Area | None, tuple[int, int]]:
        """Where both factors are staged, and how much one chunk of each takes there."""
        s, parts = self.s, self.product.parts
        line = s.places + s.pad
        if s.matrix:
            own = s.tile_m * s.line_words, parts * s.tile_n * s.line_words
            tile = b.shared("tile", "u32", s.shared_bytes(parts) // 4, VECTOR)
            halves = not self.whole
            right = None if s.direct else Area(tile, line, s.buffers * own[0], words=halves)
            return Area(tile, line, words=halves), right, own
        other = parts * s.tile_n + s.pad
        own, dtype = (s.tile_m * line, s.places * other), "u32" if self.whole else s.dtype
        a = Area(b.shared("a", dtype, s.buffers * own[0], VECTOR), line)
        if s.direct:
            return a, None, own
        return a, Area(b.shared("b", dtype, s.buffers * own[1], VECTOR), other), own

    # ------------------------------------------------------------------ sums of a split depth

    def _workspace(self, b: Builder, use: str) -> Binding:
        product = self.product
        count = self.s.split * product.batch * product.rows * line_of_sums(product)
        return b.binding(WORKSPACE, sums_type(self.s).scalar, count, use, VECTOR)

    def _add(self) -> GroupProgram:
        """The step that adds the sums of all work-groups, in order, and writes results."""
        s, product = self.s, self.product
        size = min(STEP_INVOCATIONS, self.limits.invocations)
        b = Builder("contraction_sums", size)
        bindings = bind_for(b, self.kernel,
                            [(found, "o", self.results.lanes) for found in self.results.accesses])
        space = self._workspace(b, "read")
        if isinstance(self.packed, PackedBytes) and self.packed.less:
            bindings["weight"] = b.binding("weight", self.packed.dtype, self.packed.elements,
                                           "read", VECTOR)
        columns = padded(product.columns)
        vectors = columns // VECTOR
        count = product.batch * product.rows * vectors
        group, groups = work_groups(b, -(-count // size), self.limits)
        index = b.let(group * size + b.invocation)
        with b.branch(index < count):
            axes = [("column", vectors), ("row", product.rows)]
            at = unravel(b, index, [("batch", product.batch),
                                    *(axes if self.results.by_rows else reversed(axes))])
            outer = unravel(b, at["batch"], product.axes[1])
            column = b.let(at["column"] * VECTOR)
            rows, each = product.batch * product.rows, line_of_sums(product)
            line = b.let((at["batch"] * product.rows + at["row"]) * each + column)
            sums = []
            for part in range(product.parts):
                total = b.variable(0.0, "sum", sums_type(s))
                with b.loop(s.split) as number:
                    b.set(total, total + b.load(
                        space, line + number * (rows * each) + part * columns, VECTOR))
                sums.append(total)
            Writer(b, self.results, bindings, outer, (1, VECTOR),
                   self._starts(b, bindings, VECTOR)).write(
                Moved(at["row"]), Moved(column), sums)
        return b.finish(groups)


def _prepared(kernel: Kernel, schedule: GroupContraction, limits: GroupLimits) -> GroupSteps:
    """A step that writes the patch to the workspace, and the contraction of what it has written."""
    patch, *others = kernel.stages
    if schedule.split > 1:
        raise IllegalSchedule("the workspace holds a patch or sums of a split depth, not both")
    shape = kernel.buffer(patch.result).shape
    strides = tuple(math.prod(shape[i + 1:]) for i in range(4))
    space = Buffer(WORKSPACE, "output", shape, strides, schedule.dtype)
    front = replace(kernel, buffers=(*kernel.buffers, space),
                    stages=(replace(patch, result=WORKSPACE),))
    read = Load(WORKSPACE, tuple(map(axis, "byxc")))
    behind = (replace(patch, value=read, guards=()), *others)
    inner = replace(kernel, buffers=(*kernel.buffers, replace(space, role="input")), stages=behind)
    found = _Contraction(inner, replace(schedule, prepared=False), limits).lower()
    return replace(found, steps=(_prepare(front, limits), *found.steps),
                   workspace_bytes=math.prod(shape) * STORED_BYTES[schedule.dtype])


def _prepare(kernel: Kernel, limits: GroupLimits) -> GroupProgram:
    """The step that writes the patch, zeros beyond its borders."""
    (patch,) = kernel.stages
    channels = patch.axes[-1][1]
    lanes, size = vector_lanes(channels), min(STEP_INVOCATIONS, limits.invocations)
    b, out = Builder("patch", size), store(kernel, patch.axes, WORKSPACE)
    accesses = [access(kernel, load) for load in reads(patch.value)]
    bindings = bind_for(b, kernel, [(found, "c", lanes) for found in (*accesses, out)])
    axes = (*patch.axes[:-1], ("c", channels // lanes))
    count = math.prod(n for _, n in axes)
    group, groups = work_groups(b, -(-count // size), limits)
    index = b.let(group * size + b.invocation)
    with b.branch(index < count):
        at = unravel(b, index, axes)
        at["c"] = b.let(at["c"] * lanes)
        values = Values(b, kernel, bindings, at, "c", lanes)
        inside = values.inside(patch.guards)
        if inside is not None:
            values.where = inside = b.let(inside)
        value = values.value(patch.value)
        if inside is not None:
            value = select(inside, value, 0.0)
        values.store(out, value)
    return b.finish(groups)
