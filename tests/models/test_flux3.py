"""FLUX.3: parameters, texts of a batch, times, its unit, what programs compute."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from native_regions import LEVELS, check_graph
from transformer_graphs import (
    ALLOWED,
    Arrays,
    bf16_error,
    check_program,
    check_texts_alone,
    gpu_error,
    with_texts,
)
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import FLUX3_KLEIN, FLUX3_KLEIN_BASE, Flux3Config, flux3, flux3_graph

TINY = Flux3Config(hidden_size=64, heads=2, mlp_size=96, stream_blocks=1, blocks=2, in_channels=8,
                   out_channels=8, context_dim=24, axes=(8, 8, 8, 8), flow_map=True)
WIDE = Flux3Config(hidden_size=128, heads=2, mlp_size=192, stream_blocks=1, blocks=1,
                   in_channels=16, out_channels=16, context_dim=24, axes=(16, 16, 16, 16),
                   flow_map=True)
"""So wide that its tokens are stored as halves."""

given = partial(with_texts, zeros=False)
"""Inputs and parameters: what lies behind a text is any numbers, and must not count."""


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = flux3_graph(FLUX3_KLEIN, 1, 4, 4, 4, referenced=((2, 2),))
    verify(graph)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for name, value in graph.parameters.items()}
    base = flux3_graph(FLUX3_KLEIN_BASE, 1, 4, 4, 4, referenced=((2, 2),))
    assert set(graph.parameters) - set(base.parameters) == {
        f"model.diffusion_model.ref_time_in.{end}_layer.weight" for end in ("in", "out")}
    counted = sum(math.prod(value.shape) for value in base.parameters.values())
    assert counted == pytest.approx(5.54e9, rel=0.002)
    assert shapes["single_blocks.27.mlp_in.weight"] == (18432, 3072)
    assert shapes["content_mode_blocks.image_cond.4.attn_out.weight"] == (3072, 3072)
    assert shapes["txt_in.weight"] == (3072, 20480)
    assert shapes["final_layer.image.adaLN_modulation.1.weight"] == (6144, 3072)
    assert not any(name.endswith(".bias") for name in shapes)
    alone = flux3_graph(FLUX3_KLEIN, 1, 4, 4, 4)  # without the layers for pictures that are read
    assert {name for name in shapes if "image_cond" not in name} == {
        name.removeprefix("model.diffusion_model.") for name in alone.parameters}


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(flux3_graph(TINY, 2, 3, 4, 5, referenced=((2, 3),)), name)


def test_the_program_computes_it() -> None:
    check_program(flux3_graph(TINY, 1, 3, 5, 7, referenced=((2, 2),)))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    """What is behind its window is not seen."""
    def graph(rows: int, tokens: int) -> Graph:
        return flux3_graph(TINY, rows, 3, 2, tokens)

    counts = [2, 7, 12]
    check_texts_alone(graph, counts, *given(graph(3, 12), counts))


def test_texts_and_pictures_that_are_read_do_not_know_the_time() -> None:
    """Before all see each other: with blocks of their own alone, nothing else of them counts."""
    graph = flux3_graph(TINY, 1, 2, 3, 4, referenced=((4, 1), (4, 1)))
    inputs, parameters = given(graph, [4])
    found = evaluate(graph, inputs, parameters)["prediction"]
    swapped = {**inputs, "reference.0": inputs["reference.1"],
               "reference.1": inputs["reference.0"]}
    for other in (swapped, {**inputs, "target": inputs["target"] + 100},
                  {**inputs, "timesteps": inputs["timesteps"] - 100},
                  {**inputs, "context": inputs["context"][:, ::-1]}):
        assert np.abs(found - evaluate(graph, other, parameters)["prediction"]).max() > 1e-4
    apart = replace(TINY, blocks=0)
    alone = flux3_graph(apart, 1, 2, 3, 4)
    assert not any("single_blocks" in name for name in alone.parameters)
    first, second = (evaluate(alone, {**inputs, "context": context}, parameters)["prediction"]
                     for context in (inputs["context"], inputs["context"] + 1))
    np.testing.assert_array_equal(first, second)


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, 2.0**-5):
        monkeypatch.setattr(flux3, "STREAM_UNIT", unit)
        graph = flux3_graph(TINY, 1, 3, 4, 5)
        found.append(evaluate(graph, *given(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def giving(graph: Graph, size: float) -> tuple[Arrays, Arrays]:
    """Inputs and parameters with which halves of blocks give about `size` for ones."""
    inputs, parameters = given(graph, [32])
    for name, value in parameters.items():
        if name.endswith(("attn_out.weight", "mlp_out.weight")):
            spread = np.float32(value.shape[1] ** -0.5)
            parameters[name] = value * (np.float32(size) * spread / value.std())
    return inputs, parameters


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_large_sums_between_blocks_fit_f16(request: pytest.FixtureRequest, device: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of thousands, which do not in another unit."""
    gpu = request.getfixturevalue(device)
    for unit in (flux3.STREAM_UNIT, 1.0):
        monkeypatch.setattr(flux3, "STREAM_UNIT", unit)
        graph = flux3_graph(WIDE, 1, 16, 10, 32)
        inputs, parameters = giving(graph, 300)
        for name, value in parameters.items():
            if "_stream_modulations." in name:
                gates = np.arange(len(value)) // WIDE.hidden_size == 2
                parameters[name] = value * np.where(gates, 300, 1).astype(np.float32)[:, None]
        error = gpu_error(gpu, graph, "f16", inputs, parameters)
        assert (error < ALLOWED["f16"]) == (unit != 1)


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_large_sums_before_gates_fit_f16(request: pytest.FixtureRequest, device: str) -> None:
    """What a block gives is stored before its streams' gates make it smaller."""
    graph = flux3_graph(WIDE, 1, 16, 10, 32)
    gpu = request.getfixturevalue(device)
    assert gpu_error(gpu, graph, "f16", *giving(graph, 30_000)) < ALLOWED["f16"]


@pytest.mark.sweep
@pytest.mark.parametrize(("device", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it(request: pytest.FixtureRequest, device: str, precision: str) -> None:
    graph = flux3_graph(WIDE, 1, 8, 8, 64, referenced=((8, 8),))
    gpu = request.getfixturevalue(device)
    assert gpu_error(gpu, graph, precision, *given(graph, [60])) < ALLOWED[precision]


def test_bf16() -> None:
    graph = flux3_graph(WIDE, 1, 16, 10, 32)
    assert bf16_error(graph, *given(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"axes of \(8, 8, 8\) channels do not make up .* 32"):
        flux3_graph(Flux3Config(64, 2, 96, axes=(8, 8, 8)), 1, 2, 2, 3)
