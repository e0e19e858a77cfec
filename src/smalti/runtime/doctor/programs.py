"""Probes of what programs are made of: instructions, operations of subgroups, matrices, barriers.

Each is a small group program whose meaning the interpreter of group programs knows to the bit, or
to what a device may round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import ml_dtypes
import numpy as np

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import U32, Expr, GroupProgram, Number, number, op
from smalti.codegen.gpu.instructions import DOT
from smalti.codegen.gpu.interpreter import run as interpreted
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.totals import place
from smalti.codegen.gpu.types import Matrix, VectorType
from smalti.codegen.target import Target
from smalti.runtime.doctor.bench import Arrays, Bench, Guarded
from smalti.runtime.doctor.kernels import BESIDE, wrong
from smalti.runtime.doctor.probe import (
    GROUPS_OF_MOST,
    DeviceProbe,
    ProbeCase,
    relied_on,
    suspects_of,
)
from smalti.runtime.gpu.removals import BINDINGS, GRIDS, KEPT_NAN, above
from smalti.schedule.choose_group import subgroup_size
from smalti.schedule.group import BYTES, GroupLimits, MatrixShape
from smalti.schedule.space_group import matrix_subgroup

Made = tuple[GroupProgram, Arrays]
ROUNDS = 24
"""How often invocations exchange what they hold through shared memory."""
DEEP = 1024
"""Numbers that a work-group adds up by subgroups: sums of 256 and more were wrong on KosmicKrisp
(vllm-vulkan #22)."""
TILES = 2
"""Products of matrices, one after the other, that are added up."""
ROW_PAD = 8
"""Elements between rows of matrices in shared memory, as in products."""
GRID_MOST = (1 << 17) + 3, 65535, 65535
"""Work-groups that a launch is tried with along each axis, at most: beyond 16 bits along the first,
along the others all that most devices allow."""
BINDINGS_MOST = 16
"""Buffers that one program is tried with, at most: no kernel has more."""
EXACT, ROUNDED, HALVED = 0.0, 1e-6, 2e-3
"""What a result may be off by: not at all, by the order of sums, by rounding to f16."""


def probes(target: Target, limits: GroupLimits) -> Iterator[DeviceProbe]:
    """All probes of programs, for a device of these limits."""
    yield probe("whole numbers", lambda has: [integers()])
    for dtype in ("f16", "bf16"):
        yield probe(f"{dtype}, as it is stored", partial(of_storage, dtype), more=nan)
    yield probe("arithmetic in f16", lambda has: [halves()] if has.f16 else [], HALVED)
    yield probe("bytes of weights", lambda has: [bytes_of("i8"), bytes_of("u8")])
    yield probe("dot products of bytes", lambda has: [dot_products()])
    yield probe("NaN and infinity", lambda has: [comparisons()], more=nan)
    yield probe("shared memory behind barriers",
                lambda has: [exchange(min(GROUPS_OF_MOST[0], has.invocations))])
    yield probe("the largest work-group", lambda has: [exchange(has.invocations)])
    yield probe("all of the shared memory", lambda has: [filled(has)])
    yield probe("many buffers", lambda has: [gathered(has)],
                more=lambda has: smaller(BINDINGS, (8, 4), has.bindings))
    for axis, name in enumerate("xyz"):
        yield probe(f"grids along {name}", partial(of_grids, axis),
                    more=lambda has: smaller(GRIDS, (65535,), max(has.grid)))
    for name in ("add", "max", "min", "shuffle", "shuffle_xor"):
        yield probe(f"subgroups: {name.replace('_', ' ')}", partial(of_subgroups, name), ROUNDED)
    for shape in limits.matrices:
        if (shape.factors, shape.sums) == (BYTES, "i32"):
            yield probe(f"matrices {shape}", partial(products, shape))
        if shape.sums == "f32":
            yield probe(f"matrices {shape}", partial(products, shape))
            yield probe(f"matrices {shape}, by invocations", partial(held, shape))


def nan(limits: GroupLimits) -> list[str]:
    """The removal of what a driver promises of NaN."""
    return [KEPT_NAN] if limits.keeps_nan else []


def smaller(what: str, sizes: Sequence[int], has: int) -> list[str]:
    """Removals of what is above some sizes, of a device that has more."""
    return [above(what, size) for size in sizes if size < has]


def probe(name: str, build: Callable[[GroupLimits], list[Made]], tolerance: float = EXACT,
          more: Callable[[GroupLimits], list[str]] = lambda has: []) -> DeviceProbe:
    """A probe of programs that `build` makes for limits, none where they do not have what it is
    about; `more` are suspects that do not show in the programs."""

    def case(target: Target, limits: GroupLimits) -> ProbeCase | None:
        made = build(limits)
        programs = [program for program, _ in made]

        def run(bench: Bench) -> str:
            pipelines = bench.pipelines(programs)
            for (program, arrays), pipeline in zip(made, pipelines):
                with Guarded(bench, [program], [pipeline]) as guarded:
                    if trouble := program_trouble(guarded, program, arrays, tolerance):
                        return trouble
            return ""

        suspects = dict.fromkeys((*more(limits), *suspects_of(programs, limits)))
        return ProbeCase((*programs, *relied_on(limits)), tuple(suspects), run) if made else None

    return DeviceProbe(name, case)


def program_trouble(guarded: Guarded, program: GroupProgram, arrays: Arrays,
                    tolerance: float) -> str:
    """What is wrong with a run of a program, or nothing."""
    before = guarded.before(arrays)
    after = guarded.run(before)
    if not np.array_equal(after, guarded.run(before)):
        return "the same work on the same numbers gives other bytes each time"
    expected = interpreted(program, {**arrays, **{
        b.name: guarded.array(before, b.name, STORED_DTYPES[b.dtype])
        for b in program.bindings if b.access == "read_write"}})
    written = [b for b in program.bindings if b.access != "read"]
    for binding in written:
        found = guarded.array(after, binding.name, STORED_DTYPES[binding.dtype])
        if trouble := unlike(found, expected[binding.name], tolerance):
            return trouble
    kept = guarded.outside([b.name for b in written])
    return "" if np.array_equal(before[kept], after[kept]) else BESIDE


def unlike(found: np.ndarray, expected: np.ndarray, tolerance: float) -> str:
    """How a result differs from what it should be, or nothing. Numbers too small for the usual form
    of their type may have become 0, and NaN may have other bits."""
    if tolerance:
        return wrong(found, expected, tolerance)
    if np.issubdtype(expected.dtype, np.integer):
        same = found == expected
    else:
        tiny = ml_dtypes.finfo(expected.dtype).tiny
        with np.errstate(invalid="ignore"):  # NaN of a half becomes one of a double
            wide, meant = found.astype(np.float64), expected.astype(np.float64)
        same = (wide == meant) | (np.isnan(wide) & np.isnan(meant)) | (
            (np.abs(meant) < tiny) & (wide == 0))
    count = int(np.count_nonzero(~same))
    return f"{count} of {found.size} elements are wrong" if count else ""


def numbers(count: int, dtype: str = "f32", seed: int = 0) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, count).astype(STORED_DTYPES[dtype])


def integers() -> Made:
    """The arithmetic by which places in memory are computed."""
    b, n = Builder("integers", 64), 256
    x, y = (b.binding(name, "u32", n, "read") for name in "xy")
    i = b.let(b.group[0] * 64 + b.invocation)
    p, q = (b.let(b.load(each, i)) for each in (x, y))
    results = [p + q, p - q, p * q, p / (q | 1), p % (q | 1), p & q, p | q, p ^ q,
               p << (q & 31), p >> (q & 31), op("min", p, q), op("max", p, q)]
    out = b.binding("out", "u32", n * len(results), "write")
    for number_of, result in enumerate(results):
        b.store(out, i + number_of * n, result)
    rng = np.random.default_rng(0)
    drawn = {name: rng.integers(0, 1 << 32, n, np.uint32) for name in "xy"}
    drawn["y"][::3] %= 1000
    return b.finish((n // 64, 1, 1)), drawn


def of_storage(dtype: str, limits: GroupLimits) -> list[Made]:
    """Every value of 16 bits, where the device stores them."""
    return [stored(dtype)] if limits.storage16 else []


def stored(dtype: str) -> Made:
    """Every value of 16 bits, read as f32 and written both so and rounded back."""
    b, n = Builder("stored", 64), 1 << 16
    x = b.binding("x", dtype, n, "read")
    wide, back = b.binding("wide", "f32", n, "write"), b.binding("back", dtype, n, "write")
    i = b.let(b.group[0] * 64 + b.invocation)
    value = b.let(b.load(x, i))
    b.store(wide, i, value)
    b.store(back, i, value)
    every = np.arange(n, dtype=np.uint32).astype(np.uint16).view(STORED_DTYPES[dtype])
    return b.finish((n // 64, 1, 1)), {"x": every}


def halves() -> Made:
    """Arithmetic of f16, four lanes at once."""
    b, n = Builder("halves", 64), 1024
    x, y = (b.binding(name, "f16", n, "read", 4) for name in "xy")
    out = b.binding("out", "f16", 3 * n, "write", 4)
    i = b.let((b.group[0] * 64 + b.invocation) * 4)
    p, q = (b.let(b.load(each, i, 4, scalar="f16")) for each in (x, y))
    for at, result in enumerate((p + q, p * q, op("max", p, q))):
        b.store(out, i + at * n, result)
    rng = np.random.default_rng(0)
    return b.finish((n // 256, 1, 1)), {name: rng.standard_normal(n).astype(np.float16)
                                        for name in "xy"}


def bytes_of(dtype: str) -> Made:
    """Bytes that are read one by one, and four at once."""
    b, n = Builder("bytes", 64), 512
    x = b.binding("x", dtype, n, "read", 4)
    out, four = b.binding("out", "i32", n, "write"), b.binding("four", "i32", n, "write", 4)
    i = b.let(b.group[0] * 64 + b.invocation)
    b.store(out, i, b.load(x, i))
    b.store(four, i * 4, b.load(x, b.let(i * 4, "at"), 4, where=i < n // 4), where=i < n // 4)
    every = np.resize(np.arange(256, dtype=np.uint8), n).view(STORED_DTYPES[dtype])
    return b.finish((n // 64, 1, 1)), {"x": every}


def dot_products() -> Made:
    """Sums of four products of bytes in words, which all values of a byte take part in: the largest
    sum is not one of 16 bits."""
    b, n = Builder("dot_products", 64), 1024
    x, y = (b.binding(name, "u32", n, "read", 4) for name in "xy")
    out = b.binding("out", "i32", n, "read_write", 4)
    i = b.let((b.group[0] * 64 + b.invocation) * 4)
    p, q = (b.let(b.load(each, i, 4)) for each in (x, y))
    b.store(out, i, b.load(out, i, 4) + op(DOT, p, q))
    rng = np.random.default_rng(0)
    drawn = {name: rng.integers(0, 1 << 32, n, np.uint32) for name in "xy"}
    drawn["x"][:4], drawn["y"][:4] = 0x80808080, (0x80808080, 0x7F7F7F7F, 0, 0x80807F7F)
    return b.finish((n // 256, 1, 1)), drawn


def comparisons() -> Made:
    """NaN, infinities and both zeros, as they are compared, chosen and computed with."""
    b, n = Builder("comparisons", 64), 64
    x = b.binding("x", "f32", n, "read")
    i = b.invocation
    value = b.let(b.load(x, i))
    nan = (value.bits("u32") & 0x7FFFFFFF) > 0x7F800000
    size = op("abs", value)
    results = [value, value + 1.0, value * 0.5, -value, size, op("sqrt", size),
               op("select", nan, number(7.0, VectorType("f32")), value)]
    asked = [value < 1.0, value > 1.0, value.equals(value + 0.0), nan]
    out = b.binding("out", "f32", n * len(results), "write")
    truth = b.binding("truth", "u32", n * len(asked), "write")
    for at, result in enumerate(results):
        b.store(out, i + at * n, result)
    for at, result in enumerate(asked):
        b.store(truth, i + at * n, result.to("u32"))
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 4.0, 3e38, -3e38, 1e-30, 2.25]
    return b.finish((1, 1, 1)), {"x": np.resize(np.array(special, np.float32), n)}


def exchange(size: int) -> Made:
    """A work-group whose invocations hand on what they hold, in rounds."""
    b = Builder("exchange", size)
    x, out = (b.binding("x", "u32", 2 * size, "read"), b.binding("out", "u32", 2 * size, "write"))
    held = b.shared("held", "u32", size)
    at = b.let(b.group[0] * size + b.invocation)
    value = b.variable(b.load(x, at), "v", U32)
    with b.loop(ROUNDS) as turn:
        b.store(held, b.invocation, value)
        b.barrier()
        b.set(value, b.load(held, (b.invocation + turn * 37 + 1) % size) * 3 + turn)
        b.barrier()
    b.store(out, at, value)
    return b.finish((2, 1, 1)), {"x": np.arange(2 * size, dtype=np.uint32)}


def filled(limits: GroupLimits) -> Made:
    """All shared memory that a work-group may have: each word is written by one invocation, and
    read by another."""
    size, words = min(128, limits.invocations), limits.shared_bytes // 4
    b = Builder("filled", size)
    out, held = b.binding("out", "u32", words, "write"), b.shared("held", "u32", words)
    with b.loop(words, start=b.invocation, step=size) as at:
        b.store(held, at, at * 2654435761)
    b.barrier()
    with b.loop(words, start=b.invocation, step=size) as at:
        b.store(out, at, b.load(held, (words - 1) - at))
    return b.finish((1, 1, 1)), {}


def gathered(limits: GroupLimits) -> Made:
    """As many buffers as a program may have."""
    count = min(limits.bindings, limits.push_bytes // 4, BINDINGS_MOST) - 1
    b, n = Builder("gathered", 64), 64
    given = [b.binding(f"x{number_of}", "u32", n, "read") for number_of in range(count)]
    out = b.binding("out", "u32", n, "write")
    total: Expr = number(0, U32)
    for each in given:
        total = b.let(total * 5 + b.load(each, b.invocation))
    b.store(out, b.invocation, total)
    return b.finish((1, 1, 1)), {each.name: np.arange(n, dtype=np.uint32) + 100 * at
                                 for at, each in enumerate(given)}


def of_grids(axis: int, limits: GroupLimits) -> list[Made]:
    """A launch of many work-groups along an axis."""
    return [grid(axis, limits)]


def grid(axis: int, limits: GroupLimits) -> Made:
    """A launch of many work-groups along an axis; each writes its number."""
    count = min(limits.grid[axis], GRID_MOST[axis])
    b = Builder("grid", 1)
    out = b.binding("out", "u32", count, "write")
    b.store(out, b.group[axis], b.group[axis] * 3 + 1)
    x, y, z = (count if each == axis else 1 for each in range(3))
    return b.finish((x, y, z)), {}


def of_subgroups(name: str, limits: GroupLimits) -> list[Made]:
    """An operation of subgroups, on what each lane holds, and on sums of many."""
    size = subgroup_size(limits)
    if not size:
        return []
    b = Builder(f"subgroup_{name}", max(size, min(128, limits.invocations)), size)
    n, at = b.size, place(b)
    x = b.binding("x", "f32", DEEP, "read")
    out, totals = b.binding("out", "f32", n, "write"), b.binding("totals", "f32", n, "write")
    distances = [1 << k for k in range(size.bit_length() - 1)]

    def operated(value: Expr) -> Expr:
        if name == "shuffle":
            return op("subgroup_shuffle", value, (b.lane * 5 + 3) % size)
        if name == "shuffle_xor":
            for distance in distances:
                value = b.let(value * 2.0 + op("subgroup_shuffle_xor", value,
                                                    number(distance, U32)))
            return value
        return op(f"subgroup_{name}", value)

    b.store(out, at, operated(b.let(b.load(x, at))))
    total = b.variable(0.0, "total")
    with b.loop(DEEP, step=n) as first:
        b.set(total, total + operated(b.let(b.load(x, first + at))))
    b.store(totals, at, total)
    return [(b.finish((1, 1, 1)), {"x": numbers(DEEP)})]


def products(shape: MatrixShape, limits: GroupLimits) -> list[Made]:
    """Products in the matrix unit by one subgroup, whose factors and sums lie in shared memory, by
    rows and by columns; and whose second factor is read where it was bound."""
    if shape not in limits.matrices:
        return []
    return [product(shape, limits, *way) for way in ((False,), (True,), (True, True))]


def product(shape: MatrixShape, limits: GroupLimits, by_columns: bool,
            placed: bool = False) -> Made:
    """The same, with the second factor and the result `by_columns` or by rows; that factor stays
    where it was bound where it is `placed`, which is by columns. Bytes lie in words."""
    size, each = matrix_subgroup(shape, limits), 4 if shape.factors == BYTES else 1
    b, kind = Builder("matrices", size, size), "u32" if each > 1 else shape.factors
    rows, columns, depth = shape.rows, shape.columns, shape.depth
    x = b.binding("x", kind, TILES * rows * depth // each, "read")
    y = b.binding("y", kind, TILES * depth * columns // each, "read",
                  1 if not placed else 8 if each == 1 else 4)
    out = b.binding("out", shape.sums, rows * columns, "write")
    line = depth // each + ROW_PAD
    lanes = 4 if line % 4 == 0 else 2
    a = b.shared("a", kind, TILES * rows * line, lanes)
    lines, across = (columns, depth // each) if by_columns else (depth, columns // each)
    across += 0 if placed else ROW_PAD
    w = y if placed else b.shared("w", kind, TILES * lines * across, 4 if across % 4 == 0 else 2)
    wide = (rows if by_columns else columns) + ROW_PAD
    held = b.shared("held", shape.sums, (columns if by_columns else rows) * wide, 4)
    staged(b, x, a, TILES * rows, depth // each, line)
    if not placed:
        staged(b, y, w, TILES * lines, across - ROW_PAD, across)
    b.barrier()
    # no constant, so that it is read as where a program works it out; of the only subgroup 0
    first = b.let(b.subgroup * (TILES * lines * across)) if placed else number(0, U32)
    total = b.variable(number(0.0, Matrix("sum", rows, columns, shape.sums)), "total")
    for tile in range(TILES):
        left = b.let(b.matrix(a, tile * rows * line, line,
                              Matrix("a", rows, depth, shape.factors)))
        right = b.let(b.matrix(w, first + tile * lines * across, across,
                               Matrix("b", depth, columns, shape.factors), by_columns))
        b.set(total, op("matrix_multiply_add", left, right, total))
    b.store_matrix(held, 0, wide, total, by_columns)
    b.barrier()
    with b.loop(rows * columns, start=b.lane, step=size) as at:
        row, column = at // columns, at % columns
        b.store(out, at, b.load(held, column * wide + row if by_columns else row * wide + column))
    return b.finish((1, 1, 1)), {"x": factors(TILES * rows * depth, shape.factors),
                                 "y": factors(TILES * depth * columns, shape.factors, 1)}


def factors(count: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Small whole numbers; or words of bytes of every value, the first of which are -128, whose
    products and sums are the largest."""
    if dtype != BYTES:
        return numbers(count, dtype, seed)
    drawn = np.random.default_rng(seed).integers(-128, 128, count).astype(np.int8)
    drawn[:count // 8] = -128
    return drawn.view(np.uint32)


def held(shape: MatrixShape, limits: GroupLimits) -> list[Made]:
    """What invocations have of matrices, where it is said: factors of which each gives its part,
    sums of which each reads its column, and sums of which each has changed its column."""
    size = matrix_subgroup(shape, limits)
    if not (shape in limits.matrices and shape.factors == "f16" and limits.f16
            and limits.sum_lines == "columns" and size == shape.columns):
        return []
    rows, columns, depth = shape.rows, shape.columns, shape.depth
    words = limits.left_words and 2 * size == depth
    b = Builder("invocations", size, size)
    x = b.binding("x", "u32" if words else "f16", rows * depth // (2 if words else 1), "read")
    y = b.binding("y", "f16", depth * columns, "read")
    read, changed = (b.binding(name, "f32", rows * columns, "write")
                     for name in ("read", "changed"))
    kept = b.shared("held", "f32", rows * columns, 4)

    left, right = Matrix("a", rows, depth, "f16"), Matrix("b", depth, columns, "f16")
    if words:
        a = op("with_words", Number(0.0, left),
               *(b.let(b.load(x, b.lane + row * size)) for row in range(rows)))
    else:
        a = b.matrix(x, 0, depth, left)
    if limits.right_lines == "columns":
        w = op("with_columns", Number(0.0, right),
               *(b.let(b.load(y, b.lane + k * columns, scalar="f16")) for k in range(depth)))
    else:
        w = b.matrix(y, 0, columns, right)

    sums = Number(0.0, Matrix("sum", rows, columns, "f32"))
    total = b.let(op("matrix_multiply_add", b.let(a), b.let(w), sums))
    own = [b.let(op("of_column", total, number(row, U32))) for row in range(rows)]
    for row, value in enumerate(own):
        b.store(read, b.lane + row * columns, value)
    b.store_matrix(kept, 0, columns, op("with_columns", sums, *(
        b.let(value * (b.lane + row).to("f32")) for row, value in enumerate(own))))
    b.barrier()
    with b.loop(rows * columns, start=b.lane, step=size) as at:
        b.store(changed, at, b.load(kept, at))
    given = numbers(rows * depth, "f16")
    return [(b.finish((1, 1, 1)), {"x": given.view(np.uint32) if words else given,
                                   "y": numbers(depth * columns, "f16", 1)})]


def staged(b: Builder, given, shared, rows: int, length: int, line: int) -> None:
    """Rows of a binding go to shared memory, `line` elements apart."""
    with b.loop(rows * length, start=b.lane, step=b.size) as at:
        b.store(shared, at // length * line + at % length, b.load(given, at))
