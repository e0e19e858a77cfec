"""What precision "int8" makes of a graph: which layers are of integers, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from smalti.compiler.targets import TARGETS
from smalti.errors import InputError
from smalti.fuse import partition
from smalti.fuse.support import lacking
from smalti.graph import Graph, Value, evaluate
from smalti.nn import linear
from smalti.rewrite import rewrite
from smalti.rewrite.rounding import BEHIND_SILU, CHANNELS_MIN, ROWS_MIN, candidates
from smalti.runtime import compile_graph
from smalti.runtime.cpu.adapter import available_levels
from smalti.schedule.merge import in_place

WIDE = 2 * CHANNELS_MIN


def layers(*widths: int, rows: int = ROWS_MIN, start: int = WIDE) -> Graph:
    """Linear layers l0, l1, ... with tanh between them."""
    g = Graph("layers")
    x = g.input("x", (1, rows, start))
    for number, width in enumerate(widths):
        x = linear(x, f"l{number}", width)
        x = g.apply("tanh", x) if number < len(widths) - 1 else x
    g.output("y", x)
    return g


def arrays(graph: Graph) -> tuple[dict, dict]:
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in graph.inputs.items()}
    return inputs, {n: (rng.standard_normal(v.shape) / np.sqrt(max(1, v.type.size // v.shape[0]))
                        ).astype(np.float32) for n, v in graph.parameters.items()}


def test_all_but_the_first_and_the_last_layer() -> None:
    assert candidates(rewrite(layers(WIDE, WIDE, WIDE, WIDE))) == ("l1.weight", "l2.weight")
    assert not candidates(rewrite(layers(WIDE, WIDE)))


@pytest.mark.parametrize("graph", [
    layers(WIDE, CHANNELS_MIN - 1, WIDE, WIDE), layers(WIDE, WIDE, WIDE, rows=ROWS_MIN - 1)])
def test_small_layers_stay(graph: Graph) -> None:
    assert not set(candidates(rewrite(graph))) & {"l0.weight", "l1.weight", "l2.weight"}


def image(window: int, activation: str = "tanh", **attributes) -> Graph:
    """A convolution between two others."""
    g = Graph("image")
    x = g.input("x", (2, WIDE, 6, 6))
    for name, size, more in (("a", 1, {}), ("b", window, attributes), ("c", 1, {})):
        x = g.apply(activation, g.apply("conv", x, g.parameter(name, (
            WIDE, WIDE // more.get("group", 1), size, size)), g.parameter(f"{name}.bias", (WIDE,)),
            **more))
    g.output("y", x)
    return g


def test_convolutions_of_one_pixel_and_of_windows() -> None:
    assert candidates(rewrite(image(1))) == ("b",)
    for graph in (image(3, pads=(1, 1, 1, 1)), image(1, strides=(2, 2)), image(1, group=2)):
        assert not candidates(rewrite(graph))
    assert candidates(rewrite(image(3, pads=(1, 1, 1, 1))), True) == ("b",)
    assert not candidates(rewrite(image(5)), True)


def eight_bits(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers and a scale for each place beside `axis`."""
    scale = np.abs(x).max(axis=axis, keepdims=True) / 127
    return np.rint(x / scale), scale


def test_silu_is_not_below_what_its_bytes_hold() -> None:
    x = np.linspace(-2, 0, 10001, dtype=np.float32)
    lowest = (x / (1 + np.exp(-x))).min()
    assert -BEHIND_SILU.low < lowest < -0.99 * BEHIND_SILU.low
    scale = BEHIND_SILU.scales(np.array([[0.1, lowest], [9.0, lowest]]))
    assert np.all(np.rint(lowest / scale) >= -BEHIND_SILU.zero)
    assert np.isclose(9 / scale[1], BEHIND_SILU.above)


def test_a_layer_is_what_its_definition_says() -> None:
    """Written here with numpy alone."""
    graph = layers(WIDE, 96, WIDE)
    inputs, weights = arrays(graph)
    found = evaluate(rewrite(graph, lambda node: True, candidates), inputs, weights)["y"]
    x = np.tanh(inputs["x"][0] @ weights["l0.weight"].T + weights["l0.bias"])
    (rows, row_scale), (w, scale) = eight_bits(x, 1), eight_bits(weights["l1.weight"], 1)
    x = np.tanh((rows @ w.T) * row_scale * scale.T + weights["l1.bias"])
    wanted = x @ weights["l2.weight"].T + weights["l2.bias"]
    assert np.abs(found[0] - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("build", [
    lambda: layers(WIDE, 96, 80, WIDE), lambda: image(1), lambda: image(3, pads=(1, 1, 1, 1)),
    lambda: image(3, "silu", pads=(1, 1, 1, 1))])
def test_kernels_compute_the_rewritten_graph(build: Callable[[], Graph]) -> None:
    graph = build()
    inputs, weights = arrays(graph)
    plain = evaluate(graph, inputs, weights)["y"]
    for name in ("avx2", "avx512_vnni", "neon_dot", "neon_bf16"):
        if name not in available_levels():
            continue
        chosen = partial(candidates, windows=TARGETS[name].multiplies_bytes)
        paired = TARGETS[name].pairs_of_bytes
        wanted = evaluate(rewrite(graph, lambda node: True, chosen, paired), inputs, weights)["y"]
        found = []
        for threads in (1, 3)[:1 + (name in ("avx2", "neon_dot"))]:
            program = compile_graph(graph, precision="int8", target=name, threads=threads)
            program.bind(weights)
            found.append(program.run(inputs)["y"])
        assert found[0].tobytes() == found[-1].tobytes()
        near = 2e-3 if TARGETS[name].beside_integers == "f32" else 5e-3  # bf16 rounds by 2e-3
        assert np.linalg.norm(found[0] - wanted) < near * np.linalg.norm(wanted)
        off = np.linalg.norm(found[0] - plain) / np.linalg.norm(plain)
        assert 1e-4 * bool(chosen(rewrite(graph))) < off < 0.02


def test_numbers_that_are_all_zero_and_nan() -> None:
    graph = layers(WIDE, WIDE, WIDE)
    inputs, weights = arrays(graph)
    weights["l1.weight"][:] = 0
    program = compile_graph(graph, precision="int8", threads=1)
    program.bind(weights)
    expected = np.tanh(weights["l1.bias"]) @ weights["l2.weight"].T + weights["l2.bias"]
    assert np.allclose(program.run(inputs)["y"], expected, rtol=0.02, atol=0.02)
    inputs["x"][0, 3, 5] = np.nan
    found = program.run(inputs)["y"][0]
    assert np.isnan(found[3]).all() and np.isfinite(np.delete(found, 3, 0)).all()


def test_a_target_without_integers_refuses() -> None:
    with pytest.raises(InputError, match="no kernels for products of 8 bits at this level; use"):
        compile_graph(layers(WIDE, WIDE), precision="int8", target="neon")


def products(value: Value) -> int:
    return sum(node.operation.name == "mat_mul_rounded" for node in value.graph.nodes)


def test_layers_that_read_the_same_share_its_bytes() -> None:
    g = Graph("heads")
    x = g.apply("tanh", linear(g.input("x", (1, ROWS_MIN, WIDE)), "a", WIDE))
    y = g.apply("tanh", linear(x, "q", WIDE) * linear(x, "k", WIDE) + linear(x, "v", WIDE))
    g.output("y", linear(y, "b", WIDE))
    functions = TARGETS["avx512_vnni"].functions
    found = partition(rewrite(g, lambda node: not lacking(node, functions), candidates),
                      functions=functions)
    out = [region.views["out"].storage.dtype for region in found.regions]
    assert out.count("u8") == 1
    assert sum(in_place(region.kernel, "u8") for region in found.regions
               if region.kernel.form == "contraction") == 3


def test_layers_that_stay_are_named() -> None:
    graph = layers(WIDE, WIDE, WIDE, WIDE)
    for rounded, count in ((candidates, 2), (lambda g: ("l2.weight",), 1), (None, 0)):
        found = rewrite(graph, lambda node: True, rounded)
        assert products(found.outputs["y"]) == count
