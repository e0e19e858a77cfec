"""Which layers stand integers of 8 bits: found by measuring, once for a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smalti import checkpoint
from smalti.compiler.targets import TARGETS
from smalti.diffusion import rounding, submodels
from smalti.diffusion.influence import influence
from smalti.diffusion.rounding import (
    ERROR_MAX,
    ROWS_MAX,
    STORED,
    LayerChoice,
    at_once,
    error,
    noise,
    tapped,
    too_imprecise,
    within,
    words_help,
)
from smalti.diffusion.submodels import Submodels
from smalti.graph import Graph, evaluate
from smalti.graph.quantised import quantised
from smalti.nn import linear
from smalti.runtime import Program, compile_graph
from smalti.runtime.reference import ReferenceProgram


def layers() -> Graph:
    """Linear layers, a convolution of one pixel and one of 3 x 3."""
    g = Graph("layers")
    x = g.apply("tanh", linear(g.input("latent", (2, 70, 24)), "a", 32))
    image = x.transpose(0, 2, 1).reshape(2, 32, 7, 10)
    image = g.apply("tanh", g.apply("conv", image, g.parameter("b", (48, 32, 1, 1))))
    image = g.apply("conv", image, g.parameter("c", (8, 48, 3, 3)), pads=(1, 1, 1, 1))
    g.output("y", linear(image, "d", 4))
    return g


def numbers(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(value.shape).astype(np.float32)
            for name, value in graph.parameters.items()}


def test_rows_of_what_layers_read_come_out() -> None:
    graph = layers()
    taps, weights = tapped(graph), numbers(graph)
    assert [tap.name for tap in taps] == ["a.weight", "b", "c", "d.weight"]
    outputs = evaluate(graph, noise(graph, 500.0), weights)
    first, second, third, last = (outputs[tap.output] for tap in taps)
    assert first.shape[0] == second.shape[0] == last.shape[0] == ROWS_MAX
    assert third.shape == (2, 7, 10, 48)
    product = first @ taps[0].weight(weights["a.weight"]) + weights["a.bias"]
    assert np.allclose(np.tanh(product[:6]), second[:6], atol=1e-5)
    assert np.array_equal(taps[1].weight(weights["b"]), weights["b"][:, :, 0, 0].T)


def test_rows_come_out_at_once_and_are_the_same() -> None:
    """Each of what was added stands behind what it reads, in front of the next layer."""
    graph = layers()
    own = [*graph.nodes]
    known = influence(graph)
    taps = tapped(graph, False, {"c"})
    weights, inputs = numbers(graph), noise(graph, 500.0)
    before = evaluate(graph, inputs, weights)
    at_once(graph, len(graph.nodes) - len(own))
    assert [node for node in graph.nodes if node in own] == own
    places = {node: place for place, node in enumerate(graph.nodes)}
    for tap, following in zip(taps, taps[1:]):
        assert places[graph.outputs[tap.output].node] < places[following.layer]
    after = evaluate(graph, inputs, weights)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert known.of(before) == known.of(after)


def test_rows_take_no_more_memory_than_their_own() -> None:
    """Beside a program without them: what layers read is gone when they are done with it."""
    def program(made: bool) -> Program:
        g = Graph("deep")
        x = g.apply("tanh", g.input("latent", (4096, 128)))
        for number in range(8):
            x = g.apply("tanh", g.apply("mat_mul", x, g.parameter(f"w{number}", (128, 128))))
        g.output("y", x)
        own = len(g.nodes)
        if made:
            tapped(g)
            at_once(g, len(g.nodes) - own)
        return compile_graph(g, threads=1)

    rows = 8 * ROWS_MAX * 128 * 4
    assert program(True).arena_bytes < program(False).arena_bytes + 2 * rows


def test_windows_are_measured_where_bytes_are_multiplied() -> None:
    graph = layers()
    before = len(graph.nodes)
    assert [tap.name for tap in tapped(graph, windows=False)] == ["a.weight", "b", "d.weight"]
    without = len(graph.nodes) - before
    again = layers()
    tapped(again)
    assert len(again.nodes) - before > without


def test_windows_of_an_image_and_their_weight_fit_together() -> None:
    """The sum of a window is that of the convolution."""
    graph = layers()
    tap, weights = tapped(graph)[2], numbers(graph)
    value = next(node.output for node in graph.nodes if node.operation.name == "conv"
                 and node.inputs[1].shape[2:] == (3, 3))
    graph.output("convolution", value)
    outputs = evaluate(graph, noise(graph, 500.0), weights)
    window = outputs[tap.output][1, 2:5, 4:7].reshape(1, -1)
    assert np.allclose(window @ tap.weight(weights["c"]), outputs["convolution"][1, :, 3, 5],
                       atol=1e-4)
    assert 0.004 < tap.error(outputs[tap.output], weights["c"]) < 0.02


def test_a_held_window_is_off_as_a_convolution_is() -> None:
    """Beside the same convolution by the codes of its weight, over all windows."""
    graph = layers()
    (tap,) = (each for each in tapped(graph, False, {"c"}) if each.name == "c")
    weights, inputs = numbers(graph), noise(graph, 500.0)
    weights["c"] = np.repeat(weights["c"], 2, axis=1)[:, :48]
    value = next(node.output for node in graph.nodes if node.operation.name == "conv"
                 and node.inputs[1].shape[2:] == (3, 3))
    graph.output("convolution", value)
    truth = evaluate(graph, inputs, weights)
    flat = weights["c"].reshape(-1, 32)
    codes = quantised(flat, "q8").floats().reshape(weights["c"].shape)
    found = evaluate(graph, inputs, {**weights, "c": codes})["convolution"]
    off = np.linalg.norm(found - truth["convolution"]) / np.linalg.norm(truth["convolution"])
    assert tap.stored and np.isclose(tap.error(truth[tap.output], weights["c"]), off, rtol=0.2)
    assert 0.003 < off < 0.008


def test_a_window_that_does_not_stand_being_held_is_named() -> None:
    """Its largest weights are for channels that are 0."""
    graph = layers()
    taps, weights = tapped(graph, False, {"c"}), numbers(graph)
    weights["b"][::16] = 0
    outputs = evaluate(graph, noise(graph, 500.0), weights)
    assert too_imprecise(taps, outputs, weights.__getitem__, lambda name: None) == {}
    weights["c"][:, ::16] *= 1000
    outputs = evaluate(graph, noise(graph, 500.0), weights)
    assert too_imprecise(taps, outputs, weights.__getitem__, lambda name: None,
                         words=True) == {"c": "f32"}


def test_what_held_windows_are_off_by_counts() -> None:
    choices = [LayerChoice("window", 9, {STORED: 9e-5, "f32": 0.0}),
               LayerChoice("cheap", 1, {"u8": 1e-4, "i16": 1e-6, "f32": 0.0})]
    for error_max, wanted in ((0.014, {}), (0.013, {"cheap": "i16"}),
                              (0.009, {"cheap": "i16", "window": "f32"})):
        assert within(choices, error_max, {}) == wanted


def test_a_layer_with_one_large_channel_is_named() -> None:
    graph = layers()
    taps, weights, left = tapped(graph), numbers(graph), []
    inputs = noise(graph, 500.0)
    outputs = evaluate(graph, inputs, weights)
    assert too_imprecise(taps, outputs, weights.__getitem__, left.append) == {}
    assert left == [tap.name for tap in taps]
    inputs["latent"][..., 7] *= 300
    weights["a.weight"][:, 7] /= 300
    outputs = evaluate(graph, inputs, weights)
    assert too_imprecise(taps, outputs, weights.__getitem__, left.append) == {"a.weight": "f32"}


def test_a_layer_that_stands_16_bits_has_them() -> None:
    graph = layers()
    taps, weights, left = tapped(graph), numbers(graph), []
    inputs = noise(graph, 500.0)
    inputs["latent"][..., 7] *= 20
    weights["a.weight"][:, 7] /= 20
    outputs = evaluate(graph, inputs, weights)
    for words, wanted in ((True, "i16"), (False, "f32")):
        assert too_imprecise(taps, outputs, weights.__getitem__, left.append,
                             words=words) == {"a.weight": wanted}
    assert too_imprecise(taps, outputs, weights.__getitem__, left.append, words=True,
                         codes=("a.weight",)) == {"a.weight": "f32"}  # its blocks are smaller


def test_16_bits_are_for_cpus_that_would_multiply_f32() -> None:
    assert {name for name, target in TARGETS.items() if words_help(target)} == {
        "avx2", "avx2_vnni", "avx512", "avx512_vnni"}


def test_the_error_is_that_of_both_factors() -> None:
    x, w = np.random.default_rng(0).standard_normal((2, 64, 512)).astype(np.float32)
    assert 0.009 < error(x, w.T) < 0.016 < ERROR_MAX
    assert error(x, w.T) < error(x, w.T, paired=True) < ERROR_MAX
    assert 0.005 < error(x, w.T, codes=True) < 0.8 * error(x, w.T)
    assert error(np.ones((4, 8), np.float32), np.ones((8, 3), np.float32)) < 1e-6
    assert error(x, w.T, words=True) < 0.1 * error(x, w.T)
    assert error(np.zeros((4, 8), np.float32), np.ones((8, 3), np.float32)) == 0


def branches(scale: float) -> Graph:
    """y = x W1 + scale (x W2), beside x itself."""
    g = Graph("branches")
    x = g.apply("tanh", g.input("latent", (40, 64)))
    first, second = (g.apply("mat_mul", x, g.parameter(name, (64, 64))) for name in ("a", "b"))
    g.output("y", g.apply("concat", first + second * scale, x, axis=1))
    return g


def test_an_error_reaches_the_result_as_its_share() -> None:
    """Compared with errors that are made."""
    scale = 0.25
    graph = branches(scale)
    first, second = (node.output for node in graph.nodes if node.operation.name == "mat_mul")
    known, weights = influence(graph), numbers(graph)
    outputs = evaluate(graph, noise(graph, 500.0), weights)
    reached, plain = known.of(outputs), branches(scale)
    rng = np.random.default_rng(5)
    for name, value in (("a", first), ("b", second)):
        off = 1 + 0.01 * rng.standard_normal(weights[name].shape).astype(np.float32)
        found = evaluate(plain, noise(plain, 500.0), {**weights, name: weights[name] * off})["y"]
        made = np.linalg.norm(found - outputs["y"]) / np.linalg.norm(outputs["y"])
        assert np.isclose(made, 0.01 * np.sqrt(reached[value]), rtol=0.1)


def test_layers_have_what_saves_most_time_within_an_error() -> None:
    choices = [LayerChoice(name, flops, {"u8": square, "i16": square / 100, "f32": 0.0})
               for name, flops, square in (
                   ("cheap", 1, 1e-4), ("dear", 9, 1e-4), ("good", 9, 1e-6))]
    choices.append(LayerChoice("no words", 1, {"u8": 1e-6, "f32": 0.0}))
    for error_max, wanted in ((0.02, {}), (0.0102, {"cheap": "i16"}),
                              (0.003, {"cheap": "i16", "dear": "i16"}),
                              (0.0, dict.fromkeys(("cheap", "dear", "good", "no words"), "f32"))):
        assert within(choices, error_max, {}) == wanted
    assert within(choices, 0.02, {"good": "f32"}) == {"good": "f32"}


@pytest.mark.filterwarnings("ignore:this CPU is neither")
def test_measured_once_for_a_checkpoint(model_path: Path, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers are off by more than nothing, and so stay. Programs are those of the reference."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))  # no other test is to find what is kept here
    asked = []

    def compiled(graph: Graph, **options) -> ReferenceProgram:
        asked.append(options)
        return ReferenceProgram(graph)

    monkeypatch.setattr(submodels, "compile_graph", compiled)
    monkeypatch.setattr(rounding, "ERROR_MAX", 0.0)
    monkeypatch.setattr(rounding, "SHARED_ERROR_MAX", 0.0)
    monkeypatch.setattr(rounding, "SIDE", 4)
    first, again = (Submodels(checkpoint.load(model_path), "int8", threads=1) for _ in range(2))
    kept = first.kept("unet")
    assert kept and all(name.endswith("weight") for name in kept)
    assert first.kept("text") == first.kept("vae") == {}
    assert first.using(first.adapted(())).kept("unet") is kept
    monkeypatch.setattr(rounding, "too_imprecise", None)
    assert again.kept("unet") == kept and len(asked) == 1
    again.compiled("unet", again.graph("unet", (1, 4, 4, 77)))
    assert (asked[-1]["precision"], asked[-1]["kept"]) == ("int8", kept)
    again.compiled("vae", again.graph("vae", (4, 4)))
    assert asked[-1]["precision"] in ("f32", "bf16") and not asked[-1]["kept"]


@pytest.mark.filterwarnings("ignore:this CPU is neither")
@pytest.mark.parametrize("level", ["avx2", "avx2_vnni", "neon_dot", None])
def test_what_no_level_needs_is_not_measured(level: str | None, model_path: Path, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of what is joined serve pairs of bytes, what windows read the levels of quads."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    monkeypatch.setattr(rounding, "SIDE", 4)
    asked = []

    def compiled(graph: Graph, **options) -> ReferenceProgram:
        asked.append(graph)
        return ReferenceProgram(graph)

    monkeypatch.setattr(submodels, "compile_graph", compiled)
    monkeypatch.setattr(submodels, "usual_target",
                        lambda device: None if level is None else TARGETS[level])
    Submodels(checkpoint.load(model_path), "int8", threads=1).kept("unet")
    (graph,) = asked
    assert any(name.startswith("square") for name in graph.outputs) == (level == "avx2")
    images = [name for name, value in graph.outputs.items()
              if name.startswith("layer") and len(value.shape) == 4]
    assert bool(images) == (level in ("avx2_vnni", "neon_dot"))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:this CPU is neither")
def test_all_layers_together_are_within_an_error(model_path: Path, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pairs of products are added in 16 bits; of a time step nothing is rounded in any case.
    With less error asked for, no layer has fewer bits."""
    monkeypatch.setattr(submodels, "compile_graph",
                        lambda graph, **options: ReferenceProgram(graph))
    monkeypatch.setattr(submodels, "usual_target", lambda device: TARGETS["avx2"])
    monkeypatch.setattr(rounding, "SIDE", 8)
    monkeypatch.setattr(rounding, "SHARED_ERROR_MAX", 1.0)
    monkeypatch.setattr("smalti.rewrite.rounding.CHANNELS_MIN", 1)
    found = []
    for number, most in enumerate((1.0, 0.01, 0.0)):
        monkeypatch.setattr(rounding, "STEP_ERROR_MAX", most)
        monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / str(number)))
        found.append(Submodels(checkpoint.load(model_path), "int8", threads=1).kept("unet"))
    assert not found[0] and "i16" in found[1].values()
    assert set(found[1]) < set(found[2]) and set(found[2].values()) == {"f32"}
    assert not any("time_embed" in name or "emb_layers" in name for name in found[2])
