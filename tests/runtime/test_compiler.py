"""From a graph to a program: models on every level, what is asked for, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from built_modules import built
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from mixed_graphs import mixed_graphs
from native_regions import LEVELS, arrays_for, relative_error
from peers_models import TINY_VAE
from tiny_programs import MODELS, arrays

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.compiler import passes
from smalti.compiler.encode import to_bytes
from smalti.compiler.select import EARLIER
from smalti.errors import InputError, NumericsError
from smalti.graph import Graph, evaluate
from smalti.graph.operation import DTYPES
from smalti.models import vae_decoder_graph
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.program import NativeProgram

EXAMPLES = 40
@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    for name in ("SMALTI_SHOW", "SMALTI_THREADS", "SMALTI_TARGET"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def native(graph: Graph, name: str, threads: int = 1, precision: str = "f32") -> NativeProgram:
    """A program without looking at the cache."""
    image = built(graph, level(name), limits(level(name), threads), precision)
    return NativeProgram(image, threads)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("model", MODELS)
def test_models_on_every_level_and_number_of_threads(model: str, name: str) -> None:
    graph, outputs = MODELS[model](), []
    inputs, parameters = arrays(graph)
    for threads in (1, 2, 3):
        program = native(graph, name, threads)
        program.bind(parameters.__getitem__)
        outputs += [program.run(inputs), program.run(inputs)]
    for output, array in evaluate(graph, inputs, parameters).items():
        assert relative_error(outputs[0][output], array) < 1e-5
        assert {found[output].tobytes() for found in outputs} == {outputs[0][output].tobytes()}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("model", MODELS)
def test_models_in_bf16(model: str, name: str) -> None:
    graph, found = MODELS[model](), []
    inputs, parameters = arrays(graph)
    for threads in (1, 2, 3):
        program = native(graph, name, threads, "bf16")
        program.bind(parameters.__getitem__)
        found.append(program.run(inputs))
    for output, array in evaluate(graph, inputs, parameters).items():
        assert 1e-5 < relative_error(found[0][output], array) < 2e-2
        assert len({outputs[output].tobytes() for outputs in found}) == 1


@pytest.mark.parametrize("name", LEVELS)
def test_bf16_halves_what_is_stored(name: str) -> None:
    g = Graph("wide")
    x = g.apply("mat_mul", g.input("x", (64, 512)), g.parameter("w", (512, 512)))
    g.output("y", g.apply("mat_mul", x, g.parameter("v", (512, 16))))
    programs = [native(g, name, 1, precision) for precision in ("f32", "bf16")]
    f32, bf16 = (program.module for program in programs)
    assert bf16.weights_bytes == pytest.approx(f32.weights_bytes / 2, rel=1e-2)
    assert f32.arena_bytes - bf16.arena_bytes == 2 * 64 * 512
    assert [p.results[0].dtype for p in bf16.regions] == ["bf16", "f32"]
    assert "stored: bf16" in programs[1].explain(all=True)


def mixed_readers() -> Graph:
    """Parameters that are large enough to be held as halves, read in every way that kernels do."""
    g = Graph("readers")
    rows = g.apply("gather", g.parameter("table", (300, 64)), g.input("i", (8, 32), "i32"))
    x = g.apply("mat_mul", rows + g.parameter("places", (256, 64)).reshape(8, 32, 64),
                g.parameter("columns", (64, 300)))
    x = g.apply("mat_mul", x, g.parameter("rows", (64, 300)).transpose(1, 0))
    image = x.reshape(1, 16, 16, 64).transpose(0, 3, 1, 2)
    image = g.apply("conv", image, g.parameter("streamed", (64, 64, 3, 3)), pads=(1, 1, 1, 1))
    image = g.apply("conv", image, g.parameter("strided", (64, 64, 3, 3)), pads=(1, 1, 1, 1),
                    strides=(2, 2))
    image = g.apply("resize", image, scales=(1, 1, 8, 8))
    image = g.apply("conv", image, g.parameter("bound", (80, 64, 3, 3)), pads=(1, 1, 1, 1))
    image = g.apply("conv", image, g.parameter("wide", (1840, 80, 1, 1)), strides=(8, 8))
    image = g.apply("conv", image, g.parameter("depthwise", (1840, 1, 3, 3)), pads=(1, 1, 1, 1),
                    group=1840)
    g.output("y", image * g.parameter("factors", (1840, 64)).reshape(1, 1840, 8, 8))
    return g


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_weights_held_as_halves_change_no_bit_of_the_result(dtype: str, name: str) -> None:
    graph, at = mixed_readers(), (level(name), limits(level(name), 2))
    inputs, parameters = arrays(graph)
    parameters = {n: a.astype(DTYPES[dtype]) for n, a in parameters.items()}
    f32 = NativeProgram(built(graph, *at, "f32"), 2)
    halves = NativeProgram(built(graph, *at, "f32",
                                       weights=dict.fromkeys(parameters, dtype)), 2)
    for program in (f32, halves):
        program.bind(parameters.__getitem__)
    held = {slot.name: slot.dtype for slot in halves.module.slots if slot.name}
    assert held == dict.fromkeys(parameters, dtype)
    wide = {n: a.astype(np.float32) for n, a in parameters.items()}
    expected = evaluate(graph, inputs, wide)["y"]
    assert relative_error(f32.run(inputs)["y"], expected) < 1e-5
    assert halves.run(inputs)["y"].tobytes() == f32.run(inputs)["y"].tobytes()
    halves.bind(wide.__getitem__)  # other dtypes are fine where the values are
    assert halves.run(inputs)["y"].tobytes() == f32.run(inputs)["y"].tobytes()


def test_weights_held_as_halves_take_half_the_memory() -> None:
    g = Graph("wide")
    x = g.apply("mat_mul", g.input("x", (64, 512)), g.parameter("w", (512, 512)))
    g.output("y", x + g.parameter("b", (512,)))
    f32, f16 = (compile_graph(g, threads=1, weights=weights).module.weights_bytes
                for weights in ({}, {"w": "f16", "b": "f16"}))
    assert f16 == pytest.approx(f32 / 2, rel=1e-2)


@pytest.mark.parametrize("name, precision", [
    pytest.param(name, precision, marks=() if name == LEVELS[-1] else pytest.mark.sweep)
    for name in LEVELS for precision in ("f32", "bf16")])
def test_large_activations_of_a_decoder_stay_finite(name: str, precision: str) -> None:
    """f16 ends at 65504, which the activations of some decoders pass: their pictures were black."""
    graph = vae_decoder_graph(TINY_VAE, 1, 8, 8)
    inputs, parameters = arrays(graph)
    first = next(iter(n for n, v in graph.parameters.items() if len(v.shape) == 4))
    parameters[first] *= 1e5
    expected = evaluate(graph, inputs, parameters)
    program = native(graph, name, 2, precision)
    program.bind(parameters.__getitem__)
    for output, array in program.run_checked(inputs).items():
        assert relative_error(array, expected[output]) < 2e-2


@pytest.mark.parametrize("name", LEVELS)
def test_the_first_value_that_is_not_finite_is_found_in_bf16(name: str) -> None:
    g = Graph("deep")
    x = g.input("x", (64, 512))
    for scope in ("first", "second", "third"):
        with g.scope(scope):
            x = g.apply("mat_mul", x, g.parameter(scope, (512, 512)))
    g.output("y", x)
    program = native(g, name, 1, "bf16")
    program.bind(lambda name: np.full((512, 512), 1e30 if "second" in name else 1, np.float32))
    with pytest.raises(NumericsError, match="first in the contraction of second"):
        program.run_checked({"x": np.full((64, 512), 1e10, np.float32)})


@pytest.mark.parametrize("asked, why", [
    ({"precision": "f16"}, "'f16' is unknown; the CPU has auto, f32, bf16"),
    ({"weights": {"w": "f8"}}, "weights are held as f32, bf16, f16, q8, .*, not as f8"),
    ({"target": "avx1024"}, "no feature level is named 'avx1024'"),
    ({"threads": 0}, "threads is 0"), ({"threads": -2}, "threads is -2"),
])
def test_what_cannot_be_had_is_refused(asked: dict, why: str) -> None:
    g = Graph("small")
    g.output("y", g.input("x", (3,)) + 1.0)
    with pytest.raises(InputError, match=why):
        compile_graph(g, **{"threads": 1, **asked})


# ---------------------------------------------------------------------- stages


def small() -> Graph:
    g = Graph("small")
    x = g.input("x", (1, 4, 6, 6))
    with g.scope("block"):
        h = g.apply("conv", g.apply("silu", x), g.parameter("w", (8, 4, 3, 3)), pads=(1, 1, 1, 1))
    g.output("y", h)
    return g


@pytest.mark.parametrize("stage, lines", [
    ("graph", ['graph "small" {', "silu(%0)"]),
    ("fused", ["block: contraction: an output of the program"]),
    ("kernel", ["contraction", "patch", "silu"]),
    ("schedule", ["ContractionSchedule(tile_b=1"]),
    ("asm", ["vfmadd231ps" if architecture() == "x86" else "fmla", "ret"]),
])
def test_stages_are_shown(stage: str, lines: list[str], monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    compile_graph(small(), threads=1, target=LEVELS[0])
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("SMALTI_SHOW", stage)
    compile_graph(small(), threads=1, target=LEVELS[0])
    shown = capsys.readouterr().out
    assert all(line in shown for line in lines), shown


def test_an_unknown_stage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_SHOW", "graph,loops")
    with pytest.raises(InputError, match="'loops'"):
        compile_graph(small(), threads=1)


def test_progress_counts_the_kernels() -> None:
    graph, seen = MODELS["decoder"](), []
    program = compile_graph(graph, threads=1, progress=lambda *step: seen.append(step))
    count = len(program.module.kernels)  # of those that are equal one is lowered
    assert seen == [(n + 1, count) for n in range(count)]


def test_the_second_time_the_cache_has_it(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_graph(small(), threads=1, target=LEVELS[0])
    assert [p for p in own_cache.rglob("*") if p.is_file()]

    def never(*_) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("smalti.runtime.order.compiled", never)
    assert compile_graph(small(), threads=1, target=LEVELS[0]).module == first.module
    others = [{"target": name} for name in LEVELS[1:]]  # none where the CPU has a single one
    for other in ({"threads": 2}, {"precision": "bf16"}, *others):
        with pytest.raises(AssertionError, match="compiled again"):
            compile_graph(small(), **{"threads": 1, "target": LEVELS[0], **other})


def test_equal_kernels_are_compiled_once() -> None:
    g = Graph("equal")
    x = g.input("x", (1, 8, 6, 6))
    for number in range(5):
        with g.scope(number):
            x = g.apply("conv", x, g.parameter("w", (8, 8, 3, 3)), pads=(1, 1, 1, 1))
    g.output("y", x)
    image = native(g, LEVELS[0]).module
    assert len(image.launches) == len(image.regions) == 5
    # the first reads the input, the last writes the output, all in the same strides: one function
    # computes, one packs
    assert len(image.functions) == 2


def test_compiling_twice_gives_the_same_bytes() -> None:
    images = []
    for _ in range(2):
        EARLIER.clear()
        images.append(to_bytes(native(MODELS["decoder"](), LEVELS[-1]).module))
    assert images[0] == images[1]


@pytest.mark.parametrize("divisor", [0.0, -0.0, [0.0, -0.0]], ids=str)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_zeros_differ_by_their_signs_whatever_was_compiled_before(divisor) -> None:
    def quotient(by) -> Graph:
        g = Graph("quotient")
        g.output("y", g.apply("div", g.input("x", (2,)), g.constant(by)))
        return g

    x = {"x": np.array([1, -2], np.float32)}
    compile_graph(quotient(0.0), threads=1)
    graph = quotient(divisor)
    assert np.array_equal(compile_graph(graph, threads=1).run(x)["y"],
                          evaluate(graph, x, {})["y"])


# ---------------------------------------------------------------------- memory


def test_memory_is_used_again() -> None:
    g = Graph("chain")
    x = g.input("x", (1, 8, 32, 32))
    for number in range(10):
        x = g.apply("conv", x, g.parameter(f"w{number}", (8, 8, 5, 5)), pads=(2, 2, 2, 2))
    g.output("y", x)
    one = 4 * 8 * 32 * 32
    assert 2 * one <= native(g, LEVELS[0]).module.arena_bytes < 2.2 * one


def test_a_residual_is_added_in_its_place() -> None:
    g = Graph("residual")
    x = g.input("x", (1, 8, 32, 32))
    first = g.apply("conv", x, g.parameter("v", (8, 8, 1, 1)))
    for number in range(4):
        h = g.apply("conv", first, g.parameter(f"w{number}", (8, 8, 3, 3)), pads=(1, 1, 1, 1))
        first = first + g.apply("conv", h, g.parameter(f"u{number}", (8, 8, 3, 3)),
                                pads=(1, 1, 1, 1))
    g.output("y", first)
    image = native(g, LEVELS[0]).module
    assert len({region.results[0].offset for region in image.regions[::2]}) == 1
    inputs, parameters = arrays(g)
    program = native(g, LEVELS[0], 2)
    program.bind(parameters.__getitem__)
    assert relative_error(program.run(inputs)["y"], evaluate(g, inputs, parameters)["y"]) < 1e-5


READERS = {
    "transposed": lambda g, x: x + g.apply("relu", x).transpose(1, 0),
    "one column": lambda g, x: x * g.apply("slice", g.apply("relu", x), axis=1, start=2, end=3),
    "one row": lambda g, x: g.apply("slice", g.apply("relu", x), axis=0, start=0, end=1) - x,
    "in another product": lambda g, x: x + g.apply("mat_mul", g.apply("tanh", x), g.parameter(
        "v", (24, 24))),
}


@pytest.mark.parametrize("reader", READERS)
def test_an_operand_that_is_read_elsewhere_too_is_not_overwritten(reader: str) -> None:
    g = Graph("square")
    x = g.apply("mat_mul", g.input("x", (24, 24)), g.parameter("w", (24, 24)))
    g.output("y", READERS[reader](g, x))
    inputs, parameters = arrays(g)
    expected = evaluate(g, inputs, parameters)["y"]
    for threads in (1, 3):
        program = native(g, LEVELS[-1], threads)
        program.bind(parameters.__getitem__)
        assert relative_error(program.run(inputs)["y"], expected) < 1e-5


@examples(EXAMPLES)
@given(mixed_graphs(), st.sampled_from(LEVELS), st.integers(1, 3))
def test_random_graphs_share_memory_without_harm(graph: Graph, name: str, threads: int) -> None:
    note(str(graph))
    inputs, parameters = arrays(graph)
    expected = evaluate(graph, inputs, parameters)
    program = native(graph, name, threads)
    program.bind(parameters.__getitem__)
    for found in (program.run(inputs), program.run(inputs)):
        for output, array in expected.items():  # of inputs near 1; differences may cancel
            np.testing.assert_allclose(found[output], array, rtol=1e-5,
                                       atol=1e-5 * max(1, np.nanmax(np.abs(array))))


# ---------------------------------------------------------------------- odd programs


def test_programs_that_compute_nothing_or_give_what_they_were_given() -> None:
    g = Graph("odd")
    x, w = g.input("x", (2, 3)), g.parameter("w", (3, 2))
    g.input("unused", (4,))
    g.output("same", x)
    g.output("turned", x.transpose(1, 0))
    g.output("weight", w)
    g.output("weight turned", w.transpose(1, 0))
    g.output("constant", g.constant(np.float32([1, 2])))
    inputs, parameters = arrays(g)
    program = native(g, LEVELS[0])
    program.bind(parameters.__getitem__)
    for name, array in evaluate(g, inputs, parameters).items():
        np.testing.assert_array_equal(program.run(inputs)[name], array)
    g = Graph("identity")
    g.output("y", g.input("x", (3,)) + 0.0)
    program = native(g, LEVELS[0])
    assert not program.module.launches
    assert program.run({"x": np.arange(3)})["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_weights_beyond_the_budget_are_transformed_by_each_run(
        precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "GROWTH_BYTES_MIN", 0)
    monkeypatch.setattr(passes, "GROWTH_MAX", 0.35)
    g = Graph("chain")
    x = g.input("x", (1, 32, 48, 48))
    for name in "ab":
        x = g.apply("conv", x, g.parameter(name, (32, 32, 3, 3)), pads=(1, 1, 1, 1))
    g.parameter("other", (100_000 if precision == "f32" else 250_000,))  # room for one of the two
    g.output("y", x)
    inputs, parameters = arrays_for(g)
    image = built(g, level(LEVELS[0]), limits(level(LEVELS[0]), 2), precision)
    chosen = [region.schedule for region in image.regions if region.form == "contraction"]
    assert ["transformed='run'" in schedule for schedule in chosen] == [False, True]
    program = NativeProgram(image, 2)
    program.bind(parameters.__getitem__)
    error = relative_error(program.run(inputs)["y"], evaluate(g, inputs, parameters)["y"])
    assert error < (1e-5 if precision == "f32" else 1e-2)


@pytest.mark.parametrize("rows, columns, said", [
    (8, 1 << 31, "choose smaller sizes"), (1 << 20, 1 << 20, "larger than any memory"),
    (8, 1 << 58, "larger than any memory")])
def test_sizes_beyond_all_addresses_are_refused(rows: int, columns: int, said: str) -> None:
    g = Graph("large")
    x = g.input("x", (2, rows))
    g.output("y", g.apply("mat_mul", x, g.parameter("w", (rows, columns))))
    with pytest.raises(InputError, match=said):
        compile_graph(g, threads=1)
