"""Contractions of integers: exactly the interpreter's, on every level that multiplies them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given, note
from hypothesis import strategies as st
from integer_graphs import code_product, convolution, drawn_convolution, operands, product
from native_regions import INTEGER_LEVELS, PieceRunner, fewer_at_once, run_regions

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.cpu.weights import IntegerPanels
from smalti.codegen.levels import level
from smalti.compiler.targets import TARGETS
from smalti.errors import IllegalSchedule
from smalti.fuse import held, partition
from smalti.fuse.support import lacking
from smalti.graph import Graph, Value, evaluate
from smalti.graph.operation import DTYPES
from smalti.graph.operations.contraction import word_steps
from smalti.graph.quantised import FORMATS, quantised
from smalti.kernel.form import Kernel
from smalti.rewrite import rewrite
from smalti.runtime import Program, compile_graph
from smalti.runtime.cpu.architecture import architecture
from smalti.schedule import ContractionSchedule, choose
from smalti.schedule import parse as parse_schedule
from smalti.schedule.schedule import Direct, InPlace

EXAMPLES = 20
BEHIND = ("", "scaled", "bytes")


def check(graph: Graph, name: str, pick=choose, bounds=None) -> PieceRunner:
    """Assert that kernels give the very numbers of the graph's interpreter."""
    inputs, parameters = operands(graph)
    runner = PieceRunner(parameters, name, "f32", pick, bounds)
    found = run_regions(graph, inputs, runner)["y"]
    assert np.array_equal(found, evaluate(graph, inputs, parameters)["y"]), runner.schedules
    return runner


DTYPES_AND_ZEROS = [(("u8", "i8"), (0, 0)), (("u8", "i8"), (200, 0)), (("i8", "i8"), (0, 0)),
                    (("i8", "i8"), (-5, 0)), (("u8", "u8"), (7, 128)), (("i8", "u8"), (1, 9)),
                    (("u8", "i8"), (7, -2))]
OF_WORDS = DTYPES_AND_ZEROS[-2:]
"""Factors that no bytes are, less their zero points."""
WORD_LEVELS = [name for name in INTEGER_LEVELS if level(name).words]


def program_gives_the_same(graph: Graph, name: str) -> None:
    """Assert that a program gives the very numbers of the graph's interpreter."""
    inputs, parameters = operands(graph)
    program = compile_graph(graph, target=name, threads=1)
    program.bind(parameters)
    assert np.array_equal(program.run(inputs)["y"], evaluate(graph, inputs, parameters)["y"])


@pytest.mark.sampled
@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("dtypes, zeros", DTYPES_AND_ZEROS)
def test_zero_points_of_both_factors(dtypes: tuple[str, str], zeros: tuple[int, int],
                                     name: str) -> None:
    """Of levels that multiply bytes alone, f32 multiplies those that are none."""
    for behind in BEHIND:
        for graph in (product(9, 37, 21, dtypes, zeros, behind),
                      convolution(12, 7, 19, dtypes, zeros, behind)):
            if name in WORD_LEVELS or (dtypes, zeros) not in OF_WORDS:
                check(graph, name)
            else:
                program_gives_the_same(graph, name)


CASES = {
    "in chunks": product(5, 4096, 40), "one row": product(1, 64, 70),
    "in place": product(40, 64, 33, behind="bytes"), "few columns": product(30, 36, 3),
    "by 2": convolution(16, 9, 20, stride=2, behind="bytes"),
    "1 x 1": convolution(16, 6, 40, window=1, behind="scaled"),
    "groups": convolution(24, 5, 20, group=2), "window in chunks": convolution(512, 4, 18),
    "signed in chunks": convolution(512, 4, 18, ("i8", "i8"), (-7, 0), "bytes"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_shapes(case: str, name: str) -> None:
    runner = check(CASES[case], name)
    (schedule,) = runner.schedules if case != "groups" else runner.schedules[:1]
    assert schedule.factors == runner.level.integers
    if case == "in place":  # with 16 registers what rounds to bytes leaves too few rows for it
        expected = schedule.factors == "quads" and runner.level.vectors > 16
        assert isinstance(schedule.algorithm, InPlace) == expected


@pytest.mark.parametrize("depth", [64, 128, 200, 331])
@pytest.mark.parametrize("name", INTEGER_LEVELS)
def test_bytes_are_staged_as_they_are(name: str, depth: int) -> None:
    """By whole vectors, and what is left; in chunks, too."""
    def staged(chunk: int):
        def pick(kernel: Kernel, bounds, *more) -> ContractionSchedule:
            found = choose(kernel, bounds, *more)
            step = replace(found, unroll=1).step
            return replace(found, chunk=chunk or -(-depth // step) * step, unroll=1,
                           rows=min(found.rows, bounds.rows(found.vectors, 1)), algorithm=Direct())
        return pick

    for chunk in (0, depth // 2 if depth % 8 == 0 else 0):
        runner = check(product(20, depth, 40), name, staged(chunk))
    if name.startswith("avx") and runner.level.integers == "quads" and depth % 128 == 0:
        kernel, here = partition(product(20, depth, 40)).regions[0].kernel, level(name)
        (step,) = lower(kernel, staged(0)(kernel, limits(here)), here).steps
        assert "vcvt" not in TARGETS[name].listing(step)


@pytest.mark.parametrize("name", INTEGER_LEVELS)
def test_products_of_computed_factors(name: str) -> None:
    """Both factors of heads, and a zero point that a run computes."""
    for dtype in ("i8", "u8"):
        g = Graph("heads")
        a, b = g.input("a", (2, 3, 17, 20), "u8"), g.input("b", (2, 3, 20, 19), dtype)
        g.output("y", g.apply("mat_mul_integer", a, b, g.constant(9, "u8"), g.constant(0, dtype)))
        (check if name in WORD_LEVELS or dtype == "i8" else program_gives_the_same)(g, name)
    g = Graph("dynamic")
    a, b, zero = g.input("a", (17, 20), "u8"), g.parameter("b", (20, 19), "i8"), g.input(
        "z", (), "u8")
    g.output("y", g.apply("mat_mul_integer", a, b, zero, g.constant(0, "i8")))
    (check if name in WORD_LEVELS else program_gives_the_same)(g, name)


@pytest.mark.parametrize("name", INTEGER_LEVELS)
def test_slices_of_the_sums_are_combined(name: str) -> None:
    g = Graph("gated")
    y = g.apply("cast", g.apply(
        "mat_mul_integer", g.input("a", (13, 32), "i8"), g.parameter("b", (32, 80), "i8"),
        g.constant(5, "i8"), g.constant(0, "i8")), to="f32")
    g.output("y", g.apply("slice", y, axis=1, start=0, end=40)
             + g.apply("slice", y, axis=1, start=40, end=80))
    assert len(partition(g).regions) == 1
    check(g, name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("dtypes, zero", [(("u8", "i8"), 0), (("u8", "i8"), 9), (("i8", "u8"), -5)])
def test_depthwise_convolutions_read_bytes(dtypes: tuple[str, str], zero: int, name: str) -> None:
    for channels, stride in ((20, 1), (33, 2)):
        for behind in BEHIND:
            graph = convolution(channels, 9, channels, dtypes, (zero, 0), behind, 3, stride,
                                channels)
            assert [region.kernel.form for region in partition(graph).regions] == ["depthwise"]
            check(graph, name)


def layers(signed: bool) -> Graph:
    """A quantised model: 3 x 3, depthwise and 1 x 1 convolutions, a sum of two paths, a product."""
    g = Graph("layers")
    dtype, zero = ("i8", -128) if signed else ("u8", 0)
    low, high = (-128.0, 127.0) if signed else (0.0, 255.0)

    def real(x: Value, scale: float, zero: int) -> Value:
        return (g.apply("cast", x, to="f32") - g.constant(float(zero))) * g.constant(scale)

    def quantised(y: Value, scale: float, zero: int) -> Value:
        y = g.apply("round", y * g.constant(1 / scale)) + g.constant(float(zero))
        y = g.apply("min", g.apply("max", y, g.constant(low)), g.constant(high))
        return g.apply("cast", y, to=dtype)

    def layer(x: Value, point: int, out: int, window: int, group: int, to: int) -> Value:
        name = f"w{len(g.parameters)}"
        w = g.parameter(name, (out, x.shape[1] // group, window, window), "i8")
        y = g.apply("conv", real(x, 0.125, point), real(w, 2.0 ** -6, 0), g.parameter(
            f"b{name}", (out,)), group=group, pads=(window // 2,) * 4)
        return quantised(g.apply("relu", y) if to == zero else y, 16.0, to)

    x = layer(g.input("x", (1, 16, 8, 8), dtype), 5, 40, 3, 1, zero)
    wide = layer(layer(x, zero, 40, 3, 40, zero), zero, 40, 1, 1, 7)
    both = quantised(real(wide, 0.125, 7) + real(x, 0.125, zero), 0.25, 3)
    rows = both.reshape(1, 40, 64).transpose(0, 2, 1)
    w = g.parameter("w", (24, 40), "i8")
    g.output("y", g.apply("mat_mul", real(rows, 0.25, 3), real(w, 0.5, 0).transpose(1, 0)))
    return g


@pytest.mark.sampled
@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("signed", [False, True])
def test_quantised_layers_pass_bytes_on(signed: bool, name: str) -> None:
    """All scales are powers of two, so that nothing but integers is rounded."""
    graph = layers(signed)
    inputs, parameters = operands(graph)
    parameters = {n: a if a.dtype == np.int8 else np.round(100 * a) for n, a in {
        **parameters, **{n: np.linspace(-1, 1, v.shape[0]).astype(np.float32)
                         for n, v in graph.parameters.items() if v.dtype == "f32"}}.items()}
    program = compile_graph(graph, target=name, threads=1)
    program.bind(parameters)
    found = program.run(inputs)["y"]
    assert np.array_equal(found, evaluate(graph, inputs, parameters)["y"])
    regions = partition(rewrite(graph, lambda node: not lacking(node, TARGETS[name].functions)),
                        functions=TARGETS[name].functions).regions
    stored = {view.storage.dtype for region in regions for view in region.views.values()
              if view.storage.kind == "arena" and region.views["out"] is view}
    assert stored == {"i8" if signed else "u8", "f32"} and len(regions) < 12


@pytest.mark.parametrize("name", INTEGER_LEVELS)  # none where no level multiplies integers: NEON
@given(data=st.data(), pair=st.sampled_from(DTYPES_AND_ZEROS), behind=st.sampled_from(BEHIND))
@examples(EXAMPLES)
def test_any_schedule_gives_the_same(data, name: str, pair, behind: str) -> None:
    """Also with caches so small that sums go through many chunks."""
    (dtypes, zeros), draw = pair, data.draw
    assume(name in WORD_LEVELS or pair not in OF_WORDS)
    graph, bounds = drawn_convolution(draw, name, dtypes, zeros, behind)
    note(str(graph))
    check(graph, name, fewer_at_once(draw), bounds)


def of_codes(dtype: str, rows: int, depth: int, columns: int, target: str, signed: bool = False,
             form: str = "", threads: int = 1) -> tuple[np.ndarray, np.ndarray, Program]:
    """What such a product with quantised weights gives, what it has to be, and the program."""
    g = code_product(rows, depth, columns, signed, form)
    rng = np.random.default_rng(rows)
    weight = quantised(rng.standard_normal((columns, depth), np.float32) + 0.1, dtype)
    x = rng.integers(0, 256, (rows, depth)).astype(np.uint8).view(DTYPES[g.inputs["x"].dtype])
    program = compile_graph(g, target=target, threads=threads, weights={"w": dtype})
    program.bind(lambda _: weight)
    expected = (x.astype(np.float64) - (0 if signed else 128)) @ weight.floats().T
    half = columns // 2
    if form == "gated":
        expected = expected[:, :half] + expected[:, half:]
    return program.run({"x": x})["y"].copy(), expected, program


CODE_LEVELS = [name for name in INTEGER_LEVELS if level(name).integers == "quads"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", CODE_LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", [
    (1, 256, 70), (77, 192, 200), (9, 3136, 40), (5, 5472, 3, True), (40, 3136, 33, True),
    (23, 224, 80, False, "gated")], ids=str)
def test_bytes_are_multiplied_by_the_codes_of_quantised_weights(case: tuple, dtype: str,
                                                                name: str) -> None:
    """Staged and in place, one row and many, in chunks, panels that are not full."""
    rows, depth, columns, *more = case
    found, expected, program = of_codes(dtype, rows, depth, columns, name, *more)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    schedule = parse_schedule(program.module.regions[-1].schedule)
    assert (schedule.dtype, schedule.weights, schedule.by_group) == ("u8", dtype, True)
    width = schedule.vectors * level(name).lanes
    panels = 2 * -(-columns // 2 // width) if more[1:] else -(-columns // width)
    assert program.weights_bytes == 4 * panels * width * (FORMATS[dtype].words + 1) * (
        depth // FORMATS[dtype].group)


def pair_product(rows: int, depth: int, columns: int, signed: bool = False) -> Graph:
    """A product of bytes with numbers that are rounded so that two products fit 16 bits."""
    g, kind = Graph("pairs"), "i8" if signed else "u8"
    y = g.apply("mat_mul_rounded", g.input("x", (rows, depth), kind),
                g.parameter("w", (depth, columns)), g.constant(0 if signed else 128, kind),
                paired=1)
    g.output("y", y)
    return g


@pytest.mark.sampled
@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("rows, depth, columns, signed, steep", [
    (1, 64, 70, False, False), (23, 37, 21, False, True), (9, 4096, 18, True, True),
    (40, 96, 50, False, True)])
def test_pairs_of_products_fit_16_bits(rows: int, depth: int, columns: int, signed: bool,
                                       steep: bool, name: str) -> None:
    """With the largest bytes, and weights that are as large as their neighbours."""
    graph = pair_product(rows, depth, columns, signed)
    rng = np.random.default_rng(rows)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    if steep:
        w = np.where(rng.random(w.shape) < 0.3, 1, w / 8).astype(np.float32) * rng.choice([-1, 1])
    x = rng.integers(0, 256, (rows, depth)).astype(np.uint8)
    x[::2] = 255 if not signed else 127
    x = x.view(DTYPES[graph.inputs["x"].dtype])
    runner = PieceRunner({"w": w}, name)
    found = run_regions(graph, {"x": x}, runner)["y"]
    assert np.array_equal(found, evaluate(graph, {"x": x}, {"w": w})["y"])
    (schedule,) = runner.schedules
    assert (schedule.dtype, schedule.factors) == ("u8", "quads")


def word_product(rows: int, depth: int, columns: int) -> Graph:
    """A product of integers of 16 bits with numbers that are rounded to such."""
    g = Graph("words")
    g.output("y", g.apply("mat_mul_rounded", g.input("x", (rows, depth), "i16"),
                          g.parameter("w", (depth, columns)), g.constant(0, "i16")))
    return g


@pytest.mark.sampled
@pytest.mark.parametrize("name", WORD_LEVELS)
@pytest.mark.parametrize("rows, depth, columns", [
    (1, 64, 70), (23, 37, 21), (9, 4096, 18), (40, 96, 50), (130, 640, 33)])
def test_sums_of_words_fit_32_bits(rows: int, depth: int, columns: int, name: str) -> None:
    """With the largest words and weights, of one sign in some rows, so that sums are the largest
    that there are."""
    graph, most = word_product(rows, depth, columns), word_steps(depth)
    rng = np.random.default_rng(rows)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    w[:, ::3] = -2
    x = rng.integers(-most, most + 1, (rows, depth)).astype(np.int16)
    x[::2] = most
    runner = PieceRunner({"w": w}, name)
    found = run_regions(graph, {"x": x}, runner)["y"]
    assert np.array_equal(found, evaluate(graph, {"x": x}, {"w": w})["y"])
    assert np.abs(found[0, 0] / 2 * most) > 0.99 * 2 ** 31 or depth < 4096
    (schedule,) = runner.schedules
    assert (schedule.dtype, schedule.factors) == ("i16", "words")


@pytest.mark.parametrize("name", INTEGER_LEVELS)
def test_pairs_of_a_convolution(name: str) -> None:
    g = Graph("pairs")
    x, w = g.input("x", (1, 13, 6, 5), "u8"), g.parameter("w", (20, 13, 3, 3))
    g.output("y", g.apply("conv_rounded", x, w, g.constant(128, "u8"), pads=(1, 1, 1, 1),
                          paired=1))
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (1, 13, 6, 5)).astype(np.uint8), rng.choice(
        [-1.0, 0.3, 1.0], (20, 13, 3, 3)).astype(np.float32)
    found = run_regions(g, {"x": x}, PieceRunner({"w": w}, name))["y"]
    assert np.array_equal(found, evaluate(g, {"x": x}, {"w": w})["y"])


def test_weights_that_are_no_pairs_are_not_multiplied_in_16_bits() -> None:
    kernel = partition(code_product(20, 64, 40)).regions[0].kernel
    assert choose(kernel, limits(level("avx2"))).factors == "words"
    paired = partition(pair_product(20, 64, 40)).regions[0].kernel
    bytes_ = choose(paired, limits(level("avx2")))
    with pytest.raises(IllegalSchedule, match="weights by which two of them fit 16 bits"):
        lower(kernel, bytes_, level("avx2"))


def code_kernel(dtype: str) -> Kernel:
    """The kernel of such a product."""
    found = held(partition(code_product(40, 96, 160)), {"w": dtype}, 0, codes=True)
    return found.regions[-1].kernel


@pytest.mark.parametrize("name", CODE_LEVELS[-1:])
def test_products_with_codes_are_the_same_whatever_the_threads(name: str) -> None:
    one, _, _ = of_codes("q4_min", 20, 6400, 50, name)
    two, _, _ = of_codes("q4_min", 20, 6400, 50, name, threads=2)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("name", [name for name in INTEGER_LEVELS if name not in CODE_LEVELS])
def test_words_are_multiplied_by_what_codes_stand_for(name: str) -> None:
    """Rounded again, with a scale for each output channel."""
    found, expected, program = of_codes("q8", 40, 256, 80, name)
    assert np.linalg.norm(found - expected) <= 0.01 * np.linalg.norm(expected)
    assert {slot.dtype for slot in program.module.slots} == {"f16"}


@pytest.mark.parametrize("change, words", [
    ({"dtype": "i16"}, "products of i16 need weights held as i16, not q8_min"),
    ({"rows": 5}, "5 x 4 sums of integers leave no register of 32"),
    ({"chunk": 48, "unroll": 4}, "need chunks of whole groups of 32"),
    ({"weights": "q8"}, "weights given as q8_min cannot be held as q8"),
])
def test_codes_that_do_not_fit_are_refused(change: dict, words: str) -> None:
    here, kernel = level("avx512_vnni"), code_kernel("q8_min")
    with pytest.raises(IllegalSchedule, match=words):
        lower(kernel, replace(choose(kernel, limits(here)), **change), here)


INSTRUCTIONS = {"avx2": "vpmaddwd", "avx2_vnni": "vpdpbusd", "avx512": "vpmaddwd",
                "avx512_vnni": "vpdpbusd", "avx512_bf16": "vpdpbusd", "neon_dot": "sdot",
                "neon_bf16": "usmmla"}


@pytest.mark.parametrize("name", [
    name for name in INSTRUCTIONS if architecture() == "x86" or name.startswith("neon")])
def test_what_each_level_multiplies_with(name: str) -> None:
    """Whether this CPU has it or not; code for AArch64 is made on every computer."""
    kernel = partition(product(9, 64, 40)).regions[0].kernel
    (step,) = lower(kernel, choose(kernel, limits(level(name))), level(name)).steps
    assert INSTRUCTIONS[name] in TARGETS[name].listing(step)


def neon_loop(graph: Graph, name: str) -> str:
    """The instructions of the contraction of a graph."""
    kernel = partition(graph).regions[0].kernel
    return TARGETS[name].listing(lower(kernel, choose(kernel, limits(level(name))),
                                       level(name)).steps[-1])


def test_bytes_get_a_sign_where_they_are_loaded_or_staged() -> None:
    """In place four factors at once; what is staged has one, of which products know nothing."""
    in_place, staged = (neon_loop(graph, "neon_dot") for graph in (
        product(40, 64, 33), convolution(16, 8, 24)))
    assert "eor" in in_place and "sdot" in in_place
    assert "eor" not in staged and "sdot" in staged
    assert "eor" not in neon_loop(product(40, 64, 33), "neon_bf16")
    kernel = partition(product(9, 64, 40, zeros=(128, 0))).regions[0].kernel
    here = level("neon_dot")
    packed = lower(kernel, choose(kernel, limits(here)), here).packed
    assert isinstance(packed, IntegerPanels) and not packed.heads


@pytest.mark.parametrize("change, words", [
    ({"dtype": "f32", "weights": "f32"}, "factors of f32 with sums of i32"),
    ({"weights": "f32"}, "need weights held as i8"),
    ({"rows": 15}, "need 33 vector registers"),
    ({"chunk": 6}, "no multiple of"),
])
def test_what_does_not_go_together_is_refused(change: dict, words: str) -> None:
    here = level("avx512_vnni")
    kernel = partition(product(20, 64, 40)).regions[0].kernel
    schedule = choose(kernel, limits(here))
    assert isinstance(schedule, ContractionSchedule)
    with pytest.raises(IllegalSchedule, match=words):
        lower(kernel, replace(schedule, **change), here)


def test_bytes_need_a_cpu_that_multiplies_them() -> None:
    kernel = partition(product(20, 64, 40)).regions[0].kernel
    quads = replace(choose(kernel, limits(level("avx512_vnni"))), rows=4)
    with pytest.raises(IllegalSchedule, match="products of u8 need a CPU that has them"):
        quads.check(limits(level("neon")))
    with pytest.raises(IllegalSchedule, match="products of i16 need a CPU that has them"):
        replace(quads, dtype="i16", weights="i16").check(limits(level("neon_dot")))
    with pytest.raises(IllegalSchedule, match="products of u8 need a CPU that has them"):
        lower(kernel, quads, level("avx512"))
    words = partition(product(20, 64, 40, zeros=(3, 1))).regions[0].kernel
    assert choose(words, limits(level("avx512_vnni"))).factors == "words"
    with pytest.raises(IllegalSchedule, match="no bytes"):
        lower(words, quads, level("avx512_vnni"))
