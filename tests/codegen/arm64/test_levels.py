"""What levels of AArch64 multiply bytes with, on emulated CPUs: the interpreter's integers."""

from __future__ import annotations

import emulated
import numpy as np
import pytest
from gpu_devices import absent
from hypothesis import given, note, settings
from hypothesis import strategies as st
from integer_graphs import code_product, convolution, drawn_convolution, operands, product
from native_regions import PieceRunner, check_graph, fewer_at_once, run_regions

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.graph import Graph, evaluate
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import FORMATS, quantised
from smalti.schedule import choose
from smalti.schedule.schedule import InPlace

LEVELS = ("neon_dot", "neon_bf16")
EXAMPLES = 60
BYTES = ((("u8", "i8"), (0, 0)), (("u8", "i8"), (128, 0)), (("u8", "i8"), (200, 0)),
         (("i8", "i8"), (0, 0)), (("i8", "i8"), (-5, 0)), (("u8", "u8"), (7, 128)))


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> None:
    """Leave all out where nothing emulates."""
    if emulated.emulator() is None:
        absent("an emulator of AArch64", "qemu-user-static")


def check(graph: Graph, name: str, pick=choose, bounds=None) -> PieceRunner:
    """Assert that kernels give the very numbers of the graph's interpreter."""
    inputs, parameters = operands(graph)
    runner = PieceRunner(parameters, name, "f32", pick, bounds)
    found = run_regions(graph, inputs, runner)["y"]
    assert np.array_equal(found, evaluate(graph, inputs, parameters)["y"]), runner.schedules
    return runner


CASES = {
    "in place": product(40, 64, 33, behind="bytes"), "few rows": product(3, 36, 70),
    "rounded": product(21, 40, 30, zeros=(128, 0), behind="scaled"),
    "with a sign": product(9, 37, 21, ("i8", "i8"), (-5, 0)),
    "3 x 3": convolution(12, 7, 19, ("u8", "u8"), (7, 128), "bytes"),
    "of each channel": convolution(20, 7, 20, group=20, behind="bytes"),
}


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_products_are_exact(case: str, name: str) -> None:
    runner = check(CASES[case], name)
    if case == "in place":
        assert isinstance(runner.schedules[0].algorithm, InPlace)


@pytest.mark.parametrize("name", LEVELS)
def test_both_factors_may_be_computed(name: str) -> None:
    g = Graph("heads")
    a, b = g.input("a", (2, 3, 17, 20), "u8"), g.input("b", (2, 3, 20, 19), "i8")
    g.output("y", g.apply("mat_mul_integer", a, b, g.constant(9, "u8"), g.constant(0, "i8")))
    check(g, name)


@pytest.mark.parametrize("name", LEVELS)
def test_chunks_have_the_channels_of_whole_blocks(name: str) -> None:
    """44 channels are 11 times 4, and 8 are multiplied at once: none but a chunk of 48 fits."""
    graph = convolution(44, 5, 73, window=1)
    runner = check(graph, name, bounds=limits(level(name), 1, 2 << 10, 4 << 10))
    (schedule,) = runner.schedules
    assert schedule.chunk == (48 if level(name).blocks else 4)


def check_codes(dtype: str, name: str, rows: int, depth: int, columns: int, signed: bool = False,
                form: str = "") -> None:
    """Assert that bytes times the codes of a quantised weight are what these stand for."""
    graph = code_product(rows, depth, columns, signed, form)
    rng = np.random.default_rng(rows)
    weight = quantised(rng.standard_normal((columns, depth), np.float32) + 0.1, dtype)
    x = rng.integers(0, 256, (rows, depth)).astype(np.uint8).view(DTYPES[graph.inputs["x"].dtype])
    expected = (x.astype(np.float64) - (0 if signed else 128)) @ weight.floats().T
    if form == "gated":
        expected = expected[:, :columns // 2] + expected[:, columns // 2:]
    runner = PieceRunner({"w": weight}, name)
    found = run_regions(graph, {"x": x}, runner, dtype, codes=True)["y"]
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert runner.schedules[-1].by_group


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", ["q8", "q4_min"])
def test_codes_of_quantised_weights(dtype: str, name: str) -> None:
    check_codes(dtype, name, 10, 64, 40)


@pytest.mark.parametrize("name", ["neon", *LEVELS])
def test_layers_of_f32_are_as_before(name: str) -> None:
    g = Graph("layer")
    y = g.apply("mat_mul", g.input("x", (9, 20)), g.parameter("w", (20, 30)))
    g.output("y", g.apply("silu", y))
    check_graph(g, name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", [
    (1, 256, 70), (77, 192, 200), (9, 3136, 40), (5, 5472, 3, True), (40, 3136, 33, True),
    (23, 224, 80, False, "gated")], ids=str)
def test_codes_of_every_format(case: tuple, dtype: str, name: str) -> None:
    check_codes(dtype, name, *case)


@pytest.mark.sweep
@given(st.data(), st.sampled_from(LEVELS), st.sampled_from(BYTES),
       st.sampled_from(["", "scaled", "bytes"]))
@settings(max_examples=EXAMPLES)
def test_any_schedule_gives_the_same(data, name: str, pair, behind: str) -> None:
    """Also with caches so small that sums go through many chunks."""
    (dtypes, zeros), draw = pair, data.draw
    graph, bounds = drawn_convolution(draw, name, dtypes, zeros, behind)
    note(str(graph))
    check(graph, name, fewer_at_once(draw), bounds)
