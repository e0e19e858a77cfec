"""Products with quantised weights: every format, staged and in place, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import LEVELS

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule, InputError, NumericsError
from smalti.fuse import held, partition
from smalti.graph import Graph
from smalti.graph.interpreter import evaluate
from smalti.graph.quantised import FORMATS, Quantised, quantised
from smalti.kernel.text import parse as parse_kernel
from smalti.runtime import Program, compile_graph
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.cpu.alternative import Alternative
from smalti.schedule import choose, parse
from smalti.schedule.schedule import Limits, Planar, Winograd
from smalti.schedule.space import space

ROWS, CHANNELS, WIDTH = 77, 192, 200
WEIGHT = np.random.default_rng(0).standard_normal((WIDTH, CHANNELS), np.float32)


def product_graph(rows: int = ROWS, *, staged: bool = False, form: str = "plain") -> Graph:
    """x @ w^T, of silu(x) where it is `staged`; or of two slices of w that meet as GEGLU."""
    g = Graph(form)
    x = g.input("x", (rows, CHANNELS))
    w = g.apply("transpose", g.parameter("w", (WIDTH, CHANNELS)), perm=(1, 0))
    y = g.apply("mat_mul", g.apply("silu", x) if staged else x, w)
    if form == "gated":
        half = WIDTH // 2
        left, right = (g.apply("slice", y, axis=1, start=at, end=at + half)
                       for at in (0, half))
        y = left * g.apply("gelu", right)
    g.output("y", y)
    return g


def window_graph(size: int, channels: int = 64, out: int = 40, *, step: int = 1, window: int = 3,
                 images: int = 1, enlarged: bool = False, staged: bool = True) -> Graph:
    """A convolution of silu(x), of x without a border where it is not `staged`, or behind an
    enlargement."""
    g = Graph("window")
    x = g.input("x", (images, channels, size, size))
    if staged:
        x = g.apply("silu", x)
    if enlarged:
        x = g.apply("resize", x, scales=(1, 1, 2, 2))
    g.output("y", g.apply("conv", x, g.parameter("w", (out, channels, window, window)),
                          strides=(step, step), pads=(window // 2 * staged,) * 4))
    return g


def run(program: Program, weight: np.ndarray | Quantised, x: np.ndarray) -> np.ndarray:
    program.bind(lambda name: weight)
    return program.run({"x": x})["y"].copy()


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("target", LEVELS)
def test_products_are_those_of_the_weights_as_f32(target: str, dtype: str) -> None:
    held_so, random = quantised(WEIGHT, dtype), np.random.default_rng(1)
    for rows, staged, form in ((1, False, "plain"), (2, True, "plain"), (5, False, "gated"),
                               (ROWS, False, "plain"),
                               (ROWS, True, "plain"), (300, False, "gated")):
        g = product_graph(rows, staged=staged, form=form)
        x = random.standard_normal((rows, CHANNELS), np.float32)
        program = compile_graph(g, threads=1, target=target, weights={"w": dtype})
        found = run(program, held_so, x)
        plain = compile_graph(g, threads=1, target=target)
        np.testing.assert_array_equal(found, run(plain, held_so.floats(), x))
        expected = evaluate(g, {"x": x}, {"w": held_so.floats()})["y"]
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        share = program.weights_bytes / plain.weights_bytes
        wider = 0.1 if level(target).by_lane else 0  # panels of other widths, filled up with zeros
        assert abs(share / (FORMATS[dtype].element_bytes / 4) - 1) <= wider


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("target", LEVELS)
def test_convolutions_with_windows_unpack_them_from_the_order_of_the_file(
        target: str, dtype: str) -> None:
    check_window(target, dtype, window_graph(9, step=2), 0)
    check_window(target, dtype, window_graph(16), 4)


@pytest.mark.sampled
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("case, winograd", [
    (dict(size=9, channels=192, step=2), 0), (dict(size=6, window=5), 0),
    (dict(size=6, staged=False), 0), (dict(size=7, out=96, window=2, step=2, staged=False), 0),
    (dict(size=16, out=70, enlarged=True), 4), (dict(size=12, out=33, images=2), 4),
    (dict(size=36, channels=32, out=64), 4), (dict(size=40, channels=32, out=64, enlarged=True), 4),
], ids=str)
def test_windows_of_other_shapes(target: str, case: dict, winograd: int) -> None:
    check_window(target, "q4_min", window_graph(**case), winograd)


def check_window(target: str, dtype: str, g: Graph, winograd: int) -> None:
    """A convolution with weights held as `dtype` gives the bytes of the same ones as f32, by
    F(`winograd`)."""
    random = np.random.default_rng(8)
    held_so = quantised(random.standard_normal(g.parameters["w"].shape, np.float32), dtype)
    x = random.standard_normal(g.inputs["x"].shape, np.float32)
    program = compile_graph(g, threads=1, target=target, weights={"w": dtype})
    assert program.weights_bytes % FORMATS[dtype].element_bytes == 0
    assert {slot.dtype for slot in program.module.slots} == {dtype}
    chosen = parse(program.module.regions[-1].schedule)
    assert (chosen.weights, chosen.winograd_size) == (dtype, winograd)
    found = run(program, held_so, x)
    plain = compile_graph(g, threads=1, target=target)
    wanted = run(plain, held_so.floats(), x)
    if parse(plain.module.regions[-1].schedule).chunk == chosen.chunk:
        np.testing.assert_array_equal(found, wanted)
    expected = evaluate(g, {"x": x}, {"w": held_so.floats()})["y"]
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("target", LEVELS)
def test_windows_in_bf16(target: str) -> None:
    """Pairs where the CPU multiplies them; Winograd factors are f32 of the weights as they are."""
    random = np.random.default_rng(9)
    for g, pairs in ((window_graph(9, step=2), True), (window_graph(6, staged=False), True),
                     (window_graph(16), False)):
        held_so = quantised(random.standard_normal(g.parameters["w"].shape, np.float32), "q8_16")
        x = random.standard_normal(g.inputs["x"].shape, np.float32)
        program = compile_graph(g, threads=1, target=target, precision="bf16",
                                weights={"w": "q8_16"})
        found = run(program, held_so, x)
        product = parse(program.module.regions[-1].schedule).dtype
        assert product == ("bf16" if pairs and level(target).pairs else "f32")
        if product == "bf16":
            plain = compile_graph(g, threads=1, target=target, precision="bf16")
            np.testing.assert_array_equal(found, run(plain, held_so.floats(), x))
        expected = evaluate(g, {"x": x}, {"w": held_so.floats()})["y"]
        assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    x = np.random.default_rng(2).standard_normal((300, CHANNELS), np.float32)
    found = {run(compile_graph(product_graph(300), threads=n, weights={"w": "q4_min"}),
                 quantised(WEIGHT, "q4_min"), x).tobytes() for n in (1, 2, 3)}
    assert len(found) == 1
    for size, channels in ((16, 64), (36, 32)):
        g = window_graph(size, channels, 64)
        weight = quantised(np.resize(WEIGHT, g.parameters["w"].shape), "q4_min")
        x = np.random.default_rng(3).standard_normal(g.inputs["x"].shape, np.float32)
        found = {run(compile_graph(g, threads=n, weights={"w": "q4_min"}), weight, x).tobytes()
                 for n in (1, 2, 3)}
        assert len(found) == 1


def test_floats_are_rounded_and_other_formats_changed_when_they_are_bound() -> None:
    x = np.random.default_rng(3).standard_normal((ROWS, CHANNELS), np.float32)
    program = compile_graph(product_graph(), threads=1, weights={"w": "q8"})
    rounded = quantised(WEIGHT, "q8")
    wanted = run(program, rounded, x)
    np.testing.assert_array_equal(run(program, WEIGHT, x), wanted)
    np.testing.assert_array_equal(
        run(program, quantised(WEIGHT, "q4"), x),
        run(program, quantised(quantised(WEIGHT, "q4").floats(), "q8"), x))
    plain = compile_graph(product_graph(), threads=1)
    np.testing.assert_array_equal(run(plain, rounded, x), wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("target", LEVELS)
def test_products_of_bf16_round_weights_as_if_they_were_held_so(target: str, dtype: str) -> None:
    held_so, random = quantised(WEIGHT, dtype), np.random.default_rng(7)
    for rows, staged in ((ROWS, False), (ROWS, True), (1, False), (3, True)):
        g = product_graph(rows, staged=staged)
        x = random.standard_normal((rows, CHANNELS), np.float32)
        program = compile_graph(g, threads=1, target=target, precision="bf16",
                                weights={"w": dtype})
        found = run(program, held_so, x)
        plain = compile_graph(g, threads=1, target=target, precision="bf16")
        expected = run(plain, held_so.floats(), x)
        if parse(program.module.regions[-1].schedule).dtype == "bf16":
            np.testing.assert_array_equal(found, expected)
        assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
    assert (parse(program.module.regions[-1].schedule).dtype == "bf16") == level(target).pairs


def test_precision_of_activations_leaves_quantised_weights_as_they_are() -> None:
    x = np.random.default_rng(4).standard_normal((ROWS, CHANNELS), np.float32)
    program = compile_graph(product_graph(), threads=1, precision="bf16", weights={"w": "q8"})
    lanes = level(program.module.target).lanes
    width = parse(program.module.regions[-1].schedule).vectors * lanes
    padded = -(-WIDTH // width) * width
    assert program.weights_bytes == FORMATS["q8"].element_bytes * padded * CHANNELS
    exact = run(compile_graph(product_graph(), threads=1), quantised(WEIGHT, "q8"), x)
    assert np.abs(run(program, quantised(WEIGHT, "q8"), x) - exact).max() < 0.02 * exact.max()


def test_what_products_cannot_take_by_groups_is_f16() -> None:
    """Rows that are no whole groups, weights that are multiplied the other way round, or are read
    by something else, too."""
    g = Graph("others")
    x = g.input("x", (ROWS, CHANNELS))
    odd = g.apply("slice", x, axis=1, start=0, end=180)
    g.output("a", g.apply("mat_mul", odd, g.apply("transpose", g.parameter("odd", (200, 180)),
                                                   perm=(1, 0))))
    g.output("b", g.apply("mat_mul", x, g.parameter("turned", (CHANNELS, WIDTH))))
    twice = g.parameter("twice", (WIDTH, CHANNELS))
    g.output("c", g.apply("mat_mul", x, g.apply("transpose", twice, perm=(1, 0))))
    g.output("d", g.apply("exp", twice))
    found = held(partition(g), dict.fromkeys(g.parameters, "q8"), 0)
    dtypes = {view.storage.name: view.storage.dtype for region in found.regions
              for view in region.views.values() if view.storage.kind == "parameter"}
    assert dtypes == dict.fromkeys(g.parameters, "f16")
    x = {"x": np.random.default_rng(6).standard_normal((ROWS, CHANNELS), np.float32)}
    whole = {name: quantised(np.resize(WEIGHT, value.shape), "q8")
             for name, value in g.parameters.items() if name != "odd"}
    whole["odd"] = np.float16(WEIGHT[:, :180])
    program = compile_graph(g, threads=1, weights=dict.fromkeys(g.parameters, "q8"))
    program.bind(whole.__getitem__)
    plain = compile_graph(g, threads=1)
    plain.bind(lambda name: np.float16(whole[name].floats() if name != "odd" else whole[name]))
    expected = plain.run(x)
    for name, values in program.run(x).items():
        np.testing.assert_array_equal(values, expected[name])


def test_bad_schedules_and_weights_are_refused() -> None:
    (region,) = held(partition(product_graph()), {"w": "q8"}).regions
    bounds = Limits(8, 16)
    schedule = choose(region.kernel, bounds)
    assert schedule.weights == "q8" and "weights='q8'" in str(schedule)
    for wrong, said in ((replace(schedule, chunk=16), "groups of 32"),
                        (replace(schedule, algorithm=Winograd(4)), "held transformed"),
                        (replace(schedule, algorithm=Planar()), "staged as planes")):
        with pytest.raises(IllegalSchedule, match=said):
            wrong.check(bounds)
    program = compile_graph(product_graph(), threads=1, weights={"w": "q8"})
    bad = quantised(WEIGHT, "q8")
    bad.words[5, 0] = np.float32(np.inf).view(np.uint32)
    with pytest.raises(NumericsError, match="'w'"):
        program.bind(lambda name: bad)
    bad.words[5, 0] = np.float32(3e38).view(np.uint32)  # finite, but not times its codes
    with pytest.raises(NumericsError, match="'w'"):
        program.bind(lambda name: bad)
    for words in (bad.words[:-1], bad.words[:, :-1], bad.words.view(np.int32)):
        with pytest.raises(InputError, match="none of q8"):
            program.bind(lambda name, words=words: Quantised("q8", words, WEIGHT.shape))
    with pytest.raises(InputError, match="has shape"):
        program.bind(lambda name: quantised(WEIGHT[:100], "q8"))
    with pytest.raises(InputError, match="q8_min"):
        compile_graph(product_graph(), weights={"w": "q3"})


@pytest.mark.parametrize("target", LEVELS)
def test_other_schedules_pack_the_same_weights_and_change_no_byte(target: str) -> None:
    x = np.random.default_rng(5).standard_normal((300, CHANNELS), np.float32)
    for staged, dtype in ((False, "q8"), (True, "q4_min")):
        g, held_so = product_graph(300, staged=staged), quantised(WEIGHT, dtype)
        program = compile_graph(g, threads=1, target=target, weights={"w": dtype})
        expected = run(program, held_so, x)
        (region,) = held(partition(g), {"w": dtype}).regions
        others = space(region.kernel, limits(level(target), 1, cpu().l1_bytes, cpu().l2_bytes),
                       parse(program.module.regions[0].schedule))
        widths = {other.vectors for other in others}
        assert len(widths) > 1
        for other in others[::max(1, len(others) // 6)]:
            one = Alternative(program.module, 0, region.kernel, other,
                              lambda name, held_so=held_so: held_so)
            assert program.run({"x": x}, {0: one})["y"].tobytes() == expected.tobytes()


@pytest.mark.sampled
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("case", [dict(size=9, channels=128, step=2), dict(size=16),
                                  dict(size=36, channels=96, out=64)], ids=str)
def test_other_schedules_of_windows_change_no_byte(target: str, case: dict) -> None:
    g, dtype = window_graph(**case), "q8_min"
    held_so = quantised(np.resize(WEIGHT, g.parameters["w"].shape), dtype)
    x = np.random.default_rng(5).standard_normal(g.inputs["x"].shape, np.float32)
    program = compile_graph(g, threads=1, target=target, weights={"w": dtype})
    expected = run(program, held_so, x)
    forms = [each.form for each in program.module.regions]
    number = forms.index("contraction")  # the prologue may be a kernel of its own
    kernel = parse_kernel(program.module.kernels[program.module.regions[number].kernel])
    first = parse(program.module.regions[number].schedule)
    others = space(kernel, limits(level(target), 1, cpu().l1_bytes, cpu().l2_bytes), first)
    assert {other.weights for other in others} == {dtype}
    assert len({other.panels for other in others}) > 1
    if first.winograd:
        assert len({other.chunk for other in others}) > 1
    for other in others[::max(1, len(others) // 6)]:
        one = Alternative(program.module, number, kernel, other, lambda name: held_so)
        assert program.run({"x": x}, {number: one})["y"].tobytes() == expected.tobytes()
