"""Products with quantised weights on GPUs: every format on every path, in the interpreter of group
programs and on the drivers at hand; how they are laid out, and what they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contraction_graphs import linear
from hypothesis import given
from hypothesis import strategies as st
from interpreted_gpu import InterpretedGpu
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.quantised import SHORT_MAX, PackedGroups, shortened
from smalti.codegen.gpu.target import ran
from smalti.compiler.check import operands, relative_error, strided
from smalti.compiler.encode import from_bytes, to_bytes
from smalti.compiler.targets import TARGETS
from smalti.compiler.verify import verify
from smalti.errors import IllegalSchedule, InputError, VerificationError
from smalti.fuse import partition
from smalti.fuse.precision import held
from smalti.graph import Graph
from smalti.graph.quantised import FORMATS, Quantised, quantised
from smalti.kernel import interpreter
from smalti.kernel.form import Kernel
from smalti.runtime.doctor.beside import expectation_of_cpu
from smalti.runtime.doctor.kernels import packed
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Copy, Gpu
from smalti.runtime.gpu.program import DeviceProgram
from smalti.schedule import GroupLimits, choose_group
from smalti.schedule.group import GroupContraction, MatrixShape

PLAIN = GroupContraction(16, 16, 16, 4, 4)
MATRIX = replace(PLAIN, block_m=16, block_n=16, pad=8, dtype="f16", matrix="16x16x16", subgroup=32)
PATHS = {
    "plain": PLAIN,
    "ahead": replace(PLAIN, tile_m=8, block_m=2, block_n=8, tile_k=8, ahead=True),
    "two buffers": replace(PLAIN, ahead=True, buffers=2),
    "ways": replace(PLAIN, ways=4),
    "split": replace(PLAIN, tile_k=8, split=2),
    "direct": replace(PLAIN, tile_m=2, tile_k=16, block_m=2, ways=2, direct=True),
    "prepared": replace(PLAIN, prepared=True),
    "uneven": replace(PLAIN, tile_m=12, tile_n=24, tile_k=24, pad=0),
    "halves": replace(PLAIN, dtype="f16"),
    "matrices": MATRIX,
    "small matrices": replace(MATRIX, tile_m=16, tile_n=32, tile_k=8, block_m=8, matrix="8x8x8",
                              subgroup=8, ahead=True),
    "wide matrices": replace(MATRIX, tile_n=32, block_m=8, block_n=32, matrix="8x16x16",
                             subgroup=16, ahead=True, buffers=2),
}
"""Every way in which a factor comes to be staged, or not."""
LIMITS = GroupLimits(shared_bytes=48 << 10, invocations=1024, bindings=16, f16=True,
                     subgroup_choice=True,
                     matrices=tuple(MatrixShape(*shape, "f16", "f32")
                                    for shape in ((8, 8, 8), (16, 16, 16), (8, 16, 16))))


def window(channels: int, out: int, size: int) -> Graph:
    """A convolution of silu(x)."""
    g = Graph("window")
    g.output("y", g.apply(
        "conv", g.apply("silu", g.input("x", (1, channels, 5, 4))),
        g.parameter("w", (out, channels, size, size)), pads=(size // 2,) * 4))
    return g


GRAPHS = {"linear": linear((2, 9), 64, 36), "gated": linear((7,), 96, 40, "geglu"),
          "3x3": window(64, 10, 3), "1x1": window(32, 12, 1), "5x5": window(32, 9, 5)}


def kernel_of(graph: Graph, dtype: str) -> Kernel:
    """The first product of a graph, with weights held as `dtype`."""
    found = held(partition(graph), dict.fromkeys(graph.parameters, dtype), elements_min=0)
    kernel = next(r.kernel for r in found.regions if r.kernel.form == "contraction")
    assert kernel.buffer("weight").dtype == dtype
    return kernel


def error(kernel: Kernel, schedule: GroupContraction, limits: GroupLimits = LIMITS,
          gpu: Gpu | None = None) -> float:
    """How far off a kernel is under a schedule, relative to its result."""
    memory, given = operands(kernel, TARGETS["spirv"])
    memory = ran(lower(kernel, schedule, limits), kernel, memory,
                 lambda step, bound: launched(gpu, step, bound) if gpu else
                 run(step, bound, subgroup=schedule.subgroup or 32))
    return max(relative_error(strided(memory[name], kernel.buffer(name)), array)
               for name, array in interpreter.run(kernel, given).items())


def allowed(schedule: GroupContraction) -> float:
    return 2e-3 if schedule.dtype == "f16" else 1e-5


@pytest.mark.sampled
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", PATHS)
def test_every_format_on_every_path(name: str, dtype: str, graph: str) -> None:
    schedule = replace(PATHS[name], weights=dtype)
    assert error(kernel_of(GRAPHS[graph], dtype), schedule) < allowed(schedule)


@pytest.mark.parametrize("language", ["vulkan", "webgpu"])
@pytest.mark.parametrize("dtype", ["q8", "q4_min", "q8_16"])
def test_drivers_compute_the_same(language: str, dtype: str,
                                  request: pytest.FixtureRequest) -> None:
    gpu: Gpu = request.getfixturevalue(language)
    for graph, names in (("3x3", ("ahead", "two buffers")), ("gated", ("plain", "direct")),
                         ("linear", ("ways", "split"))):
        for name in names:
            schedule = replace(PATHS[name], weights=dtype)
            assert error(kernel_of(GRAPHS[graph], dtype), schedule, gpu.limits, gpu) < 1e-5


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_what_is_chosen_holds_them_as_they_are(dtype: str, precision: str) -> None:
    for limits in (LIMITS, GroupLimits(bindings=16)):
        for graph in (GRAPHS["3x3"], linear((1,), 64, 48), linear((20,), 32, 80, "geglu")):
            kernel = kernel_of(graph, dtype)
            schedule = choose_group(kernel, limits, precision)
            assert schedule.weights == dtype
            assert error(kernel, schedule, limits) < allowed(schedule)


def test_the_first_use_of_a_device_compares_them(vulkan: Gpu) -> None:
    """What the doctor expects of such a kernel is what a sound device computes."""
    for graph, dtype in (("3x3", "q8"), ("gated", "q4_min")):
        kernel = kernel_of(GRAPHS[graph], dtype)
        memory, expected = expectation_of_cpu(kernel, 0)
        low = lower(kernel, choose_group(kernel, vulkan.limits), vulkan.limits)
        bound = packed(kernel, low, memory)
        assert low.packed.bytes == bound["weight"].nbytes
        found = ran(replace(low, packed=None), kernel, bound,
                    lambda step, bound: launched(vulkan, step, bound))
        for name, array in expected.items():
            assert relative_error(strided(found[name], kernel.buffer(name)), array) < 1e-5


@pytest.mark.parametrize("change, why", [
    ({"weights": "f16"}, "a weight of q4 is not held as f16"),
    ({"weights": "q8"}, "a weight of q4 is not held as q8"),
    ({"tile_k": 12}, "chunks of 12 are no whole words of q4"),
    ({"tile_k": 8, "tile_m": 2, "block_m": 2, "ways": 2, "direct": True}, "no whole words of q4"),
])
def test_impossible_schedules_are_refused(change: dict, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel_of(GRAPHS["linear"], "q4"), replace(PLAIN, weights="q4") if not change else
              replace(PLAIN, **{"weights": "q4", **change}), LIMITS)


@pytest.mark.parametrize("dtype, bits", [("q8", 8.5), ("q8_min", 9), ("q8_16", 9), ("q4", 4.5),
                                         ("q4_min", 5), ("q4_16", 5), ("q4_16_min", 6)])
def test_they_take_their_codes_and_halves_for_scales(dtype: str, bits: float) -> None:
    for taps in (1, 9):
        layout = PackedGroups("weight", dtype, 1, 320, 320, taps, 320)
        assert bits <= 8 * layout.bytes / (320 * 320 * taps) < 1.02 * bits


def test_scales_are_exact_wherever_f16_is() -> None:
    """Also those that are no normal numbers of f16, which drivers may take for 0."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    some = every[np.abs(every) <= SHORT_MAX]
    short = shortened(some).astype(np.uint32)
    assert ((short & 0x7FFF == 0) | (short & 0x7C00 > 0)).all()
    placed = (short & 0x8000) << 16 | (short & 0x7FFF) << 13
    np.testing.assert_array_equal(placed.view(np.float32) * np.float32(2.0 ** 102), some)


@given(st.floats(2.0 ** -24, SHORT_MAX, width=32), st.sampled_from((1, -1)))
def test_other_scales_are_rounded_as_to_f16(value: float, sign: int) -> None:
    short = shortened(np.float32([sign * value])).astype(np.uint32)
    placed = (short & 0x8000) << 16 | (short & 0x7FFF) << 13
    found = placed.view(np.float32)[0] * np.float32(2.0 ** 102)
    assert abs(found - sign * value) <= 2.0 ** -11 * value


def test_scales_that_are_too_large_are_refused() -> None:
    layout = PackedGroups("weight", "q8", 1, 4, 32, 1, 4)
    weight = quantised(np.full((4, 32), 20000, np.float32), "q8")
    with pytest.raises(InputError, match="weight 'w' has groups with a scale or minimum of 157.5"):
        layout.pack(weight.words.reshape(4, 1, -1), "weight 'w'")


# ---------------------------------------------------------------------- programs


def program_of(dtype: str, gpu: Gpu | None = None, columns: int = 64) -> DeviceProgram:
    """A linear layer of 128 channels, of which the second half is a layer of its own."""
    g = Graph("halves")
    x = g.input("x", (9, 128))
    weight = g.apply("transpose", g.parameter("w", (2 * columns, 128)), perm=(1, 0))
    for name, start in (("first", 0), ("second", columns)):
        part = g.apply("slice", weight, axis=1, start=start, end=start + columns)
        g.output(name, g.apply("mat_mul", x, part))
    return compile_for(gpu or InterpretedGpu(), g, precision="f32", weights={"w": dtype})


@pytest.mark.parametrize("dtype", ["q8", "q4_min"])
def test_a_program_binds_words_and_parts_of_them(dtype: str) -> None:
    program = program_of(dtype, columns=128)
    random = np.random.default_rng(3)
    form, groups = FORMATS[dtype], 256 * 128 // FORMATS[dtype].group
    heads = random.standard_normal((form.heads, groups)).astype(np.float16).astype(np.float32)
    codes = random.integers(0, 1 << form.bits, (groups, form.group))
    weight = Quantised.of(dtype, codes, heads[0], heads[-1], (256, 128))
    x = random.standard_normal((9, 128), np.float32)
    for values in (weight, weight.floats()):  # which are rounded again
        program.bind({"w": values})
        found = program.run({"x": x})
        expected = x.astype(np.float64) @ weight.floats().T
        whole = np.concatenate([found["first"], found["second"]], axis=1)
        assert relative_error(whole, expected) < (1e-6 if values is weight else 3e-2)
    assert {slot.dtype for slot in program.module.slots} == {dtype}
    assert program.weights_bytes == groups * (4 * form.words - 2 * form.heads)


@pytest.mark.parametrize("change", [
    {"format": "q8_min"}, {"format": "q5"}, {"taps": 3}, {"c": 100}, {"c": 64}, {"columns": 0},
    {"columns": 132}, {"parts": 2}])
def test_layouts_that_do_not_fit_are_found(change: dict) -> None:
    module = program_of("q8", columns=128).module
    assert from_bytes(to_bytes(module)) == module
    verify(module)
    slot = module.slots[0]
    packing = replace(slot.packing, layout=replace(slot.packing.layout, **change))
    module.slots[0] = replace(slot, packing=packing)
    with pytest.raises(VerificationError, match="packing to PackedGroups"):
        verify(module)


@pytest.mark.parametrize("dtype, columns, bits", [("q8", 1024, 8.5), ("q4", 2048, 4.5)])
def test_budgets_and_streams_count_them_as_they_are(dtype: str, columns: int, bits: float) -> None:
    g, size = Graph("two"), int(columns * 1024 * bits / 8)
    x = g.input("x", (1, 1024))
    for name in ("a", "b"):
        weight = g.apply("transpose", g.parameter(name, (columns, 1024)), perm=(1, 0))
        g.output(f"y{name}", g.apply("mat_mul", x, weight))
    random = np.random.default_rng(5)
    given = {name: quantised(random.standard_normal((columns, 1024), np.float32), dtype)
             for name in "ab"}
    row, found = random.standard_normal((1, 1024), np.float32), []
    for most, streamed in ((None, 0), (2 * size, 0), (2 * size - 1, 1), (0, 2)):
        program = compile_for(InterpretedGpu(), g, precision="f32",
                              weights=dict.fromkeys("ab", dtype))
        assert program.weights_bytes == 2 * size
        program.bind(given, bytes_max=most)
        found.append(np.concatenate(list(program.run({"x": row}).values())).tobytes())
        (part,) = (part for parts in program._parts.values() for part in parts)
        copies = [each.bytes for each in part.recording.launches if isinstance(each, Copy)]
        assert copies == [size] * streamed
    assert len(set(found)) == 1
