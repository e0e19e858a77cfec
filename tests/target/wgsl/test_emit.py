"""What WGSL makes a device compute is what the interpreter says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from launches import compare, launched
from webgpu_devices import plain_webgpu, webgpu  # noqa: F401

from smalti.errors import IllegalSchedule
from smalti.runtime.webgpu import WebGpu
from smalti.schedule.group import GroupLimits
from smalti.target.gpu.builder import Builder
from smalti.target.gpu.form import (
    BOOL, F32, I32, U32, Expr, GroupProgram, Number, op, select, spread,
)
from smalti.target.gpu.instructions import INSTRUCTIONS
from smalti.target.gpu.memory import STORED_DTYPES
from smalti.target.gpu.types import Matrix, Type
from smalti.target.wgsl import emit

ROWS = 16
STORED_AS = {"f32": "f32", "f16": "f16", "i32": "i32", "u32": "u32", "bool": "i32"}
POSITIVE = ("sqrt", "inverse_sqrt", "log", "log2")
CAPABLE = GroupLimits(f16=True, subgroup_operations=True)


def drawn(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Values of a stored dtype, of both signs where it has them."""
    rng = np.random.default_rng(seed)
    if dtype in ("f32", "f16", "bf16"):
        return (4 * rng.standard_normal(count)).astype(STORED_DTYPES[dtype])
    limits = np.iinfo(STORED_DTYPES[dtype])
    return rng.integers(limits.min, limits.max, count, STORED_DTYPES[dtype], endpoint=True)


def every_instruction(scalar: str, lanes: int) -> tuple[GroupProgram, dict[str, np.ndarray]]:
    """All instructions on values of a type, each with a binding for what it gives."""
    kind, stored, count = Type(scalar, lanes), STORED_AS[scalar], ROWS * lanes
    b, arrays = Builder("every", ROWS), {}
    place = b.invocation * lanes
    values = []
    for n in range(3):
        x = b.binding(f"x{n}", stored, count, "read", lanes)
        arrays[x.name] = drawn(stored, count, n)
        value = b.load(x, place, lanes, scalar=stored)
        values.append(b.let(value if scalar != "bool" else value < 0))
    flag = b.let(values[0] < values[2]) if scalar != "bool" else values[2]
    for name, entry in INSTRUCTIONS.items():
        if entry.meaning is None or scalar not in entry.takes:
            continue
        given = [flag, *values[:2]] if name == "select" else values[:entry.arity]
        if name in POSITIVE:
            given = [op("abs", given[0]) + 0.125]
        if name.startswith("shift"):
            given[1] = given[1] & 31
        made = op(name, *given)
        if made.type.scalar == "bool":
            one = Number(1, Type("i32", lanes))
            made = select(made, one, Number(0, one.type))
        y = b.binding(name, made.type.scalar, count, "write", lanes)
        b.store(y, place, made)
    return b.finish((1, 1, 1)), arrays


@pytest.mark.parametrize("lanes", (1, 2, 4))
@pytest.mark.parametrize("scalar", ("f32", "f16", "i32", "u32", "bool"))
def test_every_instruction(webgpu: WebGpu, scalar: str, lanes: int) -> None:  # noqa: F811
    program, arrays = every_instruction(scalar, lanes)
    rtol = {"f32": 4e-6, "f16": 16e-3}.get(scalar, 0.0)  # exp of 8: 19 units in the last place
    compare(webgpu, program, arrays, rtol=rtol, atol=rtol / 8)


def test_conversions(webgpu: WebGpu) -> None:  # noqa: F811
    b, arrays = Builder("convert", ROWS), {}
    for source in ("f32", "f16", "i32", "u32", "bool"):
        stored = STORED_AS[source]
        x = b.binding(f"of_{source}", stored, 4 * ROWS, "read", 4)
        arrays[x.name] = drawn(stored, 4 * ROWS)
        value = b.let(b.load(x, b.invocation * 4, 4, scalar=stored))
        for target in ("f32", "f16", "i32", "u32"):
            made = (value < 0 if source == "bool" else value).to(target)
            if target == "f16" and source in ("i32", "u32"):
                continue  # beyond its range
            if target == "u32" and source in ("f32", "f16"):
                made = op("abs", value).to(target)
            y = b.binding(f"{source}_to_{target}", target, 4 * ROWS, "write", 4)
            b.store(y, b.invocation * 4, made)
            if target in ("i32", "u32") and source == "f32":
                y = b.binding(f"{source}_bits_{target}", target, 4 * ROWS, "write", 4)
                b.store(y, b.invocation * 4, value.bits(target))
    compare(webgpu, b.finish((1, 1, 1)), arrays, rtol=1e-7)


def test_constants(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("constants", 1)
    floats = [0.0, -0.0, 1.5, -0.1, 1e-45, 3.4028235e38, float("inf"), float("-inf"), float("nan"),
              1e20]
    whole = [0, -1, 2**31 - 1, -2**31]
    made: list[Expr] = [Number(value, F32).bits("u32") for value in floats]
    made += [Number(value, I32).bits("u32") for value in whole]
    made += [Number(2**32 - 1, U32), select(Number(True, BOOL), 7, Number(8, U32)),
             (Number(3e38, F32) * 10.0).bits("u32"), (Number(1.0, F32) / 0.0).bits("u32"),
             Number(-1e20, F32).to("i32").bits("u32"), Number(77, U32) << 40]
    y = b.binding("y", "u32", len(made), "write")
    for place, value in enumerate(made):
        b.store(y, place, value)
    found = launched(webgpu, b.finish((1, 1, 1)), {})["y"]
    patterns = np.array([*floats], np.float32).view(np.uint32)
    nan = floats.index(float("inf")) + 2
    assert found[:nan].tolist() == patterns[:nan].tolist() and found[nan] & 0x7FFFFFFF > 0x7F800000
    assert found[nan + 1] == patterns[nan + 1]
    assert found[len(floats):-1].tolist() == [
        0, 2**32 - 1, 2**31 - 1, 2**31, 2**32 - 1, 7, 0x7F800000, 0x7F800000, 2**31]


def test_nan_is_found(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("nan", 4)
    x, y = b.binding("x", "f32", 4, "read"), b.binding("y", "i32", 4, "write")
    value = b.let(b.load(x, b.invocation))
    b.store(y, b.invocation, select(op("not_equal", value, value), Number(1, I32), 0) +
            select(value.equals(value), Number(2, I32), 0))
    values = np.array([1, np.nan, np.inf, -np.nan], np.float32)
    assert launched(webgpu, b.finish((1, 1, 1)), {"x": values})["y"].tolist() == [2, 1, 2, 1]


def test_halves_of_half_the_reach(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("half", 4)
    y = b.binding("y", "f16", 4, "write")
    for place, value in enumerate((0.1, float("inf"), float("-inf"), 6e-8)):
        b.store(y, place, Number(value, Type("f16")), where=b.invocation.equals(0))
    found = launched(webgpu, b.finish((1, 1, 1)), {})["y"]
    assert np.array_equal(found, np.array([0.1, np.inf, -np.inf, 6e-8], np.float16))


# ---------------------------------------------------------------------- memory


def copies(dtype: str, lanes: int, wide: int) -> tuple[GroupProgram, dict[str, np.ndarray]]:
    """Elements go from a buffer to two others, to one where some are left out, through shared
    memory; all of `wide` lanes, accessed by `lanes`."""
    count = 4 * ROWS + 4 - lanes
    count -= count % lanes
    b = Builder("copies", ROWS)
    target = dtype if dtype not in ("i8", "u8") else "i32"
    x = b.binding("x", dtype, count, "read", wide)
    y, z = b.binding("y", target, count, "write", wide), b.binding("z", target, count,
                                                                   "read_write", wide)
    held = b.shared("held", target, 4 * ROWS + 4, wide)
    with b.loop(count, b.invocation * lanes, ROWS * lanes) as i:
        b.store(held, i, b.load(x, i, lanes))
    b.barrier()
    with b.loop(4 * ROWS + 4 - lanes + 1, b.invocation * lanes, ROWS * lanes) as i:
        other = b.let(count - lanes - i)
        inside = b.let(i < count)
        b.store(y, i, b.load(held, other, lanes, where=inside), where=inside)
        kept = b.load(x, i, lanes, where=inside & ((i // lanes) % 3).equals(0))
        b.store(z, i, b.load(z, i, lanes, where=inside) + kept, where=inside)
    return b.finish((1, 1, 1)), {"x": drawn(dtype, count), "z": drawn(target, count, 1)}


SHAPES = [(lanes, wide) for wide in (1, 2, 4) for lanes in (1, 2, 4) if lanes <= wide]


@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16", "i32", "u32", "i8", "u8"))
def test_every_storage(webgpu: WebGpu, plain_webgpu: WebGpu, dtype: str) -> None:  # noqa: F811
    for lanes, wide in SHAPES:
        program, arrays = copies(dtype, lanes, wide)
        compare(webgpu, program, arrays)
        if dtype == "f16" or lanes == 1:
            compare(plain_webgpu, program, arrays)


def test_bf16_rounds_to_even_and_keeps_nan(webgpu: WebGpu) -> None:  # noqa: F811
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x7F800001,
                     0xFFFFFFFF, 0x80000001], np.uint32)
    b = Builder("round", 8)
    x, y = b.binding("x", "f32", 8, "read"), b.binding("y", "bf16", 8, "write")
    b.store(y, b.invocation, b.load(x, b.invocation))
    found = launched(webgpu, b.finish((1, 1, 1)), {"x": bits.view(np.float32)})["y"]
    with np.errstate(invalid="ignore"):
        expected = bits.view(np.float32).astype(ml_dtypes.bfloat16)
    assert np.array_equal(found[[0, 1, 2, 3, 4, 7]], expected[[0, 1, 2, 3, 4, 7]])
    assert np.isnan(found[[5, 6]].astype(np.float32)).all()


# ---------------------------------------------------------------------- control flow


def test_loops_branches_and_barriers(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("reduce", 32)
    x, y = b.binding("x", "f32", 96 * 4, "read", 4), b.binding("y", "f32", 3, "write")
    part, count = b.shared("part", "f32", 32), b.shared("count", "i32", 1)
    total = b.variable(Number(0.0, Type("f32", 4)))
    with b.loop(b.group[0] + 1) as k:  # a bound that is no constant
        with b.branch((b.invocation + k) % 2 < 1):
            b.set(total, total + b.load(x, (k * 32 + b.invocation) * 4, 4))
        with b.otherwise():
            b.set(total, total - 1.0)
    b.store(part, b.invocation, total.lane(0) + total.lane(1) * total.lane(3))
    b.store(count, 0, Number(5, I32), where=b.invocation.equals(31))
    b.barrier()
    stride = 16
    while stride:
        with b.branch(b.invocation < stride):
            b.store(part, b.invocation, b.load(part, b.invocation) +
                    b.load(part, b.invocation + stride))
        b.barrier()
        stride //= 2
    b.store(y, b.group[0], b.load(part, 0) * b.load(count, 0).to("f32"),
            where=b.invocation.equals(0))
    compare(webgpu, b.finish((3, 1, 1)), {"x": drawn("f32", 96 * 4)}, rtol=1e-4)


def test_a_grid_of_three_axes(webgpu: WebGpu, plain_webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("place", 2)
    y = b.binding("y", "u32", 24, "write")
    x, down, z = b.group
    b.store(y, ((z * 2 + down) * 3 + x) * 2 + b.invocation, z * 100 + down * 10 + x)
    for gpu in (webgpu, plain_webgpu):
        compare(gpu, b.finish((3, 2, 2)), {})


def subgroup_size(gpu: WebGpu) -> int:
    """How many invocations have the first subgroup number."""
    b = Builder("size", 128)
    y = b.binding("y", "u32", 128, "write")
    b.store(y, b.invocation, b.subgroup)
    return int((launched(gpu, b.finish((1, 1, 1)), {})["y"] == 0).sum())


@pytest.mark.parametrize("scalar", ("f32", "f16", "i32"))
def test_subgroups(webgpu: WebGpu, scalar: str) -> None:  # noqa: F811
    size = subgroup_size(webgpu)
    b = Builder("subgroups", 2 * size)
    x = b.binding("x", scalar, 2 * size, "read")
    value = b.let(b.load(x, b.invocation, scalar=scalar))
    made = [op(f"subgroup_{name}", value) for name in ("add", "max", "min")]
    made += [op("subgroup_shuffle", value, size - 1 - b.lane),
             op("subgroup_shuffle_xor", value, Number(1, U32))]
    for place, result in enumerate(made):
        b.store(b.binding(f"y{place}", scalar, 2 * size, "write"), b.invocation, result)
    one = b.binding("one", scalar, 2 * size, "read_write")
    b.store(one, b.invocation, op("subgroup_add", value), where=b.lane.equals(0))
    array = {"x": (drawn("i32", 2 * size) % 16).astype(STORED_DTYPES[scalar]),
             "one": np.zeros(2 * size, STORED_DTYPES[scalar])}
    compare(webgpu, b.finish((1, 1, 1)), array, subgroup=size)


# ---------------------------------------------------------------------- text and refusals


def test_names_are_no_words_of_wgsl(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("enable f16;\n}", 4)
    x, y = b.binding("up.0.weight:x", "f32", 4, "read"), b.binding("fn", "f32", 4, "write")
    held = b.shared("var<workgroup>", "f32", 4)
    value = b.let(b.load(x, b.invocation) + 1.0, "for")
    total = b.variable(value, "vec")
    b.store(held, b.invocation, total)
    b.store(y, b.invocation, b.load(held, b.invocation))
    compare(webgpu, b.finish((1, 1, 1)), {"up.0.weight:x": drawn("f32", 4)})


def test_text_of_a_program() -> None:
    b = Builder("scale", 64)
    x, y = b.binding("x", "bf16", 256, "read", 4), b.binding("y", "f32", 256, "write", 4)
    i = b.let(b.group[0] * 64 + b.invocation)
    value = b.load(x, i * 4, 4, where=i < 50)
    b.store(y, i * 4, value * spread(Number(0.5, F32), 4), where=i < 64)
    assert emit(b.finish((1, 1, 1)), CAPABLE) == '''\
struct Offsets { b0: u32, b1: u32 }
var<immediate> offsets: Offsets;
@group(0) @binding(0) var<storage, read_write> b0: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> b1: array<vec4<f32>>;

fn read_b0_f32x4_where(i: u32, mask: bool) -> vec4<f32> {
    let e = offsets.b0 + select(0u, i, mask);
    let w = b0[e >> 2u];
    return select(vec4<f32>(), vec4<f32>(bitcast<vec2<f32>>(vec2<u32>(w[0] << 16u, \
w[0] & 0xffff0000u)), bitcast<vec2<f32>>(vec2<u32>(w[1] << 16u, w[1] & 0xffff0000u))), mask);
}

fn write_b1_f32x4(i: u32, v: vec4<f32>) {
    let e = offsets.b1 + i;
    let x = v;
    b1[e >> 2u] = x;
}

@compute
@workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) invocation: u32) {
    let t1_ = ((group.x * 64u) + invocation);
    let x1 = (read_b0_f32x4_where((t1_ * 4u), (t1_ < 50u)) * vec4<f32>(0.5f, 0.5f, 0.5f, 0.5f));
    if (t1_ < 64u) { write_b1_f32x4((t1_ * 4u), x1); }
}
'''


def refused(build, limits: GroupLimits = CAPABLE) -> str:
    b = Builder("refused", 64)
    build(b)
    with pytest.raises(IllegalSchedule) as caught:
        emit(b.finish((1, 1, 1)), limits)
    return str(caught.value)


def test_what_wgsl_does_not_have_is_refused() -> None:
    def matrix(b: Builder) -> None:
        kind = Matrix("a", 16, 16, "f16")
        b.let(b.matrix(b.binding("x", "f16", 256, "read"), 0, 16, kind))

    def half(b: Builder) -> None:
        b.let(b.load(b.binding("x", "f16", 64, "read"), b.invocation, scalar="f16"))

    def subgroup(b: Builder) -> None:
        b.let(b.lane + 1)

    def bytes(b: Builder) -> None:
        b.store(b.binding("x", "i8", 64, "write"), b.invocation, Number(1, I32))

    def sized(b: Builder) -> None:
        b.subgroup_size = 32

    assert "matrix units" in refused(matrix)
    assert "f16" in refused(half, GroupLimits())
    assert "subgroup" in refused(subgroup, GroupLimits())
    assert "only read" in refused(bytes)
    assert "subgroups of 32" in refused(sized)
