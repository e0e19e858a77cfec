"""Products of integers and of weights that are rounded to integers while they are packed."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import INTEGER_LEVELS, PieceRunner, fewer_at_once, run_regions

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.fuse import partition
from smalti.graph import Graph, Value, evaluate
from smalti.graph.operation import DTYPES
from smalti.schedule import choose
from smalti.schedule.schedule import InPlace

EXAMPLES = 15
CLOSE = 1e-6
"""Sums of integers are exact; f32 rounds each of them, its product with a scale, and what is
added."""
HELD = ("f32", "f16", "bf16")


def product(rows: int, depth: int, columns: int, dtype: str = "i8", zero: int = 0,
            turned: bool = True) -> Graph:
    """A matrix product with a weight as checkpoints store it (`turned`), or as it is multiplied."""
    g = Graph("product")
    x = g.input("x", (rows, depth), dtype)
    w = g.parameter("w", (columns, depth)).transpose(1, 0) if turned else g.parameter(
        "w", (depth, columns))
    y = g.apply("mat_mul_rounded", x, w, g.constant(zero, dtype))
    g.output("y", y * g.parameter("s", (columns,)) + g.parameter("b", (columns,)))
    return g


def convolution(channels: int, size: int, out: int, window: int = 3, stride: int = 1,
                dtype: str = "i8", zero: int = 0) -> Graph:
    """A convolution, padded by its zero point."""
    g = Graph("convolution")
    x = g.input("x", (2, channels, size, size), dtype)
    w = g.parameter("w", (out, channels, window, window))
    g.output("y", g.apply("conv_rounded", x, w, g.constant(zero, dtype), pads=(window // 2,) * 4,
                          strides=(stride, stride)))
    return g


def operands(graph: Graph, held: str, seed: int = 0) -> tuple[dict, dict]:
    """Inputs of any bytes, and parameters that `held` has; one channel is 0."""
    rng = np.random.default_rng(seed)
    inputs = {name: rng.integers(0, 256, value.shape).astype(np.uint8).view(DTYPES[value.dtype])
              for name, value in graph.inputs.items()}
    parameters = {name: rng.standard_normal(value.shape).astype(DTYPES[held]).astype(np.float32)
                  for name, value in graph.parameters.items()}
    weight = graph.parameters["w"]
    channel = 1 if weight in graph.users() and any(
        node.operation.name == "mat_mul_rounded" for node in graph.users()[weight]) else 0
    np.moveaxis(parameters["w"], channel, 0)[0] = 0
    return inputs, parameters


def check(graph: Graph, name: str, held: str = "f32", pick=choose, bounds=None) -> PieceRunner:
    """Assert that kernels give what the interpreter of graphs says."""
    inputs, parameters = operands(graph, held)
    runner = PieceRunner(parameters, name, "f32", pick, bounds)
    found = run_regions(graph, inputs, runner, held)["y"]
    wanted = evaluate(graph, inputs, parameters)["y"]
    assert np.abs(found - wanted).max() <= CLOSE * np.abs(wanted).max(), runner.schedules
    assert all(schedule.integers for schedule in runner.schedules)
    return runner


@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("held", HELD)
def test_weights_are_rounded_as_they_are_packed(held: str, name: str) -> None:
    check(product(9, 37, 21), name, held)
    check(product(17, 64, 40, "u8", 128, turned=False), name, held)
    check(convolution(12, 7, 19, zero=-5), name, held)


CASES = {
    "in chunks": product(5, 4096, 40), "one row": product(1, 64, 70),
    "in place": product(40, 64, 33, "u8", 128), "few columns": product(30, 36, 3),
    "by 2": convolution(16, 9, 20, stride=2), "1 x 1": convolution(16, 6, 40, 1, dtype="u8"),
    "window in chunks": convolution(512, 4, 18, zero=9),
}


@pytest.mark.parametrize("name", INTEGER_LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_shapes(case: str, name: str) -> None:
    runner = check(CASES[case], name)
    (schedule,) = runner.schedules
    assert schedule.factors == runner.level.integers
    if case == "in place":
        assert isinstance(schedule.algorithm, InPlace) == (schedule.factors == "quads")


@pytest.mark.parametrize("name", INTEGER_LEVELS)
def test_slices_of_the_sums_are_combined(name: str) -> None:
    """Each with scales of its own, as the halves of GEGLU."""
    g = Graph("gated")
    y = g.apply("mat_mul_rounded", g.input("x", (13, 32), "i8"), g.parameter("w", (32, 80)),
                g.constant(5, "i8"))

    def part(start: int) -> Value:
        return g.apply("slice", y, axis=1, start=start, end=start + 40)

    g.output("y", part(0) * g.apply("gelu", part(40) * 0.01))
    assert len(partition(g).regions) == 1
    check(g, name)


@pytest.mark.parametrize("name", INTEGER_LEVELS)  # none where no level multiplies integers: NEON
@given(data=st.data(), held=st.sampled_from(HELD))
@examples(EXAMPLES)
def test_any_schedule_gives_the_same(data, name: str, held: str) -> None:
    """Also with caches so small that sums go through many chunks."""
    draw = data.draw
    channels, out, window = draw(st.integers(1, 90)), draw(st.integers(1, 80)), draw(
        st.sampled_from([1, 3]))
    dtype, zero = draw(st.sampled_from([("i8", 0), ("u8", 128), ("i8", -3)]))
    graph = convolution(channels, draw(st.integers(1, 9)), out, window, draw(st.integers(1, 2)),
                        dtype, zero)
    bounds = limits(level(name), draw(st.integers(1, 3)), 2 << 10, draw(
        st.sampled_from([4 << 10, 1 << 20])))

    note(str(graph))
    check(graph, name, held, fewer_at_once(draw), bounds)
