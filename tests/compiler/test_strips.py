"""Strips: the same results in less memory, whatever the order of tiles between two barriers."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from built_modules import built
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, arrays_for, relative_error

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.compiler import strips
from smalti.compiler.encode import from_bytes, to_bytes
from smalti.compiler.module import Module
from smalti.errors import NumericsError
from smalti.graph import Graph, Value, evaluate
from smalti.models import vae_decoder_graph
from smalti.models.config import VaeConfig
from smalti.runtime.cpu.program import SCRATCH_ALIGNMENT, NativeProgram
from smalti.runtime.cpu.recording import Table

SMALL_VAE = VaeConfig(channels=8, block_channels=(8, 16, 16), res_blocks=1, z_channels=4,
                      norm_groups=4)


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips wherever they save anything."""
    for name, value in {"SAVED_BYTES_MIN": 1, "SAVED_SHARE_MIN": 0,
                        "STRIP_TILES_PER_THREAD": 1}.items():
        monkeypatch.setattr(strips, name, value)


def decoder() -> Graph:
    return vae_decoder_graph(SMALL_VAE, 1, 24, 20)


def image_of(graph: Graph, name: str, threads: int, precision: str = "f32") -> Module:
    return built(graph, level(name), limits(level(name), threads), precision)


def bound(image: Module, parameters: dict, threads: int) -> NativeProgram:
    program = NativeProgram(image, threads)
    program.bind(parameters.__getitem__)
    return program


def plain_image(graph: Graph, name: str, threads: int, precision: str = "f32") -> Module:
    """The image without strips."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strips, "SAVED_BYTES_MIN", 1 << 60)
        return image_of(graph, name, threads, precision)


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
def test_a_decoder_takes_less_memory_for_the_same_bytes(name: str, precision: str) -> None:
    graph = decoder()
    inputs, parameters = arrays_for(graph)
    expected = evaluate(graph, inputs, parameters)["image"]
    image, plain = (make(graph, name, 2, precision) for make in (image_of, plain_image))
    groups = {region.scope.rpartition(".")[2] for region in image.regions if region.strips > 1}
    assert {"conv1", "nin_shortcut", "conv2"} <= groups
    assert all(region.strips == 1 for region in plain.regions)
    assert image.arena_bytes < 0.75 * plain.arena_bytes
    found = [bound(plain, parameters, 2).run(inputs)["image"]]
    for threads in (1, 2, 3):
        program = bound(image, parameters, threads)
        assert program.crew == threads
        found.append(program.run(inputs)["image"])
    assert len({array.tobytes() for array in found}) == 1
    assert relative_error(found[0], expected) < (1e-5 if precision == "f32" else 2e-2)


def run_in_any_order(program: NativeProgram, inputs: dict, source: random.Random) -> np.ndarray:
    """The first output, when tiles between two barriers run in a random order."""
    program._start(inputs)
    launches, between = program.module.launches, []
    for number, launch in enumerate(launches):
        between += [(number, tile) for tile in range(launch.first, launch.tiles)]
        if not launch.barrier:
            continue
        source.shuffle(between)
        rows = [replace(program._row(which, launches[which]), first=tile, tiles=tile + 1)
                for which, tile in between]
        scratch = program._scratch.ctypes.data
        table = Table([rows], 1, scratch + -scratch % SCRATCH_ALIGNMENT, program._scratch_bytes)
        table.run(0, 1, True)
        between = []
    assert launches[-1].barrier
    return next(iter(program._outputs.values())).copy()


@pytest.mark.parametrize("name", LEVELS)
def test_tiles_between_two_barriers_run_in_any_order(name: str) -> None:
    graph = decoder()
    inputs, parameters = arrays_for(graph)
    program = bound(image_of(graph, name, 2), parameters, 2)
    assert any(not launch.barrier for launch in program.module.launches)
    expected = program.run(inputs)["image"].copy()
    for seed in range(3):
        found = run_in_any_order(program, inputs, random.Random(seed))
        np.testing.assert_array_equal(found, expected)


@st.composite
def towers(draw: st.DrawFn) -> Graph:
    """Convolutions on top of each other, each of them read by the next one and by others."""
    g = Graph("tower")
    shape = (draw(st.integers(1, 2)), draw(st.sampled_from([3, 8, 20])),
             draw(st.integers(17, 50)), draw(st.integers(6, 30)))
    x = g.apply("conv", g.input("x", shape), g.parameter("w", (32, shape[1], 1, 1)))
    for number in range(draw(st.integers(1, 3))):
        x = _storey(draw, x, f"n{number}")
    g.output("y", x)
    return g


def _storey(draw: st.DrawFn, x: Value, name: str) -> Value:
    g, channels = x.graph, draw(st.sampled_from([4, 8, 16, 24]))

    def conv(x: Value, channels: int, name: str) -> Value:
        window = draw(st.sampled_from([1, 3]))
        step = draw(st.sampled_from([1, 1, 2])) if name.endswith("c") else 1
        weight = g.parameter(name, (channels, x.shape[1], window, window))
        return g.apply("conv", x, weight, pads=(window // 2,) * 4, strides=(step, step))

    kind = draw(st.sampled_from(["chain", "enlarge", "residual", "shortcut", "shortcut"]))
    if kind == "enlarge" and x.shape[2] < 60:
        return conv(g.apply("resize", x, scales=(1, 1, 2, 2)), channels, name)
    if kind == "residual":
        return x + conv(g.apply("relu", conv(x, channels, name)), x.shape[1], name + "b")
    if kind == "shortcut":
        inner = g.apply("tanh", conv(x, channels, name))
        return conv(inner, channels, name + "b") + conv(x, channels, name + "s")
    return conv(g.apply("relu", x), channels, name + "c")


@examples(20)
@given(towers(), st.sampled_from(LEVELS), st.integers(1, 3), st.sampled_from(["f32", "bf16"]))
def test_random_towers_compute_the_same(graph: Graph, name: str, threads: int,
                                        precision: str) -> None:
    note(str(graph))
    inputs, parameters = arrays_for(graph)
    with pytest.MonkeyPatch.context() as patch:
        for constant in ("SAVED_BYTES_MIN", "SAVED_SHARE_MIN"):
            patch.setattr(strips, constant, 0)
        patch.setattr(strips, "STRIP_TILES_PER_THREAD", 1)
        image = image_of(graph, name, threads, precision)
    plain = plain_image(graph, name, threads, precision)
    assert image.arena_bytes <= plain.arena_bytes
    program = bound(image, parameters, threads)
    expected = bound(plain, parameters, threads).run(inputs)["y"]
    for _ in range(2):
        np.testing.assert_array_equal(program.run(inputs)["y"], expected)
    found = run_in_any_order(program, inputs, random.Random(0))
    np.testing.assert_array_equal(found, expected)


def test_explain_shows_strips() -> None:
    program = NativeProgram(image_of(decoder(), LEVELS[-1], 1), 1)
    kernels = re.split(r"^ {0,4}\d+  ", program.explain(all=True), flags=re.M)[1:]
    found = [text for text in kernels if "strips, over its operand" in text]
    assert len(found) == sum(region.strips > 1 for region in program.module.regions) > 0
    assert any("nin_shortcut" in text for text in found)


def test_an_image_with_strips_goes_to_bytes_and_back() -> None:
    image = image_of(decoder(), LEVELS[0], 1)
    assert any(launch.first for launch in image.launches)
    assert from_bytes(to_bytes(image)) == image


def test_what_is_not_finite_is_found_in_a_kernel_that_runs_in_strips(
        monkeypatch: pytest.MonkeyPatch) -> None:
    graph = decoder()
    inputs, parameters = arrays_for(graph)
    image = image_of(graph, LEVELS[-1], 2)
    inside = next(region.scope for region in image.regions
                  if region.strips > 1 and region.scope.endswith("nin_shortcut"))
    parameters[f"{inside}.bias"] = np.full_like(parameters[f"{inside}.bias"], 3e38)
    parameters[f"{inside}.weight"] = parameters[f"{inside}.weight"] * 1e38
    program, ends = bound(image, parameters, 2), []
    launch = program._launch
    monkeypatch.setattr(program, "_launch", lambda first, last: (
        ends.append(last), launch(first, last)))
    with pytest.raises(NumericsError, match=inside):
        program.run_checked(inputs)
    assert all(image.launches[end - 1].barrier for end in ends)


def test_small_programs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    image = image_of(decoder(), LEVELS[0], 1)
    assert all(region.strips == 1 for region in image.regions)
    assert len(image.launches) == len(plain_image(decoder(), LEVELS[0], 1).launches)
