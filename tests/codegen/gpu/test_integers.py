"""Products of integers on GPUs: the integers that the interpreter of kernels has, under schedules
of every kind, with the instruction for dot products of bytes and without, and with a matrix unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import integer_graphs
import numpy as np
import pytest
from gpu_devices import absent
from group_kernels import LIMITS, execute
from interpreted_gpu import InterpretedGpu
from webgpu_devices import webgpu  # noqa: F401

from smalti.codegen.gpu.form import MatrixLoad, Op, expressions
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.text import parse, show
from smalti.codegen.gpu.verifier import verify
from smalti.codegen.spirv.emit import emit as spirv
from smalti.codegen.spirv.text import listing
from smalti.codegen.wgsl.emit import emit as wgsl
from smalti.compiler.encode import from_bytes, to_bytes
from smalti.compiler.targets import TARGETS
from smalti.compiler.verify import verify as verified
from smalti.errors import IllegalSchedule, VerificationError
from smalti.fuse import partition
from smalti.fuse.support import lacking
from smalti.graph import Graph, evaluate
from smalti.kernel.form import Kernel
from smalti.rewrite import rewrite
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule.candidates_group import arithmetic
from smalti.schedule.group import GroupContraction, GroupLimits, MatrixShape
from smalti.schedule.space_group import can_run, schedules

USUAL = ("product", "convolution by 2", "sums as floats")
PLAIN = GroupContraction(16, 32, 32, 2, 4, dtype="i8", weights="i8")
CHANGES = {
    "plain": {}, "ahead": {"ahead": True}, "two buffers": {"ahead": True, "buffers": 2},
    "ways": {"tile_m": 8, "tile_n": 16, "ways": 2}, "split": {"split": 2},
    "direct": {"tile_m": 4, "tile_n": 16, "tile_k": 64, "block_m": 4, "direct": True, "ways": 4},
}
SHAPES = tuple(MatrixShape(*shape, "i8", "i32")
               for shape in ((8, 8, 8), (16, 16, 16), (8, 16, 32), (16, 16, 32)))
UNIT = replace(LIMITS, shared_bytes=48 << 10, invocations=1024, subgroup_min=8, subgroup_max=32,
               subgroup_choice=True, subgroup_operations=True, matrices=SHAPES)
"""A device whose matrix unit multiplies bytes."""
MATRIX = replace(PLAIN, tile_m=16, tile_n=16, tile_k=16, block_m=16, block_n=16,
                 matrix="16x16x16", subgroup=32)
SMALL = replace(MATRIX, block_m=8, block_n=8, matrix="8x8x8", subgroup=8)
MATRICES = {
    "matrices": MATRIX, "small matrices": replace(SMALL, tile_n=32, block_n=16, ahead=True),
    "spare invocations": replace(SMALL, tile_m=40, tile_n=24, tile_k=32, ahead=True),
    "split": replace(MATRIX, split=2, tile_k=32, matrix="16x16x32"),
    "two buffers": replace(MATRIX, tile_m=16, tile_n=32, tile_k=32, block_m=8, block_n=32,
                           matrix="8x16x32", subgroup=16, ahead=True, buffers=2),
    "placed": replace(SMALL, tile_n=8, direct=True),
    "placed ahead": replace(MATRIX, tile_m=8, tile_k=64, block_m=8, matrix="8x16x32", subgroup=16,
                            ahead=True, direct=True),
}


def sums_as_floats() -> Graph:
    """A product whose result is what its sums are, as f32."""
    g = Graph("sums as floats")
    x, w = g.input("x", (18, 80), "u8"), g.parameter("w", (80, 24), "i8")
    sums = g.apply("mat_mul_integer", x, w, g.constant(3, "u8"), g.constant(0, "i8"))
    g.output("y", g.apply("cast", sums, to="f32"))
    return g


GRAPHS = {
    "product": lambda: integer_graphs.product(19, 72, 45),
    "product of both signs": lambda: integer_graphs.product(
        17, 68, 36, ("i8", "u8"), (-7, 128), "bytes"),
    "convolution": lambda: integer_graphs.convolution(8, 5, 13, zeros=(200, 0), behind="f32"),
    "convolution by 2": lambda: integer_graphs.convolution(
        12, 6, 8, ("i8", "i8"), (5, 0), "bytes", stride=2),
    "sums as floats": lambda: sums_as_floats(),
    "pixels": lambda: integer_graphs.convolution(48, 4, 12, ("u8", "u8"), (128, 128), window=1),
}


def contractions(graph: Graph) -> Iterator[Kernel]:
    """Those of integers, as the target has them."""
    functions = TARGETS["spirv"].functions
    regions = partition(rewrite(graph, lambda node: not lacking(node, functions)), (),
                        functions).regions
    found = [each.kernel for each in regions if each.kernel.form == "contraction"]
    assert found, graph
    yield from found


def values(batch: int = 2, dtypes: tuple[str, str] = ("u8", "i8"), zero: int = 9) -> Graph:
    """A product of integers that are both computed; zero points are `zero`, and 0 or 128."""
    g = Graph("values")
    a, b = g.input("a", (batch, 9, 72), dtypes[0]), g.input("b", (batch, 72, 20), dtypes[1])
    points = g.constant(zero, dtypes[0]), g.constant(128 if dtypes[1] == "u8" else 0, dtypes[1])
    g.output("y", g.apply("mat_mul_integer", a, b, *points))
    return g


def quantised_here() -> Graph:
    """A product of what becomes bytes on the way to it."""
    g = Graph("quantised")
    x = g.apply("round", g.input("x", (11, 64)) * 40.0) + g.constant(100.0)
    x = g.apply("min", g.apply("max", x, g.constant(0.0)), g.constant(255.0))
    y = g.apply("mat_mul_integer", g.apply("cast", x, to="u8"), g.parameter("w", (64, 24), "i8"),
                g.constant(100, "u8"), g.constant(0, "i8"))
    g.output("y", g.apply("cast", y, to="f32") * g.parameter("s", (24,)))
    return g


def wide() -> Graph:
    """A product whose columns are whole matrices, so that each is read where it is."""
    return integer_graphs.product(21, 80, 48, ("u8", "i8"), (31, 0), "f32")


def check(kernel: Kernel, schedule: GroupContraction, gpu: Gpu | None = None,
          limits: GroupLimits = LIMITS) -> None:
    limits = gpu.limits if gpu else limits
    schedule.check(limits)
    for step in lower(kernel, schedule, limits).steps:
        verify(step, limits)
        assert parse(show(step)) == step
    found, expected = execute(kernel, schedule, {}, limits, schedule.subgroup or 32, gpu)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=f"{name}, {schedule}")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("build", [
    pytest.param(build, id=name, marks=() if name in USUAL else pytest.mark.sweep)
    for name, build in GRAPHS.items()])
def test_sums_are_those_of_the_standard(build, change: dict) -> None:
    for kernel in contractions(build()):
        check(kernel, replace(PLAIN, **change))


@pytest.mark.parametrize("build", [values, lambda: values(1, ("i8", "u8")), quantised_here])
def test_factors_that_are_computed(build) -> None:
    for kernel in contractions(build()):
        for change in ({}, {"split": 2}):
            check(kernel, replace(PLAIN, **change))


@pytest.mark.parametrize("schedule", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("build", [
    pytest.param(build, id=name, marks=() if name in USUAL else pytest.mark.sweep)
    for name, build in {**GRAPHS, "wide": wide}.items()])
def test_the_matrix_unit_gives_the_same_integers(build, schedule: GroupContraction) -> None:
    for kernel in contractions(build()):
        if schedule.direct and dict(kernel.stages[-1].axes)["o"] % schedule.tile_n:
            with pytest.raises(IllegalSchedule, match="reach behind the last"):
                lower(kernel, schedule, UNIT)
        else:
            check(kernel, schedule, limits=UNIT)


@pytest.mark.parametrize("name", ["placed", "placed ahead"])
def test_matrices_of_bytes_are_read_where_they_are(name: str) -> None:
    (kernel,) = contractions(wide())
    (step,) = lower(kernel, MATRICES[name], UNIT).steps
    assert any(isinstance(each, MatrixLoad) and each.buffer == "weight"
               for each in expressions(step.body))
    check(kernel, MATRICES[name], limits=UNIT)


@pytest.mark.parametrize("build", [
    values, lambda: values(1, ("i8", "u8")), lambda: values(zero=0), quantised_here],
    ids=["values", "signs", "-128", "quantised"])
def test_factors_that_are_computed_in_the_matrix_unit(build) -> None:
    """What bytes are more than they mean is taken away by products with a constant, which is no
    byte where it is 128."""
    for kernel in contractions(build()):
        for name in ("matrices", "spare invocations", "split", "two buffers"):
            check(kernel, MATRICES[name], limits=UNIT)


@pytest.mark.parametrize(("change", "why"), [
    ({"matrix": "16x16x8"}, "no 16x16x8 of i8"), ({"tile_k": 24}, "whole vectors of 4"),
    ({"weights": "f32"}, "bytes are multiplied with bytes"), ({"ways": 2, "tile_k": 32}, "shared"),
    ({"dtype": "f16", "weights": "f16"}, "does not compute with f16")])
def test_impossible_schedules_of_the_matrix_unit_are_illegal(change: dict, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        replace(MATRIX, **change).check(UNIT)
    MATRIX.check(UNIT)


def test_schedules_are_of_bytes_and_give_the_same_bytes() -> None:
    (kernel,) = contractions(GRAPHS["product"]())
    found = list(schedules(kernel, LIMITS, "f16"))
    assert {(s.dtype, s.weights, s.matrix) for s in found} == {("i8", "i8", "")}
    assert len({arithmetic(kernel, s) for s in found}) == 1 < len(found)


def test_dot_products_are_instructions_where_the_device_has_them() -> None:
    (kernel,) = contractions(GRAPHS["product"]())
    (program,) = lower(kernel, PLAIN, LIMITS).steps
    assert any(isinstance(each, Op) and each.instruction == "dot_i8"
               for each in expressions(program.body))
    texts = {has: (listing(spirv(program, replace(LIMITS, dot_i8=has))),
                   wgsl(program, replace(LIMITS, dot_i8=has))) for has in (True, False)}
    assert "SDot" in texts[True][0] and "SDot" not in texts[False][0]
    assert "BitFieldSExtract" in texts[False][0]
    assert "dot4I8Packed(" in texts[True][1] and "fn dot_i8(" not in texts[True][1]
    assert "dot4I8Packed(" not in texts[False][1] and "fn dot_i8(" in texts[False][1]


def test_products_of_integers_in_the_matrix_unit(vulkan: Gpu) -> None:
    shapes = [shape for shape in vulkan.limits.matrices if shape.factors == "i8"]
    if not shapes:
        absent("no matrix unit of bytes", "mesa-vulkan-drivers in its version 26 or later")
    fitting = [each for each in MATRICES.values() if can_run(each, vulkan.limits)]
    assert fitting
    for build in (wide, GRAPHS["convolution by 2"], values):
        for kernel in contractions(build()):
            for schedule in fitting if build is wide else fitting[:1]:
                check(kernel, schedule, vulkan)


LAYERS = {
    "product": lambda: integer_graphs.product(256, 512, 256, ("u8", "i8"), (31, 0), "bytes"),
    "convolution": lambda: integer_graphs.convolution(64, 14, 96, ("u8", "u8"), (77, 128), "bytes"),
}


@pytest.mark.parametrize(("name", "device"), [
    ("product", "interpreted"), ("convolution", "interpreted"), ("product", "vulkan")])
def test_quantised_layers_in_the_matrix_unit(name: str, device: str,
                                             request: pytest.FixtureRequest) -> None:
    """A whole program, where the model of the device takes matrices by itself. A driver of the CPU
    compiles the convolution for two minutes."""
    gpu = InterpretedGpu(replace(UNIT, matrices=SHAPES[1:2], subgroup_min=32)) if (
        device == "interpreted") else request.getfixturevalue(device)
    if not any(shape.factors == "i8" for shape in gpu.limits.matrices):
        absent("no matrix unit of bytes", "mesa-vulkan-drivers in its version 26 or later")
    graph = LAYERS[name]()
    program = compile_for(gpu, graph, precision="f32")
    assert [each.subgroup for each in program.module.shaders] == [gpu.limits.subgroup_max]
    given, weights = integer_graphs.operands(graph)
    program.bind(weights)
    (expected,) = evaluate(graph, given, weights).values()
    np.testing.assert_array_equal(program.run(given)["y"], expected)


def test_a_plan_keeps_how_bytes_are_packed_and_no_other_blocks_are_taken() -> None:
    gpu = InterpretedGpu(replace(UNIT, matrices=SHAPES[1:2], subgroup_min=32))
    module = compile_for(gpu, LAYERS["product"](), precision="f32").module
    assert from_bytes(to_bytes(module)) == module
    (number,) = [n for n, slot in enumerate(module.slots) if slot.packing]
    slot = module.slots[number]
    assert slot.packing.layout.block == 16
    for block in (0, 2, 24):
        layout = replace(slot.packing.layout, block=block)
        other = replace(slot, packing=replace(slot.packing, layout=layout))
        with pytest.raises(VerificationError, match="packing to PackedBytes"):
            verified(replace(module, slots=[*module.slots[:number], other,
                                            *module.slots[number + 1:]]))


@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_products_of_integers_on_a_driver(device: str, request: pytest.FixtureRequest) -> None:
    gpu: Gpu = request.getfixturevalue(device)
    assert gpu.limits.dot_i8
    for name in ("product", "convolution by 2"):
        (kernel,) = contractions(GRAPHS[name]())
        check(kernel, PLAIN, gpu)
    check(kernel, replace(PLAIN, split=2), gpu)
