"""Statistics of group and layer normalisations as machine code, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, PieceRunner, check_graph, relative_error, run_regions

from smalti.codegen.cpu.lower import lower
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph, Value, evaluate
from smalti.schedule import MapSchedule, MomentsSchedule

EXAMPLES = 30
"""Of groups and rows of several elements: of fewer, that are nearly equal, x * scale + shift
cancels to fewer digits than (x - mean) * scale does."""


def normalized(g: Graph, x: Value, groups: int) -> Value:
    channels = (x.shape[1],)
    return g.apply("group_normalization", x, g.parameter("s", channels),
                   g.parameter("b", channels), num_groups=groups)


def group(shape: tuple[int, ...], groups: int) -> Graph:
    g = Graph("group")
    g.output("y", normalized(g, g.input("x", shape), groups))
    return g


def layer(shape: tuple[int, ...], axis: int = -1) -> Graph:
    g = Graph("layer")
    x = g.input("x", shape)
    weights = (g.parameter(n, shape[axis:]) for n in "sb")
    g.output("y", g.apply("layer_normalization", x, *weights, axis=axis))
    return g


GROUPS = [((2, 64, 8, 8), 32), ((2, 40, 5, 7), 4), ((1, 1, 3, 3), 1), ((3, 7, 2, 5), 7),
          ((1, 20, 1, 2), 10), ((2, 33, 4, 4), 1), ((1, 120, 9, 9), 4), ((1, 320, 4, 4), 32),
          ((2, 8, 5), 2), ((1, 6, 2, 3, 4), 3), ((1, 4, 64, 64), 2)]


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("shape, groups", GROUPS, ids=str)
def test_group_normalization(shape: tuple[int, ...], groups: int, name: str,
                             precision: str) -> None:
    runner = check_graph(group(shape, groups), name, precision)
    assert any(isinstance(s, MomentsSchedule) for s in runner.schedules)


LAYERS = [((2, 9, 40), -1), ((1, 77, 768), -1), ((1, 1), -1), ((5, 3), -1), ((70, 16), -1),
          ((3, 7, 20), 1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), -1), ((65,), 0), ((2, 33), 0)]


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("shape, axis", LAYERS, ids=str)
def test_layer_normalization(shape: tuple[int, ...], axis: int, name: str, precision: str) -> None:
    check_graph(layer(shape, axis), name, precision)


def rms(shape: tuple[int, ...], axis: int = -1) -> Graph:
    g = Graph("rms")
    x = g.input("x", shape)
    g.output("y", g.apply("rms_normalization", x, g.parameter("s", shape[axis:]), axis=axis))
    return g


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("shape, axis", [
    ((5,), -1), ((1, 1), -1), ((77, 48), -1), ((2, 9, 5, 7), -1), ((3, 4, 6, 5), 2),
    ((2, 3, 2, 3, 40), -1)], ids=str)
def test_rms_normalization(shape: tuple[int, ...], axis: int, name: str) -> None:
    check_graph(rms(shape, axis), name)


@examples(EXAMPLES)
@given(st.integers(1, 2), st.integers(1, 30), st.integers(1, 5), st.integers(1, 140),
       st.sampled_from(LEVELS))
def test_random_rms_normalization_of_parts_of_rows(batch: int, rows: int, heads: int,
                                                   channels: int, name: str) -> None:
    g = Graph("heads")
    x = g.input("x", (batch, rows, 3 * heads * channels))
    part = g.apply("slice", x, axis=2, start=heads * channels, end=2 * heads * channels)
    part = part.reshape(batch, rows, heads, channels)
    g.output("y", g.apply("rms_normalization", part, g.parameter("s", (channels,))))
    runner = check_graph(g, name)
    assert len(runner.schedules) == 2  # the strided part is read where it lies


@examples(EXAMPLES)
@given(st.integers(1, 2), st.sampled_from([1, 2, 3, 10, 32]), st.sampled_from([1, 2, 3, 10, 17]),
       st.integers(3, 9), st.integers(3, 9), st.sampled_from(LEVELS),
       st.sampled_from(["f32", "bf16"]))
def test_random_group_normalization(batch: int, groups: int, each: int, height: int, width: int,
                                    name: str, precision: str) -> None:
    graph = group((batch, groups * each, height, width), groups)
    note(f"{name}\n{graph}")
    check_graph(graph, name, precision)


@examples(EXAMPLES)
@given(st.integers(1, 70), st.integers(8, 140), st.sampled_from(LEVELS),
       st.sampled_from(["f32", "bf16"]))
def test_random_layer_normalization(rows: int, channels: int, name: str, precision: str) -> None:
    check_graph(layer((rows, channels)), name, precision)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("parts", [1, 2, 3, 6, 9, 18])
def test_any_number_of_parts_gives_the_same(parts: int, name: str) -> None:
    runner = check_graph(group((2, 20, 3, 6), 5), name, pick=lambda kernel, *_: MapSchedule(1)
                         if kernel.form == "map" else MomentsSchedule(parts, 1))
    assert runner.schedules[0].parts == parts


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("grain", [1, 2, 5, 9])
def test_any_grain_of_rows_gives_the_same(grain: int, name: str) -> None:
    runner = check_graph(layer((9, 50)), name, pick=lambda kernel, *_: MapSchedule(1)
                         if kernel.form == "map" else MomentsSchedule(1, grain))
    assert runner.schedules[0].grain == grain


@pytest.mark.parametrize("name", LEVELS)
def test_a_large_mean_costs_no_precision(name: str) -> None:
    for graph in (group((1, 32, 16, 16), 4), layer((9, 200)), rms((9, 200))):
        rng = np.random.default_rng(0)
        x = (rng.standard_normal(graph.inputs["x"].shape) + 1000).astype(np.float32)
        values = {n: np.ones(v.shape, np.float32) for n, v in graph.parameters.items()}
        found = run_regions(graph, {"x": x}, PieceRunner(values, name))["y"]
        exact = evaluate(graph, {"x": x}, values)["y"]
        # x itself has only 13 bits behind the point here
        assert relative_error(found, exact) < 3e-4, graph


@pytest.mark.parametrize("name", LEVELS)
def test_a_constant_image_gives_the_bias(name: str) -> None:
    graph = group((1, 8, 4, 4), 2)
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(8).astype(np.float32) for n in "sb"}
    x = np.full((1, 8, 4, 4), 7.25, np.float32)
    found = run_regions(graph, {"x": x}, PieceRunner(values, name))["y"]
    np.testing.assert_allclose(found, np.broadcast_to(values["b"][:, None, None], x.shape),
                               atol=1e-4)


@pytest.mark.parametrize("name", LEVELS)
def test_operands_in_any_order(name: str) -> None:
    g = Graph("odd")
    x = g.input("x", (2, 6, 5))
    turned = g.apply("layer_normalization", x.transpose(0, 2, 1), g.parameter("s", (6,)),
                     g.parameter("b", (6,)))
    g.output("layer of a transposed", turned)
    g.output("layer of columns", g.apply("layer_normalization", g.input("y", (7, 9)).transpose(
        1, 0), g.parameter("s7", (7,)), g.parameter("b7", (7,))))
    column = g.apply("slice", g.parameter("table", (6, 3)), axis=1, start=1, end=2).reshape(6)
    g.output("strided scale", g.apply("group_normalization", g.input("z", (1, 6, 2, 2)), column,
                                      g.apply("silu", column), num_groups=3))
    g.output("expanded", g.apply("layer_normalization", g.apply(
        "expand", g.input("e", (2, 1, 6)), shape=(2, 4, 6)), column, g.parameter("b", (6,))))
    check_graph(g, name)


@pytest.mark.parametrize("name", LEVELS)
def test_nan_stays_in_its_group_and_row(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 3, 3)).astype(np.float32)
    x[1, 3, 2, 2] = np.nan
    values = {n: np.ones(6, np.float32) for n in "sb"}
    bad = np.isnan(run_regions(group((2, 6, 3, 3), 3), {"x": x}, PieceRunner(values, name))["y"])
    assert bad[1, 2:4].all() and bad.sum() == 18


def test_impossible_schedules_are_refused() -> None:
    kernel = partition(group((1, 8, 3, 3), 2)).regions[0].kernel
    with pytest.raises(IllegalSchedule, match="9 pixels in 2 parts"):
        lower(kernel, MomentsSchedule(2, 1), level(LEVELS[0]))
