"""Qwen-Image-2.1: parameters, texts of a batch, its unit, what programs compute."""

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
from smalti.models import QWEN_IMAGE21, QwenImage21Config, qwen_image21, qwen_image21_graph

TINY = QwenImage21Config(hidden_size=64, heads=2, mlp_size=96, blocks=2, in_channels=16,
                         out_channels=16, context_dim=24, axes=(4, 14, 14))

WIDE = QwenImage21Config(hidden_size=128, heads=2, mlp_size=192, blocks=1, in_channels=16,
                         out_channels=16, context_dim=24, axes=(8, 28, 28))
"""So wide that 192 tokens are stored as halves."""

given = partial(with_texts, zeros=False)
"""Inputs and parameters: what lies behind a text is any numbers, and must not count."""


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = qwen_image21_graph(QWEN_IMAGE21, 1, 4, 4, 4)
    verify(graph)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for name, value in graph.parameters.items()}
    assert sum(map(math.prod, shapes.values())) == 7_115_124_736
    assert shapes["transformer_blocks.31.img_mlp.gate_layer.weight"] == (12288, 4096)
    assert shapes["modulation.1.weight"] == (16384, 4096)
    assert shapes["img_in.weight"] == (4096, 64)
    assert not any(name.endswith("bias") for name in shapes)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(qwen_image21_graph(TINY, 2, 4, 6, 9), name)


def test_the_program_computes_it() -> None:
    check_program(qwen_image21_graph(TINY, 1, 4, 4, 9))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    """Its number of tokens also says where the image stands; what is behind it is not seen."""
    def graph(rows: int, tokens: int) -> Graph:
        return qwen_image21_graph(TINY, rows, 4, 2, tokens)

    counts = [1, 7, 12]
    check_texts_alone(graph, counts, *given(graph(3, 12), counts))


def test_a_token_of_a_text_sees_those_before_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what becomes of a text changes neither with the image nor with the time."""
    states = []
    block = qwen_image21._block

    def kept(streams, *more):
        found = block(streams, *more)
        states.append(found[0])
        return found

    monkeypatch.setattr(qwen_image21, "_block", kept)
    graph = qwen_image21_graph(TINY, 1, 4, 2, 6)
    graph.output("text", states[0])
    inputs, parameters = given(graph, [6])
    before = evaluate(graph, inputs, parameters)["text"]
    inputs = {**inputs, "latent": inputs["latent"] + 1, "timesteps": inputs["timesteps"] / 2}
    np.testing.assert_array_equal(evaluate(graph, inputs, parameters)["text"], before)
    context = inputs["context"].copy()
    context[:, 3] += 1
    after = evaluate(graph, {**inputs, "context": context}, parameters)["text"]
    np.testing.assert_array_equal(after[:, :3], before[:, :3])
    assert np.abs(after[:, 3:] - before[:, 3:]).min(axis=(0, 2)).max() > 0


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, 2.0**-6):
        monkeypatch.setattr(qwen_image21, "STREAM_UNIT", unit)
        graph = qwen_image21_graph(TINY, 1, 4, 4, 5)
        found.append(evaluate(graph, *given(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_large_sums_between_blocks_fit_f16(request: pytest.FixtureRequest, device: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of thousands, which do not in another unit."""
    gpu = request.getfixturevalue(device)
    for unit in (qwen_image21.STREAM_UNIT, 1.0):
        monkeypatch.setattr(qwen_image21, "STREAM_UNIT", unit)
        graph = qwen_image21_graph(WIDE, 1, 16, 10, 32)
        inputs, parameters = given(graph, [32])
        for name, value in parameters.items():
            if name.endswith(("to_v.weight", "img_mlp.proj.weight")):
                parameters[name] = value * np.float32(100)
            if name.endswith(("to_out.0.weight", "img_mlp.out.weight")):
                parameters[name] = value * np.float32(3000)
        error = gpu_error(gpu, graph, "f16", inputs, parameters)
        assert (error < ALLOWED["f16"]) == (unit != 1)


@pytest.mark.sweep
@pytest.mark.parametrize(("device", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it(request: pytest.FixtureRequest, device: str, precision: str) -> None:
    graph = qwen_image21_graph(WIDE, 1, 16, 10, 32)
    gpu = request.getfixturevalue(device)
    assert gpu_error(gpu, graph, precision, *given(graph, [30])) < ALLOWED[precision]


def test_bf16() -> None:
    graph = qwen_image21_graph(WIDE, 1, 16, 10, 32)
    assert bf16_error(graph, *given(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"axes of \(8, 12, 10\) channels do not make up .* 32"):
        qwen_image21_graph(QwenImage21Config(64, 2, 96, axes=(8, 12, 10)), 1, 8, 8, 5)
