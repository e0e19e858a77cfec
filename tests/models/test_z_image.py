"""Z-Image and Lumina-Image 2: parameters, texts of a batch, units, what programs compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native_regions import LEVELS, check_graph
from transformer_graphs import (
    ALLOWED,
    bf16_error,
    check_program,
    check_texts_alone,
    gpu_error,
    published,
    with_texts,
)
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import (
    LUMINA2,
    Z_IMAGE,
    Lumina2Config,
    ZImageConfig,
    z_image,
    z_image_block_graph,
    z_image_graph,
)
from smalti.runtime.gpu.interface import Gpu

TINY = ZImageConfig(hidden_size=64, heads=2, mlp_size=96, blocks=1, refiners=1, in_channels=4,
                    out_channels=4, context_dim=24, time_size=32, vector_size=32, axes=(8, 12, 12))

WIDE = ZImageConfig(hidden_size=128, heads=2, mlp_size=192, blocks=1, refiners=1, in_channels=4,
                    out_channels=4, context_dim=24, time_size=32, vector_size=32,
                    axes=(16, 24, 24))
"""So wide that 192 tokens are stored as halves."""


@pytest.fixture(params=["vulkan", "webgpu"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return request.getfixturevalue(request.param)


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    """521 tensors with queries, keys and values in three, 453 as published in one; and 6.15 billion
    numbers."""
    graph = z_image_graph(Z_IMAGE, 1, 8, 8, 4)
    verify(graph)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for name, value in graph.parameters.items()}
    assert len(shapes) == 453
    assert sum(map(math.prod, shapes.values())) == 6_154_908_736
    assert shapes["layers.29.attention.qkv.weight"] == (11520, 3840)
    assert shapes["noise_refiner.1.adaLN_modulation.0.weight"] == (15360, 256)
    assert "context_refiner.1.adaLN_modulation.0.weight" not in shapes
    assert shapes["x_pad_token"] == shapes["cap_pad_token"] == (1, 3840)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(z_image_graph(TINY, 2, 6, 4, 40), name)


def test_the_program_computes_it() -> None:
    check_program(z_image_graph(TINY, 1, 8, 8, 9))


def test_the_program_computes_a_block() -> None:
    check_program(z_image_block_graph(TINY, 64))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    """It is filled up to a multiple of 32 tokens, however long the others are, which also says
    where the image stands."""
    def graph(rows: int, tokens: int) -> Graph:
        return z_image_graph(TINY, rows, 6, 4, tokens)

    counts = [7, 33]
    check_texts_alone(graph, counts, *with_texts(graph(2, 33), counts))


def test_the_units_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are powers of two, and norms read what is in them."""
    found = []
    for power in (0, 1):
        monkeypatch.setattr(z_image, "STREAM_UNIT", 2.0**-5 if power else 1.0)
        monkeypatch.setattr(z_image, "BRANCH_UNIT", 2.0**-7 if power else 1.0)
        graph = z_image_graph(TINY, 1, 6, 4, 5)
        found.append(evaluate(graph, *with_texts(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


@pytest.mark.sweep
def test_activations_of_the_size_of_published_ones_fit_f16(
        gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In other units they do not: this is why pictures of this model are black elsewhere."""
    graph = z_image_block_graph(WIDE, 192)
    inputs, parameters = published(graph)
    assert gpu_error(gpu, graph, "f16", inputs, parameters) < ALLOWED["f16"]
    monkeypatch.setattr(z_image, "STREAM_UNIT", 1.0)
    monkeypatch.setattr(z_image, "BRANCH_UNIT", 1.0)
    plain = z_image_block_graph(WIDE, 192)
    assert not gpu_error(gpu, plain, "f16", inputs, parameters) < 1


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_it(vulkan: Gpu, precision: str) -> None:
    graph = z_image_graph(WIDE, 1, 32, 16, 32)
    inputs, parameters = with_texts(graph, [30])
    assert gpu_error(vulkan, graph, precision, inputs, parameters) < ALLOWED[precision]


def test_bf16() -> None:
    graph = z_image_graph(WIDE, 1, 32, 16, 32)
    assert bf16_error(graph, *with_texts(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 \(height x width\)"):
        z_image_graph(TINY, 1, 7, 8, 5)
    with pytest.raises(InputError, match=r"axes of \(8, 12, 10\) channels do not make up .* 32"):
        z_image_graph(ZImageConfig(64, 2, 96, axes=(8, 12, 10)), 1, 8, 8, 5)


# ---------------------------------------------------------------------- Lumina-Image 2

TINY_LUMINA = Lumina2Config(72, heads=3, kv_heads=1, mlp_size=96, blocks=1, refiners=1,
                            in_channels=4, out_channels=4, context_dim=24, time_size=32,
                            vector_size=32, axes=(8, 8, 8))
WIDE_LUMINA = Lumina2Config(192, heads=6, kv_heads=2, mlp_size=256, blocks=1, refiners=1,
                            in_channels=4, out_channels=4, context_dim=24, time_size=32,
                            vector_size=32, axes=(12, 10, 10))


def test_the_parameters_of_lumina2_are_those_of_the_checkpoint() -> None:
    """2.61 billion numbers, in fewer tensors than diffusers has, where three are one here."""
    graph = z_image_graph(LUMINA2, 1, 8, 8, 4)
    verify(graph)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for name, value in graph.parameters.items()}
    assert sum(map(math.prod, shapes.values())) == 2_609_769_152
    assert shapes["layers.25.attention.qkv.weight"] == (2304 + 2 * 768, 2304)
    assert shapes["noise_refiner.1.adaLN_modulation.1.weight"] == (4 * 2304, 1024)
    assert not {"x_pad_token", "cap_pad_token"} & set(shapes)


@pytest.mark.sweep
def test_the_program_computes_lumina2() -> None:
    check_program(z_image_graph(TINY_LUMINA, 2, 6, 4, 9))


def test_a_text_of_lumina2_is_read_as_if_it_were_alone() -> None:
    """Its number of tokens also says where the image stands; what is behind it is not seen."""
    def graph(rows: int, tokens: int) -> Graph:
        return z_image_graph(TINY_LUMINA, rows, 6, 4, tokens)

    counts = [1, 7, 12]
    check_texts_alone(graph, counts, *with_texts(graph(3, 12), counts, zeros=False))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["vulkan", "webgpu"])
def test_activations_of_lumina2_fit_f16(
        request: pytest.FixtureRequest, name: str) -> None:
    graph = z_image_block_graph(WIDE_LUMINA, 192)
    assert gpu_error(request.getfixturevalue(name), graph, "f16", *published(graph)) \
        < ALLOWED["f16"]


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_lumina2(vulkan: Gpu, precision: str) -> None:
    graph = z_image_graph(WIDE_LUMINA, 1, 16, 8, 32)
    assert gpu_error(vulkan, graph, precision, *with_texts(graph, [30])) < ALLOWED[precision]


@pytest.mark.sweep
def test_bf16_of_lumina2() -> None:
    graph = z_image_graph(WIDE_LUMINA, 1, 16, 16, 32)
    assert bf16_error(graph, *with_texts(graph, [30])) < ALLOWED["bf16"]
