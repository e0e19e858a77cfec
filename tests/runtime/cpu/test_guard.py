"""The numeric guard: errors that it measures, and programs that are compiled again for it."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import relative_error

from smalti.compiler.encode import from_bytes, to_bytes
from smalti.errors import InputError, NumericsError
from smalti.graph import Graph, evaluate
from smalti.graph.quantised import quantised
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.guard import ERROR_MAX, winograd_error
from smalti.runtime.cpu.program import NativeProgram


def normal(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(9 * shape[1]))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("channels", [16, 320, 5000])
def test_weights_of_models_stand_both_sizes_of_winograd(channels: int, folded: bool) -> None:
    weight = normal(20, channels, 3, 3)
    two, four = (winograd_error(weight, size, folded) for size in (2, 4))
    assert 1e-8 < two < four < ERROR_MAX


@pytest.mark.parametrize("folded", [False, True])
def test_transforms_below_the_normal_range_are_found(folded: bool) -> None:
    weight = normal(20, 64, 3, 3) * np.float32(1e-37)
    assert winograd_error(weight, 2, folded) < ERROR_MAX < winograd_error(weight, 4, folded)


def test_one_channel_is_enough() -> None:
    weight = normal(8, 64, 3, 3)
    weight[3] *= np.float32(1e-38)
    assert winograd_error(weight, 4, False) > ERROR_MAX


def test_sums_beyond_the_range_are_infinitely_wrong() -> None:
    assert winograd_error(normal(8, 64, 3, 3) * np.float32(3e38), 4, False) == np.inf


def test_an_output_without_weights_is_exact() -> None:
    assert winograd_error(np.zeros((8, 64, 3, 3), np.float32), 4, False) == 0


def convolution(enlarged: bool = False) -> Graph:
    g = Graph("conv")
    x = g.input("x", (1, 32, 16, 16))
    if enlarged:
        x = g.apply("resize", x, scales=(1, 1, 2, 2))
    g.output("y", g.apply("conv", x, g.parameter("w", (32, 32, 3, 3)), pads=(1, 1, 1, 1)))
    return g


@pytest.mark.parametrize("scale, enlarged, left", [
    (1, False, ""), (1, True, ""), (1e-37, False, "w uses Winograd F(2)"),
    (1e-37, True, "w uses Winograd F(2)"), (3e38, False, "w does not use Winograd"),
    (3e38, True, "w uses Winograd F(2)")])
def test_a_program_falls_back_to_what_is_precise(scale: float, enlarged: bool, left: str) -> None:
    program = compile_graph(convolution(enlarged), threads=1)
    weight = normal(32, 32, 3, 3)
    if scale > 1:  # one tap, so that the convolution itself stays in range
        weight[:] = 0
        weight[:, 5, 1, 1] = 1
    weight *= np.float32(scale)
    program.bind({"w": weight}.__getitem__)
    explained = program.explain()
    assert (f"numeric guard: {left}" in explained) if left else ("numeric guard" not in explained)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 32, 16, 16)).astype(np.float32)
    expected = evaluate(convolution(enlarged), {"x": x}, {"w": weight})["y"]
    assert np.isfinite(expected).all()
    assert relative_error(program.run({"x": x})["y"], expected) < ERROR_MAX


@pytest.mark.parametrize("scale", [1, 1e-37])
def test_quantised_weights_are_looked_at_as_the_floats_that_they_are(scale: float) -> None:
    g = Graph("conv")
    x = g.input("x", (1, 64, 16, 16))
    g.output("y", g.apply("conv", x, g.parameter("w", (64, 64, 3, 3)), pads=(1, 1, 1, 1)))
    held = quantised(normal(64, 64, 3, 3) * np.float32(scale), "q8_min")
    program, plain = (compile_graph(g, threads=1, weights=dtypes)
                      for dtypes in ({"w": "q8_min"}, {}))
    program.bind(lambda name: held)
    plain.bind(lambda name: held.floats())
    assert program.winograd_sizes == plain.winograd_sizes == ({} if scale == 1 else {"w": 2})
    x = np.random.default_rng(0).uniform(-1, 1, (1, 64, 16, 16)).astype(np.float32)
    np.testing.assert_array_equal(program.run({"x": x})["y"], plain.run({"x": x})["y"])


def test_the_same_program_takes_other_weights_afterwards() -> None:
    program = compile_graph(convolution(), threads=1)
    weight, x = normal(32, 32, 3, 3), np.ones((1, 32, 16, 16), np.float32)
    program.bind({"w": weight * np.float32(1e-37)}.__getitem__)
    program.bind({"w": weight}.__getitem__)
    expected = evaluate(convolution(), {"x": x}, {"w": weight})["y"]
    assert relative_error(program.run({"x": x})["y"], expected) < ERROR_MAX


def test_an_image_alone_refuses_what_it_cannot_compute() -> None:
    image = from_bytes(to_bytes(compile_graph(convolution(), threads=1).module))
    with pytest.raises(NumericsError, match="too imprecise for the weights w"):
        NativeProgram(image, 1).bind(lambda name: normal(32, 32, 3, 3) * np.float32(1e-37))


def test_one_of_many_weights_that_is_bound_again_may_need_all_others() -> None:
    g = convolution()
    g.output("z", g.outputs["y"] + g.parameter("bias", (32, 1, 1)))
    program, values = compile_graph(g, threads=1), {"w": normal(32, 32, 3, 3),
                                                    "bias": normal(32, 1, 1)}
    program.bind(values)
    small = {"w": values["w"] * np.float32(1e-37)}
    with pytest.raises(InputError, match="'bias' is missing"):
        program.bind(small, only=["w"])
    program.bind(values)
    program.bind({**values, **small}, only=["w"])
    assert "numeric guard: w uses Winograd F(2)" in program.explain()
    x = np.ones((1, 32, 16, 16), np.float32)
    expected = evaluate(g, {"x": x}, {**values, **small})["y"]
    assert relative_error(program.run({"x": x})["y"], expected) < ERROR_MAX
