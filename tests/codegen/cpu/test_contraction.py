"""Convolutions and matrix products as machine code, against the interpreter."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from contraction_graphs import CONV_CASES, CONVS, PRODUCTS, Conv, fitting, linear
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, PieceRunner, arrays_for, check_graph, run_regions

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.compiler.targets import TARGETS
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.schedule import ContractionSchedule, Limits, choose
from smalti.schedule.schedule import Direct, Planar, Winograd

EXAMPLES = 40
PRECISIONS = [(name, precision) for name in LEVELS for precision in ("f32", "bf16")]


@pytest.mark.sampled
@pytest.mark.parametrize("name, precision", PRECISIONS)
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_convolution(case: Conv, name: str, precision: str) -> None:
    check_graph(case.graph(), name, precision)


@pytest.mark.sampled
@pytest.mark.parametrize("weights", ["f16", "bf16"])
@pytest.mark.parametrize("name, precision", PRECISIONS)
def test_weights_that_are_halves(name: str, precision: str, weights: str) -> None:
    dtype = "bf16" if precision == "bf16" else weights
    for case in CONVS:
        runner = check_graph(case.graph(), name, precision, weights=weights)
        held = [s.weights for s in runner.schedules
                if isinstance(s, ContractionSchedule) and s.algorithm != Planar()]
        assert set(held) <= {dtype}
    for turned in (False, True):
        check_graph(linear((70,), 39, 33, turned=turned), name, precision, weights=weights)


@examples(EXAMPLES)
@given(CONV_CASES.map(fitting), st.sampled_from(PRECISIONS))
def test_random_convolution(case: Conv, at: tuple[str, str]) -> None:
    graph = case.graph()
    note(f"{at}\n{graph}")
    check_graph(graph, *at)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("rows, asks", [(1, False), (77, True), (128, True), (200, True)])
def test_panels_are_asked_for_ahead_by_pixels_not_by_runs(rows: int, asks: bool,
                                                          name: str) -> None:
    """Whatever the rows of a micro-kernel: what a panel waits for is memory."""
    at = level(name)
    kernel = partition(linear((rows,), 640, 640)).regions[-1].kernel
    schedule = replace(choose(kernel, limits(at)), algorithm=Direct())
    (step,) = lower(kernel, schedule, at).steps
    listing = TARGETS[name].listing(step)
    assert ("prefetcht1" in listing or "prfm" in listing) == asks


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_a_panel_is_asked_for_once_and_rows_before_they_are_staged(name: str) -> None:
    """With AVX2; with AVX-512 whole lines are not much more than is needed."""
    at = level(name)
    kernel = partition(linear((128,), 2560, 640)).regions[-1].kernel
    schedule = choose(kernel, limits(at))
    (step,) = lower(kernel, schedule, at).steps
    listing = TARGETS[name].listing(step)
    turns = re.findall(r"prefetcht1 \[(\w+)\]\s+\w+\s+add \1,([0-9A-F]+)h?", listing)
    runs = -(-schedule.tile_x // schedule.rows)
    asked = {runs * schedule.chunk // schedule.unroll * int(amount, 16) for _, amount in turns}
    panel = 4 * schedule.chunk * schedule.vectors * at.lanes
    assert turns and all(panel <= bytes_ <= 2 * panel for bytes_ in asked)
    assert listing.count("prefetcht0") == (name == "avx2")


@pytest.mark.sampled
@pytest.mark.parametrize("name, precision", PRECISIONS)
@pytest.mark.parametrize("rows", [(1,), (2,), (5,), (13,), (14,), (15,), (70,), (300,), (2, 9),
                                  (3, 1)], ids=str)
@pytest.mark.parametrize("channels, out", [(1, 1), (3, 40), (20, 33), (40, 130), (900, 16)])
def test_linear(rows: tuple[int, ...], channels: int, out: int, name: str,
                precision: str) -> None:
    check_graph(linear(rows, channels, out, turned=out != 33), name, precision)


@pytest.mark.sampled
@pytest.mark.parametrize("name, precision", PRECISIONS)
@pytest.mark.parametrize("behind", ["normalized", "gathered", "resized", "geglu", "embedded",
                                    "residual"])
def test_linear_with_its_neighbours(behind: str, name: str, precision: str) -> None:
    check_graph(linear((2, 9), 24, 40, behind), name, precision)


@pytest.mark.parametrize("rows", [
    pytest.param(rows, marks=() if rows < 16 or rows % 9 == 0 else pytest.mark.sweep)
    for rows in range(1, 71)])
def test_every_number_of_pixels(rows: int) -> None:
    for name in (LEVELS[0], LEVELS[-1]):
        check_graph(linear((rows,), 5, 17), name)


@st.composite
def contraction_schedules(draw: st.DrawFn, name: str, precision: str,
                          weights: str) -> ContractionSchedule:
    vectors = draw(st.sampled_from([1, 2, 4]))
    bounds, blocks = limits(level(name)), level(name).blocks and precision == "bf16"
    rows = max(n for n in range(1, bounds.rows(vectors, 0) + 1)
               if bounds.needed(n, vectors, blocks) <= bounds.vectors)
    step = 2 if weights == "bf16" else 1
    products = precision if level(name).pairs else "f32"
    unroll = draw(st.sampled_from([1, 2, 4]))
    chunk = draw(st.sampled_from([n for n in (4, 8, 24, 48) if n % (unroll * step) == 0]))
    return ContractionSchedule(
        tile_b=draw(st.sampled_from([1, 2])), tile_y=draw(st.integers(1, 9)),
        tile_x=draw(st.integers(1, 11)), panels=draw(st.integers(1, 5)), chunk=chunk,
        rows=draw(st.integers(1, rows)), vectors=vectors, unroll=unroll, dtype=products,
        weights=weights)


@examples(2 * EXAMPLES)
@given(st.data(), st.sampled_from(PRECISIONS), st.sampled_from(["f32", "f16", "bf16"]))
def test_any_legal_schedule_computes_the_same(data: st.DataObject, at: tuple[str, str],
                                              given: str) -> None:
    weights = "bf16" if at[1] == "bf16" else given
    schedule = data.draw(contraction_schedules(*at, weights))
    case = Conv(24, 9, 11, 45, batch=2, before="normalized", behind="residual")

    def pick(kernel, bounds: Limits, precision: str):
        return schedule if kernel.form == "contraction" else choose(kernel, bounds, precision)

    try:
        runner = check_graph(case.graph(), *at, pick=pick, weights=given)
    except IllegalSchedule as error:
        assert schedule.chunk == 48 and "more than 24 channels" in str(error)
        return
    assert schedule in runner.schedules


@pytest.mark.parametrize("name", [name for name in LEVELS if level(name).pairs])
@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_products_of_blocks_are_those_of_pairs(rows: int, name: str) -> None:
    """A turn of an odd number of pairs multiplies pairs, one of an even number blocks, where the
    level has them."""
    graph = linear((11,), 24, 21)
    inputs, parameters = arrays_for(graph)
    bits = set()
    for unroll in (1, 2, 4):
        schedule = ContractionSchedule(1, 1, 11, 1, 24, rows, 3, unroll, "bf16", "bf16")
        runner = PieceRunner(parameters, name, "bf16", pick=lambda *_, now=schedule: now)
        bits.update(found.tobytes() for found in run_regions(graph, inputs, runner).values())
    assert len(bits) == 1


@pytest.mark.parametrize("change, why", [
    ({"rows": 31}, "vector registers"), ({"chunk": 6}, "no multiple of 4"),
    ({"chunk": 20}, "do not divide 24 channels"), ({"tile_b": 3}, "do not divide 2 images"),
    ({"dtype": "bf16", "weights": "bf16"}, "a CPU that multiplies pairs"),
    ({"weights": "f16"}, "given as f32 cannot be held as f16"),
    ({"weights": "bf16", "chunk": 12}, "no multiple of 8"),
    ({"chunk": 28}, "more than 24 channels"),
])
def test_impossible_schedules_are_refused(change: dict, why: str) -> None:
    kernel = partition(Conv(24, 9, 11, 45, batch=2).graph()).regions[0].kernel
    schedule = ContractionSchedule(1, 4, 11, 1, 8, 4, 2)
    assert lower(kernel, schedule, level(LEVELS[0])).packed.chunks == 3
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel, replace(schedule, **change), level(LEVELS[0]))


def test_tiny_caches_give_small_chunks_that_compute_the_same() -> None:
    small = limits(level(LEVELS[0]), 4, 4 << 10, 8 << 10)
    runner: PieceRunner = check_graph(Conv(64, 12, 30, 40).graph(), LEVELS[0], bounds=small)
    assert runner.schedules[0].chunk < 64


@pytest.mark.sampled
@pytest.mark.parametrize("name, precision", PRECISIONS)
@pytest.mark.parametrize("rows, channels, width, parts", [
    (37, 24, 20, 2), (300, 72, 130, 2), (5, 40, 7, 3), (64, 400, 33, 2)])
def test_gated_products(rows: int, channels: int, width: int, parts: int, name: str,
                        precision: str) -> None:
    """Slices of the channels that meet in the epilogue, in one kernel, at odd extents."""
    g = Graph("gated")
    x = g.input("x", (1, rows, channels))
    both = g.apply("mat_mul", x, g.parameter("w", (channels, parts * width)))
    both = both + g.parameter("b", (parts * width,))
    first, *gates = (g.apply("slice", both, axis=2, start=k * width, end=(k + 1) * width)
                     for k in range(parts))
    for gate in gates:
        first = first * g.apply("gelu", gate)
    g.output("y", first)
    runner = check_graph(g, name, precision)
    assert len(runner.schedules) == 1


@pytest.mark.parametrize("name", LEVELS)
def test_gated_convolutions(name: str) -> None:
    g = Graph("gated")
    both = g.apply("conv", g.input("x", (2, 12, 8, 8)), g.parameter("w", (44, 12, 3, 3)),
                   g.parameter("b", (44,)), pads=(1, 1, 1, 1))
    a, b = (g.apply("slice", both, axis=1, start=k, end=k + 22) for k in (0, 22))
    g.output("y", g.apply("silu", a) + g.apply("cos", b))
    (schedule,) = check_graph(g, name).schedules
    assert schedule.winograd_size == 0
    with pytest.raises(IllegalSchedule, match="one sum for each result"):
        lower(partition(g).regions[0].kernel, replace(schedule, algorithm=Winograd(4)), level(name))


# ---------------------------------------------------------------------- computed weights


@pytest.mark.sampled
@pytest.mark.parametrize("name, precision", PRECISIONS)
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_products_of_computed_matrices(name: str, precision: str, shapes: tuple,
                                       fused: bool) -> None:
    g = Graph("product")
    a, b = (g.input(x, shape) for x, shape in zip("ab", shapes, strict=True))
    if fused:
        a, b = g.apply("tanh", a), g.apply("silu", b)
    y = g.apply("mat_mul", a, b)
    g.output("y", g.apply("relu", y + g.input("r", y.shape)) * 2.0 if fused else y)
    runner = check_graph(g, name, precision)
    assert any(isinstance(schedule, ContractionSchedule) for schedule in runner.schedules)


@pytest.mark.parametrize("name, precision", PRECISIONS)
def test_heads_are_multiplied_where_they_lie(name: str, precision: str) -> None:
    g = Graph("heads")
    q, k, v = (g.input(x, (2, t, 3, 24)) for x, t in zip("qkv", (33, 20, 20), strict=True))
    scores = g.apply("mat_mul", q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1))
    mixed = g.apply("mat_mul", g.apply("sigmoid", scores), v.transpose(0, 2, 1, 3))
    g.output("y", mixed.transpose(0, 2, 1, 3).reshape(2, 33, 72))
    runner = check_graph(g, name, precision)
    kinds = [type(schedule) for schedule in runner.schedules]
    assert kinds == [ContractionSchedule] * 2 or precision == "bf16"


@pytest.mark.parametrize("name, precision", PRECISIONS)
def test_a_matrix_times_itself_and_a_window_that_is_computed(name: str, precision: str) -> None:
    g = Graph("computed")
    x = g.apply("tanh", g.input("x", (1, 8, 20, 20)))
    g.output("square", g.apply("mat_mul", x, x))
    w = g.apply("silu", g.input("w", (24, 4, 3, 3)))
    g.output("conv", g.apply("conv", x, w, pads=(1, 1, 1, 1), group=2))
    check_graph(g, name, precision)


def test_only_single_rows_have_weights_of_their_own() -> None:
    g = Graph("batched")
    g.output("y", g.apply("mat_mul", g.input("a", (2, 4, 8)), g.input("b", (2, 8, 16))))
    kernel, bounds = partition(g).regions[0].kernel, limits(level(LEVELS[0]))
    schedule = choose(kernel, bounds)
    assert (schedule.tile_b, schedule.tile_y) == (1, 1)
    with pytest.raises(IllegalSchedule, match="its own weight"):
        lower(kernel, replace(schedule, tile_b=2), level(LEVELS[0]))
