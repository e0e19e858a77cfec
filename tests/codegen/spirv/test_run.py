"""What drivers make of our modules is what the interpreter says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import group_programs as programs
import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from gpu_devices import absent
from hypothesis import given
from launches import compare

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import I32, U32, Expr, GroupProgram, Number, op, select
from smalti.codegen.gpu.instructions import INSTRUCTIONS
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.scalars import scalarised
from smalti.codegen.gpu.text import show
from smalti.codegen.gpu.types import FLOATS, VectorType
from smalti.codegen.spirv.emit import emit
from smalti.codegen.spirv.text import listing
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu

SCALARS = ("f32", "f16", "i32", "u32")
POSITIVE = ("sqrt", "inverse_sqrt", "log", "log2")
TOLERANCE = {"f32": 4e-6, "f16": 16e-3}  # exp of 8: 19 units in the last place


@pytest.fixture(scope="module")
def plain(adapter: VulkanAdapter) -> Iterator[VulkanGpu]:
    """The device as if it had neither f16 nor 8-bit storage, and bindings began far apart: most
    are seen from an offset on."""
    limits = replace(adapter.limits, f16=False, storage8=False, keeps_nan=False,
                     offset_alignment=256)
    with VulkanGpu(replace(adapter, limits=limits)) as gpu:
        yield gpu


def drawn(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Values of a stored dtype, of both signs where it has them."""
    rng = np.random.default_rng(seed)
    if dtype in ("f32", "f16", "bf16"):
        return (4 * rng.standard_normal(count)).astype(STORED_DTYPES[dtype])
    limits = np.iinfo(STORED_DTYPES[dtype])
    return rng.integers(limits.min, limits.max, count, STORED_DTYPES[dtype], endpoint=True)


def arrays(program: GroupProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for what a program reads."""
    return {binding.name: drawn(binding.dtype, binding.elements, seed + number)
            for number, binding in enumerate(program.bindings) if binding.access != "write"}


@pytest.mark.parametrize("lanes", (1, 2, 4))
@pytest.mark.parametrize("scalar", SCALARS)
def test_every_instruction(vulkan: Gpu, scalar: str, lanes: int) -> None:
    tolerance = TOLERANCE.get(scalar, 0.0)
    program = programs.instructions(scalar, lanes)
    compare(vulkan, program, arrays(program), rtol=tolerance, atol=tolerance / 8)


@pytest.mark.parametrize("lanes", (1, 2, 4))
def test_answers(vulkan: Gpu, lanes: int) -> None:
    program = programs.truths(lanes)
    values = {name: (drawn("u8", 64 * lanes, seed) % 2).astype(np.int32)
              for seed, name in enumerate("xy")}
    compare(vulkan, program, values)


@pytest.mark.parametrize("given", SCALARS)
@pytest.mark.parametrize("wanted", SCALARS)
def test_conversions(vulkan: Gpu, given: str, wanted: str) -> None:
    for lanes in (1, 2, 4):
        program = programs.conversions(given, wanted, lanes)
        values = arrays(program)["x"]
        if given in FLOATS and wanted == "u32":
            values = np.abs(values)
        if given in ("i32", "u32") and wanted == "f16":
            values = (values % 60000).astype(values.dtype)
        compare(vulkan, program, {"x": values})


def test_floats_out_of_reach_are_the_nearest_integers(vulkan: Gpu) -> None:
    b = Builder("far", 4)
    x = b.binding("x", "f32", 4, "read")
    y, z = b.binding("y", "i32", 4, "write"), b.binding("z", "u32", 4, "write")
    value = b.let(b.load(x, b.invocation))
    b.store(y, b.invocation, value.to("i32"))
    b.store(z, b.invocation, value.to("u32"))
    found = launched(vulkan, b.finish((1, 1, 1)), {
        "x": np.array([1e20, -1e20, np.inf, -3.5], np.float32)})
    assert found["y"].tolist() == [2**31 - 128, -2**31, 2**31 - 128, -3]
    assert found["z"].tolist() == [2**32 - 256, 0, 2**32 - 256, 0]


@pytest.mark.parametrize("stored", programs.LOADS)
def test_every_storage(vulkan: Gpu, plain: Gpu, stored: str) -> None:
    for scalar in programs.LOADS[stored]:
        for lanes in (1, 2, 4):
            for seen in (1, 2, 4):
                if seen >= lanes:
                    program = programs.copy(stored, scalar, lanes, seen)
                    for gpu in (vulkan, plain) if scalar != "f16" else (vulkan,):
                        compare(gpu, program, arrays(program))


@pytest.mark.parametrize("stored", ("f16", "bf16"))
@pytest.mark.parametrize("lanes", (1, 2, 4))
def test_halves_in_words(vulkan: Gpu, plain: Gpu, stored: str, lanes: int) -> None:
    program = programs.words(stored, lanes)
    for gpu in (vulkan, plain):
        compare(gpu, program, arrays(program))
        single = scalarised(program, ("x", "y"))
        compare(gpu, single, arrays(single))


@pytest.mark.parametrize("stored", ("f16", "bf16"))
@pytest.mark.parametrize("lanes", (1, 2, 4))
def test_halves_round_to_even_and_keep_nan(vulkan: Gpu, stored: str, lanes: int) -> None:
    words = np.random.default_rng(lanes).integers(0, 2**32, 4096, np.uint32)
    words[:8] = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001, 0xFF800000, 0xFFFFFFFF, 0x33000000,
                 0x80000001]
    b = Builder("halves", 64)
    x = b.binding("x", "f32", 4096, "read", lanes)
    y = b.binding("y", stored, 4096, "write", lanes)
    index = (b.group[0] * 64 + b.invocation) * lanes
    b.store(y, index, b.load(x, index, lanes))
    compare(vulkan, b.finish((64 // lanes, 1, 1)), {"x": words.view(np.float32)})


@pytest.mark.parametrize("made", (programs.control, programs.sums, programs.meeting,
                                  programs.constants))
def test_control_flow_and_barriers(vulkan: Gpu, made) -> None:
    program = made()
    values = arrays(program)
    if "n" in values:
        values["n"] %= 9
    compare(vulkan, program, values, rtol=1e-5 if made in (programs.sums, programs.meeting) else 0)


@pytest.mark.parametrize("lanes", (1, 2, 4))
@pytest.mark.parametrize("scalar", SCALARS)
def test_subgroups(vulkan: Gpu, scalar: str, lanes: int) -> None:
    subgroup = vulkan.limits.subgroup_min
    program = programs.exchanges(scalar, lanes, subgroup)
    compare(vulkan, program, arrays(program), rtol=TOLERANCE.get(scalar, 0.0),
            atol=TOLERANCE.get(scalar, 0.0), subgroup=subgroup)


# ---------------------------------------------------------------------- random programs

BINARY = ("add", "sub", "mul", "min", "max", "and", "or", "xor", "div", "rem", "shift_left",
          "shift_right")
UNARY = {"i32": ("neg", "abs", "not"), "u32": ("not",)}
ASKING = [name for name, entry in INSTRUCTIONS.items() if entry.asks]


@st.composite
def whole(draw: st.DrawFn, type: VectorType, known: list[Expr], depth: int = 3) -> Expr:
    """An expression of integers, which every device computes alike."""
    leaves = [expr for expr in known if expr.type == type]
    kind = draw(st.sampled_from(("leaf", "unary", "binary", "select", "convert"))) if depth else (
        "leaf")
    below = lambda: draw(whole(type, known, depth - 1))  # noqa: E731
    if kind == "unary":
        return op(draw(st.sampled_from(UNARY[type.scalar])), below())
    if kind == "binary":
        name, left, right = draw(st.sampled_from(BINARY)), below(), below()
        if name in ("div", "rem"):
            right = (right & 0xFF) | 1
        return op(name, left, right & 31 if name.startswith("shift") else right)
    if kind == "select":
        return select(op(draw(st.sampled_from(ASKING[2:])), below(), below()), below(), below())
    if kind == "convert":
        other = VectorType("u32" if type.scalar == "i32" else "i32", type.lanes)
        return draw(whole(other, known, depth - 1)).to(type.scalar)
    if leaves and draw(st.booleans()):
        return draw(st.sampled_from(leaves))
    return Number(draw(st.integers(0 if type.scalar == "u32" else -9, 9)), type)


@st.composite
def whole_programs(draw: st.DrawFn) -> GroupProgram:
    """Loops, branches and shared memory around integers."""
    size, lanes = draw(st.sampled_from((1, 8, 24))), draw(st.sampled_from((1, 2, 4)))
    kind = VectorType(draw(st.sampled_from(("i32", "u32"))), lanes)
    b, count = Builder("drawn", size), size * 2
    x = b.binding("x", kind.scalar, count * lanes, "read", lanes)
    bytes = b.binding("bytes", draw(st.sampled_from(("i8", "u8"))), count * lanes, "read", lanes)
    y = b.binding("y", kind.scalar, count * lanes, "write", lanes)
    part = b.shared("part", kind.scalar, size * lanes, lanes)
    place = b.let(b.group[1] * size + b.invocation)
    known: list[Expr] = [place, b.invocation, b.let(b.load(x, place * lanes, lanes)), b.let(b.load(
        bytes, place * lanes, lanes, where=b.invocation < draw(st.integers(0, 9)),
        scalar=kind.scalar))]
    total = b.variable(draw(whole(kind, known)))
    known.append(total)
    with b.loop(draw(st.integers(0, 4)), draw(st.integers(0, 3)), draw(st.integers(1, 2))) as k:
        inside = [*known, k, b.let(draw(whole(U32, [*known, k])))]
        with b.branch(draw(whole(I32, inside)) < draw(whole(I32, inside))):
            b.set(total, draw(whole(kind, inside)))
            with b.loop(draw(whole(U32, inside)) & 3, name="j") as j:
                b.set(total, total + draw(whole(kind, [*inside, j])))
        if draw(st.booleans()):
            with b.otherwise():
                b.set(total, draw(whole(kind, inside)))
        b.store(part, b.invocation * lanes, total)
        b.barrier()
        b.set(total, total ^ b.load(part, (size - 1 - b.invocation) * lanes, lanes))
        b.barrier()
    b.store(y, place * lanes, draw(whole(kind, known)),
            where=draw(whole(U32, known)) <= draw(whole(U32, known)))
    return b.finish((1, 2, 1))


@examples(60)
@given(program=whole_programs(), far=st.booleans())
def test_random_programs(vulkan: Gpu, plain: Gpu, program: GroupProgram, far: bool) -> None:
    values = arrays(program)
    values["y"] = np.zeros_like(values["x"])
    found = launched(plain if far else vulkan, program, values)["y"]
    assert found.tolist() == run(program, values, subgroup=8)["y"].tolist(), show(program)


# ---------------------------------------------------------------------- matrix units

@pytest.mark.parametrize("shared", (False, True))
def test_products_of_the_matrix_unit(vulkan: Gpu, shared: bool) -> None:
    shapes = [shape for shape in vulkan.limits.matrices
              if shape.factors in ("f16", "bf16") and shape.sums in ("f32", "f16")]
    if not shapes:
        absent("no matrix unit", "mesa-vulkan-drivers in its version 26 or later")
    for shape in shapes:
        program = programs.products(shape.rows, shape.columns, shape.depth, shape.factors,
                                    shape.sums, shared, vulkan.limits.subgroup_max)
        tolerance = 1e-4 if shape.sums == "f32" else 0.5  # of sums to 256
        compare(vulkan, program, arrays(program), atol=tolerance)
        if shared and shape.sums == "f32":
            for by_columns in (False, True):
                program = programs.products_in_words(shape.rows, shape.columns, shape.depth,
                                                     shape.factors, vulkan.limits.subgroup_max,
                                                     by_columns)
                compare(vulkan, program, arrays(program), atol=tolerance)


def test_products_of_bytes_of_the_matrix_unit(vulkan: Gpu) -> None:
    """All values of a byte, with its sign; sums wrap."""
    shapes = [shape for shape in vulkan.limits.matrices
              if (shape.factors, shape.sums) == ("i8", "i32")]
    if not shapes:
        absent("no matrix unit of bytes", "mesa-vulkan-drivers in its version 26 or later")
    for shape in shapes:
        for by_columns in (False, True):
            program = programs.products_of_bytes(shape.rows, shape.columns, shape.depth,
                                                 vulkan.limits.subgroup_max, by_columns)
            compare(vulkan, program, arrays(program))


def test_a_factor_is_read_by_the_lines_that_invocations_hold(vulkan: Gpu) -> None:
    """As the driver's own loads find it, where it is known who holds which line."""
    shape = next((each for each in vulkan.limits.matrices if each.factors == "f16"
                  and each.depth == vulkan.limits.subgroup_max), None)
    if shape is None or not vulkan.limits.right_lines:
        absent("no matrix unit whose lines are known", "mesa-vulkan-drivers, version 26 or later")
    program = programs.products_in_words(shape.rows, shape.columns, shape.depth, "f16",
                                         vulkan.limits.subgroup_max,
                                         vulkan.limits.right_lines == "columns")
    assert listing(emit(program, vulkan.limits)).count("CooperativeMatrixLoadKHR") == 1
    compare(vulkan, program, arrays(program), atol=1e-4)
