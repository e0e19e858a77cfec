"""Convolutions by Winograd's algorithm: matrices, and machine code against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, check_graph

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.cpu.winograd_transforms import TRANSFORMS
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.schedule import ContractionSchedule, Limits, choose
from smalti.schedule.schedule import BINDING, RUN, TILE, Winograd
from smalti.schedule.winograd import growth_of

EXAMPLES = 20


def conv(channels: int, height: int, width: int, out: int, batch: int = 1,
         pads: tuple[int, ...] = (1, 1, 1, 1), neighbours: bool = False,
         enlarged: bool = False) -> Graph:
    """A 3x3 convolution; with `neighbours`, cos before it and a residual behind; `enlarged`: of a
    nearest enlargement by 2."""
    g = Graph("conv")
    scale = 2 if enlarged else 1
    x = g.input("x", (batch, channels, height // scale, width // scale))
    if neighbours:
        x = g.apply("cos", x)
    if enlarged:
        x = g.apply("resize", x, scales=(1, 1, 2, 2))
    y = g.apply("conv", x, g.parameter("w", (out, channels, 3, 3)), g.parameter("b", (out,)),
                pads=pads)
    if neighbours:
        y = g.apply("silu", y + g.input("r", y.shape))
    g.output("y", y)
    return g


@pytest.mark.parametrize("size, behind", TRANSFORMS)
def test_matrices_are_a_convolution(size: int, behind: bool) -> None:
    f = TRANSFORMS[size, behind]
    inputs, weights, outputs = (np.array(m) for m in (f.inputs, f.weights, f.outputs))
    rng = np.random.default_rng(0)
    d, w = rng.standard_normal((f.window, f.window)), rng.standard_normal((3, 3))
    found = outputs @ ((weights @ w @ weights.T) * (inputs @ d @ inputs.T)) @ outputs.T
    if behind:
        d = d.repeat(2, 0).repeat(2, 1)[1:, 1:]
    expected = [[np.sum(d[i:i + 3, j:j + 3] * w) for j in range(size)] for i in range(size)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_an_enlargement_saves_a_third_of_the_products() -> None:
    assert {key: f.points for key, f in TRANSFORMS.items()} == {
        (2, False): 16, (4, False): 36, (2, True): 9, (4, True): 25}


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", [
    (16, 32, 32, 64), (20, 32, 36, 33), (40, 36, 32, 130), (16, 64, 28, 32, 2),
    (33, 32, 32, 64, 1, (0, 2, 2, 0)), (24, 32, 64, 70, 1, (1, 1, 1, 1), True),
    (200, 32, 32, 32), (16, 37, 50, 40, 2),
    (32, 64, 40, 3), (24, 39, 33, 33, 1, (0, 0, 0, 0), True),
], ids=str)
def test_large_images(case: tuple, name: str, precision: str) -> None:
    runner = check_graph(conv(*case), name, precision)
    (schedule,) = (s for s in runner.schedules if isinstance(s, ContractionSchedule))
    assert (schedule.winograd.size, schedule.winograd.folded) == (4, False)
    assert (schedule.winograd.transformed == TILE) == (case[1] * case[2] <= 1024)
    check_graph(conv(*case), name, precision, weights="f16")


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", [
    (40, 8, 8, 70), (40, 8, 12, 33, 3), (130, 16, 16, 64, 2), (33, 12, 8, 40, 1, (0, 2, 2, 0)),
    (24, 16, 16, 70, 2, (1, 1, 1, 1), True), (144, 13, 9, 64, 2),
], ids=str)
def test_small_images(case: tuple, name: str, precision: str) -> None:
    runner = check_graph(conv(*case), name, precision)
    (schedule,) = (s for s in runner.schedules if isinstance(s, ContractionSchedule))
    assert (schedule.winograd.size, schedule.winograd.transformed) == (4, TILE)
    check_graph(conv(*case), name, precision, weights="f16")


def test_few_blocks_stay_direct() -> None:
    runner = check_graph(conv(64, 8, 4, 64), LEVELS[0])
    assert [s.winograd_size for s in runner.schedules] == [0]


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", [
    (16, 32, 32, 64), (24, 34, 62, 70, 2, (1, 1, 1, 1), True), (40, 32, 38, 33), (48, 8, 10, 40, 2),
], ids=str)
def test_enlarged_images(case: tuple, name: str) -> None:
    runner = check_graph(conv(*case, enlarged=True), name)
    (schedule,) = (s for s in runner.schedules if isinstance(s, ContractionSchedule))
    assert (schedule.winograd.size, schedule.winograd.folded) == (4, True)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 1, 1), (2, 1, 0, 1)], ids=str)
def test_enlarged_images_with_other_borders_are_not_folded(pads: tuple[int, ...]) -> None:
    runner = check_graph(conv(16, 36, 36, 32, pads=pads, enlarged=True), LEVELS[0])
    assert not any(s.winograd and s.winograd.folded for s in runner.schedules
                   if isinstance(s, ContractionSchedule))


@st.composite
def winograd_schedules(draw: st.DrawFn, name: str, height: int, width: int, channels: int,
                       out: int, folded: bool, dtype: str) -> ContractionSchedule:
    size, shared = draw(st.sampled_from([2, 4])), draw(st.booleans())
    transformed = draw(st.sampled_from([BINDING, TILE, RUN]))
    weights = "f32" if transformed == BINDING else dtype
    vectors = draw(st.sampled_from([1, 2]))
    panels = -(-out // (vectors * level(name).lanes))
    block = draw(st.sampled_from([n for n in range(1, panels + 1) if panels % n == 0]))
    unroll = draw(st.sampled_from([1, 2, 4]))
    step = unroll * (2 if weights == "bf16" else 1)
    chunks = [n for n in (4, 8, 16, 48) if n % step == 0 and channels % n == 0
              and (transformed == TILE or n % level(name).lanes == 0)]
    return ContractionSchedule(
        tile_b=draw(st.sampled_from([1, 2])),
        tile_y=draw(st.integers(1, height // size + 1)) * size,
        tile_x=draw(st.integers(1, width // size + 1)) * size,
        panels=block, chunk=draw(st.sampled_from(chunks)),
        rows=draw(st.integers(1, limits(level(name)).rows(vectors, 0))),
        vectors=vectors, unroll=unroll, weights=weights,
        algorithm=Winograd(
            size, draw(st.sampled_from([n for n in range(1, block + 1) if block % n == 0])),
            folded, shared, transformed))


@examples(EXAMPLES)
@given(st.data(), st.sampled_from(LEVELS), st.booleans(), st.booleans(),
       st.sampled_from([(8, 12), (10, 14)]), st.sampled_from(["f32", "bf16"]),
       st.sampled_from(["f32", "f16", "bf16"]))
def test_any_legal_schedule_computes_the_same(data: st.DataObject, name: str, neighbours: bool,
                                              enlarged: bool, extents: tuple[int, int],
                                              precision: str, weights: str) -> None:
    dtype = "bf16" if precision == "bf16" else weights
    schedule = data.draw(winograd_schedules(name, *extents, 48, 70, enlarged, dtype))
    note(f"{name} {schedule}")

    def pick(kernel, bounds: Limits, precision: str):
        return schedule if kernel.form == "contraction" else choose(kernel, bounds, precision)

    runner = check_graph(conv(48, *extents, 70, 2, neighbours=neighbours, enlarged=enlarged),
                         name, precision, pick=pick, weights=weights)
    assert schedule in runner.schedules


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("enlarged", [False, True])
def test_weights_are_transformed_by_each_run_where_memory_is_short(enlarged: bool,
                                                                   precision: str) -> None:
    bounds = Limits(lanes=16, vectors=32, threads=2)
    kernel = partition(conv(48, 64, 64, 70, enlarged=enlarged)).regions[0].kernel
    extra = 48 * 70 * (4 * (25 if enlarged else 36) - 9 * (2 if precision == "bf16" else 4))
    bound = choose(kernel, bounds, precision, growth_max=extra)
    assert bound.winograd.transformed == BINDING and growth_of(kernel, bound, precision) == extra
    run = choose(kernel, bounds, precision, growth_max=extra - 1)
    assert run.winograd.transformed == RUN and growth_of(kernel, run, precision) == 0


LEGAL = ContractionSchedule(1, 4, 8, 2, 8, 4, 2, algorithm=Winograd(4, group=2))


@pytest.mark.parametrize("change, why", [
    (Winograd(3), r"no F\(3\)"), ({"tile_y": 6}, "blocks of 4"), ({"tile_x": 2}, "blocks of 4"),
    (Winograd(4, group=3), "groups of 3"), ({"panels": 3}, r"in 3 of \d panels"),
    ({"chunk": 5}, "no multiple"),
    (Winograd(4, folded=True), "no nearest enlargement"),
    ({"chunk": 2, "unroll": 2}, "whole vectors"),
    (Winograd(4, group=2, transformed="never"), "binding, run, tile"),
])
def test_impossible_schedules_are_refused(change: dict | Winograd, why: str) -> None:
    kernel = partition(conv(8, 8, 8, 32)).regions[0].kernel
    assert lower(kernel, LEGAL, level(LEVELS[0])).packed.winograd == 4
    changes = {"algorithm": change} if isinstance(change, Winograd) else change
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel, replace(LEGAL, **changes), level(LEVELS[0]))


@pytest.mark.parametrize("attributes", [{"strides": (2, 1)}, {"dilations": (1, 2)}])
def test_other_windows_are_refused(attributes: dict) -> None:
    g = Graph("conv")
    g.output("y", g.apply("conv", g.input("x", (1, 8, 16, 16)), g.parameter("w", (32, 8, 3, 3)),
                          **attributes, pads=(1, 1, 1, 1)))
    with pytest.raises(IllegalSchedule, match="3x3 windows in steps of 1"):
        lower(partition(g).regions[0].kernel, LEGAL, level(LEVELS[0]))
