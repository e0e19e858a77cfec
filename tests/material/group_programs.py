"""Group programs that use all there is, for emitters to write down."""

from __future__ import annotations

from collections.abc import Iterator

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import GroupProgram, Number, Op, op, select, vector
from smalti.codegen.gpu.instructions import INSTRUCTIONS
from smalti.codegen.gpu.types import FLOATS, Matrix, VectorType

SIZE = 64
ARITHMETIC = ("f32", "f16", "i32", "u32")
STORES = ("f32", "f16", "bf16", "i32", "u32")
LOADS = {"f32": ("f32",), "f16": ("f32", "f16"), "bf16": ("f32",), "i32": ("i32",),
         "u32": ("u32",), "i8": ("i32", "u32"), "u8": ("i32", "u32")}


def instructions(scalar: str, lanes: int) -> GroupProgram:
    """Every instruction on values of a type that are x, y and z: results one after the other in
    `out`, answers as u32 in `truth`."""
    names = [name for name, entry in INSTRUCTIONS.items()
             if scalar in entry.takes and entry.meaning is not None]
    asking = [name for name in names if INSTRUCTIONS[name].asks]
    giving = [name for name in names if not INSTRUCTIONS[name].asks]
    b, elements = Builder("instructions", SIZE), SIZE * lanes
    x, y, z = (b.binding(name, scalar, elements, "read", lanes) for name in "xyz")
    out = b.binding("out", scalar, len(giving) * elements, "write", lanes)
    truth = b.binding("truth", "u32", len(asking) * elements, "write", lanes)
    index = b.let(b.invocation * lanes)
    values = [b.let(b.load(buffer, index, lanes, scalar=scalar)) for buffer in (x, y, z)]
    for number, name in enumerate(giving):
        given = [values[0] < values[1], *values[:2]] if name == "select" else list(
            values[:INSTRUCTIONS[name].arity])
        if name in ("div", "rem") and scalar not in FLOATS:
            given[1] = given[1] | 1
        if name.startswith("shift_"):
            given[1] = given[1] & 31
        b.store(out, index + number * elements, op(name, *given).to(scalar))
    for number, name in enumerate(asking):
        b.store(truth, index + number * elements, op(name, *values[:2]).to("u32"))
    return b.finish((1, 1, 1))


def truths(lanes: int) -> GroupProgram:
    """Every instruction on answers; lane by lane, and one for all lanes."""
    b, elements = Builder("truths", SIZE), SIZE * lanes
    x, y = (b.binding(name, "i32", elements, "read", lanes) for name in "xy")
    out = b.binding("out", "u32", 8 * elements, "write", lanes)
    index = b.let(b.invocation * lanes)
    p, q = (b.let(b.load(buffer, index, lanes).to("bool")) for buffer in (x, y))
    results = [p & q, p | q, p ^ q, op("not", p), p.equals(q), op("not_equal", p, q),
               select(p, q, op("not", q)), select(b.invocation < 9, p, q)]
    for number, result in enumerate(results):
        b.store(out, index + number * elements, result.to("u32"))
    return b.finish((1, 1, 1))


def conversions(given: str, wanted: str, lanes: int) -> GroupProgram:
    """Values of one scalar type as another, and the same bits."""
    b, elements = Builder("conversions", SIZE), SIZE * lanes
    x = b.binding("x", given, elements, "read", lanes)
    out = b.binding("out", wanted, elements, "write", lanes)
    value = b.load(x, b.invocation * lanes, lanes, scalar=given)
    b.store(out, b.invocation * lanes, value.to(wanted))
    if "f16" not in (given, wanted):
        bits = b.binding("bits", wanted, elements, "write", lanes)
        b.store(bits, b.invocation * lanes, value.bits(wanted))
    return b.finish((1, 1, 1))


def copy(stored: str, scalar: str, lanes: int, seen: int) -> GroupProgram:
    """Elements that are read as `scalar`, `lanes` at once where the binding has `seen`, some of
    them not; written to a binding, through a shared array where 8 bits are not what is stored."""
    b, elements = Builder("copy", SIZE), SIZE * lanes
    x = b.binding("x", stored, elements, "read", seen)
    target = scalar if stored in ("i8", "u8") else stored
    y = b.binding("y", target, elements, "write", seen)
    array = b.shared("array", target, elements, seen)
    index = b.let(b.invocation * lanes)
    value = b.load(x, index, lanes, where=b.invocation < 61, scalar=scalar)
    b.store(array, (SIZE - 1) * lanes - index, value)
    b.barrier()
    b.store(y, index, b.load(array, (SIZE - 1) * lanes - index, lanes, scalar=scalar),
            where=op("not_equal", b.invocation, 5))
    return b.finish((1, 1, 1))


def words(stored: str, lanes: int) -> GroupProgram:
    """Halves that are moved and computed with as the bits of words, `lanes` words at once."""
    b, elements = Builder("words", SIZE), 2 * SIZE * lanes
    x = b.binding("x", stored, elements, "read", 2 * lanes)
    y = b.binding("y", stored, elements, "write", 2 * lanes)
    array = b.shared("array", "u32", SIZE * lanes, lanes)
    index = b.let(b.invocation * lanes)
    b.store(array, (SIZE - 1) * lanes - index,
            b.load(x, index * 2, lanes, where=b.invocation < 61, scalar="u32"))
    b.barrier()
    value = b.let(b.load(array, (SIZE - 1) * lanes - index, lanes))
    parts = [value.lane(lane) for lane in range(lanes)] if lanes > 1 else [value]
    pairs = [vector(*parts[n:n + 2]) for n in range(0, lanes, 2)] if lanes > 1 else parts
    made = [b.let(op(f"narrow_{stored}", op(f"widen_{stored}", pair) * 3.0)) for pair in pairs]
    parts = [pair.lane(half) for pair in made for half in (0, 1)] if lanes > 1 else made
    b.store(y, index * 2, vector(*parts) if lanes > 1 else parts[0],
            where=op("not_equal", b.invocation, 5))
    return b.finish((1, 1, 1))


def control() -> GroupProgram:
    """Loops in loops and branches, of which some never run, with registers that they set."""
    b = Builder("control", SIZE)
    n, y = b.binding("n", "u32", 3 * SIZE, "read"), b.binding("y", "i32", 3 * SIZE, "write")
    i = b.let(b.group[0] * SIZE + b.invocation)
    total, turns = b.variable(0, type=VectorType("i32")), b.load(n, i)
    with b.loop(turns) as k:
        with b.branch((k & 1).equals(0)):
            with b.loop(k + 3, k, 2) as j:
                b.set(total, total + j.to("i32"))
        with b.otherwise():
            with b.branch(k > 4):
                b.set(total, total * -2)
    with b.branch(total < 0):
        b.set(total, -total)
    b.store(y, i, total, where=i < 3 * SIZE - 5)
    return b.finish((3, 1, 1))


def sums() -> GroupProgram:
    """A sum over the group in shared memory, step by step, of a grid of three axes."""
    b = Builder("sums", SIZE)
    x, y = b.binding("x", "f32", 12 * SIZE, "read"), b.binding("y", "f32", 12, "write")
    array = b.shared("array", "f32", SIZE)
    group = b.let((b.group[2] * 3 + b.group[1]) * 2 + b.group[0])
    b.store(array, b.invocation, b.load(x, group * SIZE + b.invocation))
    width = SIZE // 2
    while width:
        b.barrier()
        with b.branch(b.invocation < width):
            b.store(array, b.invocation, b.load(array, b.invocation) +
                    b.load(array, b.invocation + width))
        width //= 2
    with b.branch(b.invocation.equals(0)):
        b.store(y, group, b.load(array, 0))
    return b.finish((2, 3, 2))


def exchanges(scalar: str, lanes: int, subgroup: int) -> GroupProgram:
    """Every operation of subgroups."""
    b, elements = Builder("exchanges", SIZE, subgroup), SIZE * lanes
    x = b.binding("x", scalar, elements, "read", lanes)
    y = b.binding("y", scalar, 5 * elements, "write", lanes)
    one = b.binding("one", scalar, elements // subgroup, "write", lanes)
    index = b.let((b.subgroup * subgroup + b.lane) * lanes)
    value = b.let(b.load(x, index, lanes, scalar=scalar))
    results = [*(op(f"subgroup_{name}", value) for name in ("add", "max", "min")),
               op("subgroup_shuffle", value, (b.lane + 3) % subgroup),
               op("subgroup_shuffle_xor", value, Number(2, VectorType("u32")))]
    for number, result in enumerate(results):
        b.store(y, index + number * elements, result)
    total = op("subgroup_add", value)  # which all have to make that one can store it
    b.store(one, b.subgroup * lanes, total, where=b.lane.equals(subgroup - 1))
    return b.finish((1, 1, 1))


def meeting() -> GroupProgram:
    """A binding that the group writes and reads."""
    b = Builder("meeting", SIZE)
    y = b.binding("y", "f32", 2 * SIZE, "read_write")
    here = b.group[0] * SIZE
    b.store(y, here + b.invocation, b.load(y, here + b.invocation) + 1.0)
    b.barrier()
    with b.branch(b.invocation.equals(0)):
        total = b.variable(0.0)
        with b.loop(SIZE) as k:
            b.set(total, total + b.load(y, here + k))
        b.store(y, here, total)
    return b.finish((2, 1, 1))


def products(rows: int, columns: int, depth: int, factors: str, sums: str, shared: bool,
             subgroup: int = 32) -> GroupProgram:
    """c = 2 (a b) + d of three products, by the matrix unit, for each of two subgroups, from
    bindings or through a shared array; and the same as f16."""
    b = Builder("products", 2 * subgroup, subgroup)
    a, w = (b.binding(name, factors, 2 * extent, "read", 4) for name, extent in
            (("a", rows * 3 * depth), ("b", 3 * depth * columns)))
    d, c, h = (b.binding(name, dtype, 2 * rows * columns, access) for name, dtype, access in
               (("d", sums, "read"), ("c", sums, "write"), ("h", "f16", "write")))
    kinds = [Matrix("a", rows, depth, factors), Matrix("b", depth, columns, factors),
             Matrix("sum", rows, columns, sums)]
    array = b.shared("array", factors, 2 * rows * depth, 4)
    of_a, of_b = b.subgroup * rows * 3 * depth, b.subgroup * columns * 3 * depth
    total = b.variable(0.0, type=kinds[2])
    with b.loop(3) as k:
        if shared:
            b.barrier()
            with b.loop(2 * rows * depth // 4, b.invocation, 2 * subgroup) as i:
                row, column = i // (depth // 4), i % (depth // 4) * 4
                b.store(array, i * 4, b.load(a, (row * 3 + k) * depth + column, 4, scalar=sums))
            b.barrier()
            left = b.matrix(array, b.subgroup * rows * depth, depth, kinds[0])
        else:
            left = b.matrix(a, of_a + k * depth, 3 * depth, kinds[0])
        right = b.matrix(w, of_b + k * depth, 3 * depth, kinds[1], by_columns=True)
        b.set(total, op("matrix_multiply_add", left, right, total))
    here = b.subgroup * rows * columns
    whole = b.let(total * 2.0 + b.matrix(d, here, columns, kinds[2]))
    b.store_matrix(c, here, columns, whole)
    half = Op("convert", (whole,), Matrix("sum", rows, columns, "f16"))
    b.store_matrix(h, here, columns, half)
    return b.finish((1, 1, 1))


def products_in_words(rows: int, columns: int, depth: int, factors: str,
                      subgroup: int = 32, by_columns: bool = True) -> GroupProgram:
    """c = a b, where both factors and then the sums take their turns in one array of words: the
    left factor by rows, the right one `by_columns` or by rows, sums by columns."""
    b = Builder("words", subgroup, subgroup)
    a, w = (b.binding(name, factors, extent, "read", 8) for name, extent in
            (("a", rows * depth), ("b", depth * columns)))
    c = b.binding("c", "f32", rows * columns, "write", 4)
    first, second, sums = rows * depth // 2, columns * depth // 2, rows * columns
    array = b.shared("array", "u32", max(first + second, sums), 4)
    for buffer, count, at in ((a, first, 0), (w, second, first)):
        with b.loop(count // 4, b.invocation, subgroup) as i:
            b.store(array, at + i * 4, b.load(buffer, i * 8, 4, scalar="u32"))
    b.barrier()
    left = b.let(b.matrix(array, 0, depth // 2, Matrix("a", rows, depth, factors)))
    right = b.let(b.matrix(array, first, (depth if by_columns else columns) // 2,
                           Matrix("b", depth, columns, factors), by_columns))
    total = b.variable(0.0, type=Matrix("sum", rows, columns, "f32"))
    b.set(total, op("matrix_multiply_add", left, right, total))
    b.barrier()
    b.store_matrix(array, 0, rows, total, by_columns=True)
    b.barrier()
    with b.loop(sums // 4, b.invocation, subgroup) as i:
        b.store(c, i * 4, b.load(array, i * 4, 4).bits("f32"))
    return b.finish((1, 1, 1))


def products_of_bytes(rows: int, columns: int, depth: int, subgroup: int = 32,
                      by_columns: bool = True) -> GroupProgram:
    """c = a b - 3 b + d in integers, where -3 is in all elements of a left factor: both factors,
    and then the sums, take their turns in one array of words."""
    b = Builder("bytes", subgroup, subgroup)
    first, second, sums = rows * depth // 4, columns * depth // 4, rows * columns
    a, w = (b.binding(name, "u32", extent, "read", 2) for name, extent in
            (("a", first), ("b", second)))
    c, d = b.binding("c", "i32", sums, "write"), b.binding("d", "i32", sums, "read")
    lanes = 2 if depth < 16 else 4  # rows are of whole vectors
    array = b.shared("array", "u32", max(first + second, sums), lanes)
    for buffer, count, at in ((a, first, 0), (w, second, first)):
        with b.loop(count // 2, b.invocation, subgroup) as i:
            b.store(array, at + i * 2, b.load(buffer, i * 2, 2))
    b.barrier()
    left, right = Matrix("a", rows, depth, "i8"), Matrix("b", depth, columns, "i8")
    factor = b.let(b.matrix(array, first, (depth if by_columns else columns) // 4, right,
                            by_columns))
    total = b.variable(0, type=Matrix("sum", rows, columns, "i32"))
    for other in (b.let(b.matrix(array, 0, depth // 4, left)), Number(-3, left)):
        b.set(total, op("matrix_multiply_add", other, factor, total))
    b.barrier()
    b.store_matrix(array, 0, columns, b.let(total + b.matrix(d, 0, columns, total.type)))
    b.barrier()
    with b.loop(sums, b.invocation, subgroup) as i:
        b.store(c, i, b.load(array, i).bits("i32"))
    return b.finish((1, 1, 1))


def constants() -> GroupProgram:
    """Numbers that are easily taken for one another."""
    numbers = [0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e39, 2**-149, 0.1]
    b = Builder("constants", 1)
    y = b.binding("y", "f32", 2 * len(numbers), "write", 2)
    z = b.binding("z", "i32", 2, "write")
    for place, value in enumerate(numbers):
        both = Number(value, VectorType("f32"))
        b.store(y, 2 * place, vector(both, both))
    b.store(z, 0, Number(-1, VectorType("i32")))
    b.store(z, 1, Number(1, VectorType("i32")))
    return b.finish((1, 1, 1))


def all_without_matrices(f16: bool) -> Iterator[GroupProgram]:
    """All of the above that devices run which compute with f16, or do not; of 8 to a subgroup."""
    scalars = [scalar for scalar in ARITHMETIC if f16 or scalar != "f16"]
    for lanes in (1, 2, 4):
        yield truths(lanes)
        for scalar in scalars:
            yield instructions(scalar, lanes)
            yield exchanges(scalar, lanes, 8)
            yield from (conversions(scalar, other, lanes) for other in scalars)
        for stored in LOADS:
            yield from (copy(stored, scalar, lanes, seen) for scalar in LOADS[stored]
                        for seen in (1, 2, 4) if seen >= lanes and scalar in scalars)
        yield from (words(stored, lanes) for stored in ("f16", "bf16"))
    yield from (control(), sums(), meeting(), constants())
