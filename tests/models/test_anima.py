"""Anima: parameters, its text, its units, what programs compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native_regions import LEVELS, arrays_for, check_graph
from transformer_graphs import ALLOWED, Arrays, bf16_error, check_program, gpu_error
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import ANIMA, AnimaConfig, anima, anima_graph, anima_text_graph
from smalti.runtime.gpu.interface import Gpu

TINY = AnimaConfig(hidden_size=48, heads=2, mlp_size=96, blocks=1, in_channels=4, out_channels=4,
                   context_dim=24, rank=8, text_dim=32, text_heads=2, text_mlp_size=64,
                   text_blocks=1, vocab_size=64)

WIDE = AnimaConfig(hidden_size=144, heads=2, mlp_size=192, blocks=1, in_channels=4, out_channels=4,
                   context_dim=24, rank=16, text_dim=32, text_heads=2, text_mlp_size=64,
                   text_blocks=1, vocab_size=64)
"""So wide that 192 tokens are stored as halves."""


@pytest.fixture(params=["vulkan", "webgpu"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return request.getfixturevalue(request.param)


def text_given(graph: Graph, counts: list[tuple[int, int]]) -> tuple[Arrays, Arrays]:
    """Inputs with texts of these numbers of tokens of both kinds, and parameters."""
    inputs, parameters = arrays_for(graph)
    for name, column in (("mask", 0), ("tokens_mask", 1)):
        ends = np.array([[row[column]] for row in counts])
        inputs[name] = (np.arange(inputs[name].shape[1]) < ends).astype(np.float32)
    inputs["context"] *= inputs["mask"][:, :, None]
    return inputs, parameters


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    """1.956 billion numbers, and 0.135 of what reads texts."""
    graphs = anima_graph(ANIMA, 1, 8, 8, 4), anima_text_graph(ANIMA, 1, 4, 4)
    for graph, numbers in zip(graphs, (1.956e9, 0.135e9)):
        verify(graph)
        assert sum(math.prod(value.shape) for value in graph.parameters.values()) == \
            pytest.approx(numbers, rel=0.005)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for graph in graphs for name, value in graph.parameters.items()}
    assert shapes["x_embedder.proj.1.weight"] == (2048, 68)
    assert shapes["blocks.27.adaln_modulation_cross_attn.2.weight"] == (6144, 256)
    assert shapes["blocks.0.cross_attn.k_proj.weight"] == (2048, 1024)
    assert shapes["llm_adapter.blocks.5.mlp.0.bias"] == (4096,)
    assert shapes["llm_adapter.embed.weight"] == (32128, 1024)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(anima_graph(TINY, 2, 6, 4, 9), name)
    check_graph(anima_text_graph(TINY, 2, 5, 3), name)


def test_the_program_computes_it() -> None:
    check_program(anima_graph(TINY, 1, 8, 4, 9))


def test_the_program_computes_its_text() -> None:
    check_program(anima_text_graph(TINY, 2, 5, 3))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    counts = [(7, 2), (3, 5)]
    graph = anima_text_graph(TINY, 2, 7, 5)
    inputs, parameters = text_given(graph, counts)
    found = evaluate(graph, inputs, parameters)["context"]
    for row, (length, tokens) in enumerate(counts):
        alone = {name: array[row:row + 1, :tokens if "tokens" in name else length]
                 for name, array in inputs.items()}
        single = anima_text_graph(TINY, 1, length, tokens)
        expected = evaluate(single, alone, parameters)["context"][0]
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)
        assert not found[row, tokens:].any()


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, 2.0**-5):
        monkeypatch.setattr(anima, "STREAM_UNIT", unit)
        graph = anima_graph(TINY, 1, 6, 4, 5)
        found.append(evaluate(graph, *arrays_for(graph))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


@pytest.mark.sweep
def test_activations_of_the_size_of_published_ones_fit_f16(
        gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of hundreds of thousands do not without the unit: pictures were black elsewhere. What is
    added fits, until it is gated."""
    found, size = [], WIDE.hidden_size
    for unit in (anima.STREAM_UNIT, 1.0):
        monkeypatch.setattr(anima, "STREAM_UNIT", unit)
        graph = anima_graph(WIDE, 1, 32, 16, 32)
        inputs, parameters = arrays_for(graph)
        inputs["timesteps"][:] = 500
        block = f"{anima.PREFIX}.blocks.0"
        parameters[f"{block}.mlp.layer2.weight"] *= 200
        parameters[f"{block}.adaln_modulation_mlp.2.weight"][2 * size:] *= 200
        found.append(gpu_error(gpu, graph, "f16", inputs, parameters))
    assert found[0] < ALLOWED["f16"] and not found[1] < 1


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_it(vulkan: Gpu, precision: str) -> None:
    graph = anima_graph(WIDE, 1, 32, 16, 32)
    inputs, parameters = arrays_for(graph)
    inputs["timesteps"][:] = 500
    assert gpu_error(vulkan, graph, precision, inputs, parameters) < ALLOWED[precision]
    graph = anima_text_graph(TINY, 2, 32, 32)
    given = text_given(graph, [(32, 20), (7, 9)])
    assert gpu_error(vulkan, graph, precision, *given) < ALLOWED[precision]


def test_bf16() -> None:
    graph = anima_graph(WIDE, 1, 16, 16, 32)
    assert bf16_error(graph, *arrays_for(graph)) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 \(height x width\)"):
        anima_graph(TINY, 1, 7, 8, 5)
    with pytest.raises(InputError, match=r"513 tokens is given; the model reads 512"):
        anima_text_graph(TINY, 1, 5, 513)
