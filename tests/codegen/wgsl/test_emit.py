"""What WGSL makes a device compute is what the interpreter says."""

from __future__ import annotations

from dataclasses import replace

import group_programs as programs
import ml_dtypes
import numpy as np
import pytest
from examples import examples
from group_program_strategies import programs as drawn_programs
from hypothesis import assume, given
from launches import compare
from webgpu_devices import plain_webgpu, webgpu  # noqa: F401

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    BOOL,
    F32,
    I32,
    U32,
    Expr,
    GroupProgram,
    Number,
    expressions,
    op,
    select,
    spread,
)
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.scalars import scalarised
from smalti.codegen.gpu.types import Matrix, VectorType
from smalti.codegen.wgsl.emit import emit
from smalti.errors import IllegalSchedule, VerificationError
from smalti.runtime.gpu.check import launched
from smalti.runtime.webgpu import WebGpu
from smalti.schedule.group import GroupLimits

CAPABLE = GroupLimits(f16=True, subgroup_operations=True)
LANES = pytest.mark.parametrize("lanes", (1, 2, 4))
EXPONENTIALS = {"f32": 4e-6, "f16": 16e-3}
"""Relative errors: exp of 8 may be wrong by 19 units in the last place."""


def drawn(program: GroupProgram) -> dict[str, np.ndarray]:
    """Values for all bindings that are read, of both signs where there are two."""
    rng, found = np.random.default_rng(0), {}
    for binding in program.bindings:
        dtype = STORED_DTYPES[binding.dtype]
        if binding.dtype in ("f32", "f16", "bf16"):
            found[binding.name] = (4 * rng.standard_normal(binding.elements)).astype(dtype)
        else:
            limits = np.iinfo(dtype)
            found[binding.name] = rng.integers(limits.min, limits.max, binding.elements, dtype,
                                               endpoint=True)
    return found


@LANES
@pytest.mark.parametrize("scalar", programs.ARITHMETIC)
def test_every_instruction(webgpu: WebGpu, scalar: str, lanes: int) -> None:  # noqa: F811
    program = programs.instructions(scalar, lanes)
    rtol = EXPONENTIALS.get(scalar, 0.0)
    compare(webgpu, program, drawn(program), rtol=rtol, atol=rtol / 8)


@LANES
def test_instructions_on_answers(webgpu: WebGpu, lanes: int) -> None:  # noqa: F811
    program = programs.truths(lanes)
    compare(webgpu, program, {name: array & 1 for name, array in drawn(program).items()})


@pytest.mark.parametrize("given", programs.ARITHMETIC)
def test_conversions(webgpu: WebGpu, given: str) -> None:  # noqa: F811
    for wanted in programs.ARITHMETIC:
        program = programs.conversions(given, wanted, 2)
        compare(webgpu, program, drawn(program))


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
        b.store(y, place, Number(value, VectorType("f16")), where=b.invocation.equals(0))
    found = launched(webgpu, b.finish((1, 1, 1)), {})["y"]
    assert np.array_equal(found, np.array([0.1, np.inf, -np.inf, 6e-8], np.float16))


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("stored", programs.LOADS)
def test_every_storage(webgpu: WebGpu, plain_webgpu: WebGpu, stored: str) -> None:  # noqa: F811
    for lanes, seen in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4)):
        for scalar in programs.LOADS[stored]:
            program = programs.copy(stored, scalar, lanes, seen)
            compare(webgpu, program, drawn(program))
            if scalar != "f16" and (stored == "f16" or lanes == 1):
                compare(plain_webgpu, program, drawn(program))


@pytest.mark.parametrize("stored", ("f16", "bf16"))
@pytest.mark.parametrize("lanes", (1, 2, 4))
def test_halves_in_words(webgpu: WebGpu, plain_webgpu: WebGpu,  # noqa: F811
                         stored: str, lanes: int) -> None:
    program = programs.words(stored, lanes)
    for gpu in (webgpu, plain_webgpu):
        compare(gpu, program, drawn(program))
        single = scalarised(program, ("x", "y"))
        compare(gpu, single, drawn(single))


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


@pytest.mark.parametrize("make", (programs.sums, programs.meeting))
def test_groups_meet(webgpu: WebGpu, plain_webgpu: WebGpu, make) -> None:  # noqa: F811
    for gpu in (webgpu, plain_webgpu):
        compare(gpu, make(), drawn(make()), rtol=1e-5, atol=1e-5)


def test_loops_and_branches(webgpu: WebGpu) -> None:  # noqa: F811
    program = programs.control()
    compare(webgpu, program, {"n": drawn(program)["n"] % 9})


def subgroup_size(gpu: WebGpu) -> int:
    """How many invocations have the first subgroup number."""
    b = Builder("size", 128)
    y = b.binding("y", "u32", 128, "write")
    b.store(y, b.invocation, b.subgroup)
    return int((launched(gpu, b.finish((1, 1, 1)), {})["y"] == 0).sum())


@LANES
@pytest.mark.parametrize("scalar", programs.ARITHMETIC)
def test_subgroups(webgpu: WebGpu, scalar: str, lanes: int) -> None:  # noqa: F811
    size = subgroup_size(webgpu)
    program = replace(programs.exchanges(scalar, lanes, size), subgroup=0)
    values = drawn(program)["x"].astype(np.float32).round() % 16
    array = {"x": values.astype(STORED_DTYPES[scalar])}
    compare(webgpu, program, array, subgroup=size)


def test_who_does_not_store_takes_part(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("one", 64)
    y = b.binding("y", "f32", 64, "read_write")
    total = op("subgroup_add", b.load(y, b.invocation))
    b.store(y, b.invocation, total, where=b.lane.equals(0))
    compare(webgpu, b.finish((1, 1, 1)), {"y": np.arange(64, dtype=np.float32)},
            subgroup=subgroup_size(webgpu))


@given(drawn_programs())
@examples(40, derandomize=True)
def test_any_program(webgpu: WebGpu, program: GroupProgram) -> None:  # noqa: F811
    shifts = any(getattr(e, "instruction", "").startswith("shift_")
                 for e in expressions(program.body))
    assume(not shifts)  # by 32 and more they mean nothing
    program = replace(program, subgroup=0)
    compare(webgpu, program, drawn(program), rtol=1e-2, atol=1e-3)


# ---------------------------------------------------------------------- text and refusals


def test_names_are_no_words_of_wgsl(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("enable f16;\n}", 4)
    x, y = b.binding("up.0.weight:x", "f32", 4, "read"), b.binding("fn", "f32", 4, "write")
    held = b.shared("var<workgroup>", "f32", 4)
    value = b.let(b.load(x, b.invocation) + 1.0, "for")
    total = b.variable(value, "vec")
    b.store(held, b.invocation, total)
    b.store(y, b.invocation, b.load(held, b.invocation))
    compare(webgpu, b.finish((1, 1, 1)), {"up.0.weight:x": np.arange(4, dtype=np.float32)})


def test_text_of_a_program() -> None:
    b = Builder("scale", 64)
    x, y = b.binding("x", "bf16", 256, "read", 4), b.binding("y", "f32", 256, "write", 4)
    i = b.let(b.group[0] * 64 + b.invocation)
    value = b.load(x, i * 4, 4, where=i < 50)
    b.store(y, i * 4, value * spread(Number(0.5, F32), 4), where=i < 64)
    assert emit(b.finish((1, 1, 1)), CAPABLE) == '''\
struct Offsets { b0: u32, b1: u32, zero: u32, x: u32, y: u32, z: u32 }
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
    let t1_ = (((group.x + offsets.x) * 64u) + invocation);
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

    def sized(b: Builder) -> None:
        b.subgroup_size = 32

    assert "matrix units" in refused(matrix)
    assert "f16" in refused(half, GroupLimits())
    assert "subgroup" in refused(subgroup, GroupLimits())
    assert "subgroups of 32" in refused(sized)


def test_single_bytes_are_not_written() -> None:
    b = Builder("bytes", 64)
    b.store(b.binding("x", "i8", 64, "write"), b.invocation, Number(1, I32))
    with pytest.raises(VerificationError, match="only read"):
        emit(b.finish((1, 1, 1)), CAPABLE)


def test_barriers_of_subgroups_are_those_of_the_group() -> None:
    b = Builder("subgroups", 64, 32)
    b.barrier(subgroup=True)
    limits = replace(CAPABLE, subgroup_min=32, subgroup_max=32)
    assert "workgroupBarrier();" in emit(b.finish((1, 1, 1)), limits)


@pytest.mark.parametrize(("lanes", "declared"), [(4, "vec4<f32>"), (2, "f32"), (1, "f32")])
def test_who_writes_less_than_a_vector_writes_scalars(lanes: int, declared: str) -> None:
    """Of a vector a device may write all components, and others' would be lost."""
    b = Builder("narrow", 16)
    shared, y = b.shared("s", "f32", 64, 4), b.binding("y", "f32", 64, "write", 4)
    with b.loop(64, b.invocation * lanes, 16 * lanes) as at:
        b.store(shared, at, spread(at.to("f32"), lanes))
    b.barrier()
    b.store(y, b.invocation * 4, b.load(shared, b.invocation * 4, 4))
    text = emit(b.finish((1, 1, 1)), CAPABLE)
    assert f"var<workgroup> s0: array<{declared}, " in text
    assert "var<storage, read_write> b0: array<vec4<f32>>" in text
