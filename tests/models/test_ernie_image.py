"""ERNIE-Image: parameters, texts of a batch, its unit, what programs compute."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from native_regions import LEVELS, check_graph
from transformer_graphs import (
    ALLOWED,
    bf16_error,
    check_program,
    check_texts_alone,
    gpu_error,
    with_texts,
)
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import ERNIE_IMAGE, ErnieImageConfig, ernie_image, ernie_image_graph

TINY = ErnieImageConfig(hidden_size=64, heads=2, mlp_size=96, blocks=1, in_channels=16,
                        out_channels=16, context_dim=24, axes=(8, 12, 12))

WIDE = ErnieImageConfig(hidden_size=128, heads=2, mlp_size=192, blocks=1, in_channels=16,
                        out_channels=16, context_dim=24, axes=(16, 24, 24))
"""So wide that 192 tokens are stored as halves."""

given = partial(with_texts, zeros=False)
"""Inputs and parameters: what lies behind a text is any numbers, and must not count."""


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = ernie_image_graph(ERNIE_IMAGE, 1, 4, 4, 4)
    verify(graph)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for name, value in graph.parameters.items()}
    assert sum(map(math.prod, shapes.values())) == pytest.approx(8.03e9, rel=0.001)
    assert shapes["layers.35.self_attention.to_out.0.weight"] == (4096, 4096)
    assert shapes["layers.0.mlp.linear_fc2.weight"] == (4096, 12288)
    assert shapes["adaLN_modulation.1.bias"] == (24576,)
    assert shapes["text_proj.weight"] == (4096, 3072)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(ernie_image_graph(TINY, 2, 3, 5, 9), name)


def test_the_program_computes_it() -> None:
    check_program(ernie_image_graph(TINY, 1, 4, 4, 9))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    """Its number of tokens also says where the image stands; what is behind it is not seen."""
    def graph(rows: int, tokens: int) -> Graph:
        return ernie_image_graph(TINY, rows, 3, 2, tokens)

    counts = [1, 7, 12]
    check_texts_alone(graph, counts, *given(graph(3, 12), counts))


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, 2.0**-5):
        monkeypatch.setattr(ernie_image, "STREAM_UNIT", unit)
        graph = ernie_image_graph(TINY, 1, 3, 4, 5)
        found.append(evaluate(graph, *given(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_large_sums_between_blocks_fit_f16(request: pytest.FixtureRequest, device: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of thousands, which do not in another unit."""
    gpu = request.getfixturevalue(device)
    for unit in (ernie_image.STREAM_UNIT, 1.0):
        monkeypatch.setattr(ernie_image, "STREAM_UNIT", unit)
        graph = ernie_image_graph(WIDE, 1, 16, 10, 32)
        inputs, parameters = given(graph, [32])
        width = WIDE.hidden_size
        for name, value in parameters.items():  # gates of 300 for what is up to about 2,000
            if name.endswith(("to_out.0.weight", "linear_fc2.weight")):
                spread = np.float32(value.shape[1] ** -0.5)
                parameters[name] = value * (np.float32(300) * spread / value.std())
            if name.endswith("adaLN_modulation.1.bias"):
                gates = np.isin(np.arange(6 * width) // width, (2, 5))
                parameters[name] = value + np.float32(300) * gates.astype(np.float32)
        error = gpu_error(gpu, graph, "f16", inputs, parameters)
        assert (error < ALLOWED["f16"]) == (unit != 1)


@pytest.mark.sweep
@pytest.mark.parametrize(("device", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it(request: pytest.FixtureRequest, device: str, precision: str) -> None:
    graph = ernie_image_graph(WIDE, 1, 16, 10, 32)
    gpu = request.getfixturevalue(device)
    assert gpu_error(gpu, graph, precision, *given(graph, [30])) < ALLOWED[precision]


def test_bf16() -> None:
    graph = ernie_image_graph(WIDE, 1, 16, 10, 32)
    assert bf16_error(graph, *given(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"axes of \(8, 12, 10\) channels do not make up .* 32"):
        ernie_image_graph(ErnieImageConfig(64, 2, 96, axes=(8, 12, 10)), 1, 8, 8, 5)
