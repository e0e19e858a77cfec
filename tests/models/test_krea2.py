"""Krea 2: parameters, its text, its unit, what programs compute."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from native_regions import LEVELS, check_graph
from transformer_graphs import ALLOWED, bf16_error, check_program, gpu_error, with_texts

from smalti.errors import InputError
from smalti.graph import evaluate, verify
from smalti.models import KREA2, Krea2Config, krea2, krea2_graph, krea2_text_graph
from smalti.runtime.gpu.interface import Gpu

TINY = Krea2Config(hidden_size=64, heads=4, kv_heads=2, mlp_size=96, blocks=1, in_channels=4,
                   out_channels=4, text_dim=24, taps=3, text_heads=2, text_kv_heads=1,
                   text_mlp_size=40, layer_blocks=1, text_blocks=1, axes=(4, 6, 6))

WIDE = Krea2Config(hidden_size=128, heads=4, kv_heads=2, mlp_size=192, blocks=1, in_channels=4,
                   out_channels=4, text_dim=24, taps=3, text_heads=2, text_kv_heads=1,
                   text_mlp_size=40, layer_blocks=1, text_blocks=1, axes=(8, 12, 12))
"""So wide that 192 tokens are stored as halves."""

given = partial(with_texts, zeros=False)
"""Inputs and parameters: what lies behind a text is any numbers, and must not count."""


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graphs = krea2_graph(KREA2, 1, 8, 8, 4), krea2_text_graph(KREA2, 1, 4)
    for graph in graphs:
        verify(graph)
    shapes = {name.removeprefix("model.diffusion_model."): value.shape
              for graph in graphs for name, value in graph.parameters.items()}
    assert sum(map(math.prod, shapes.values())) == pytest.approx(12.82e9, rel=0.002)
    assert shapes["blocks.27.attn.wk.weight"] == (1536, 6144)
    assert shapes["blocks.0.mod.lin"] == (36864,)
    assert shapes["txtfusion.layerwise_blocks.1.mlp.up.weight"] == (6912, 2560)
    assert shapes["txtfusion.projector.weight"] == (1, 12)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(krea2_graph(TINY, 2, 6, 4, 9), name)
    check_graph(krea2_text_graph(TINY, 2, 5), name)


def test_the_program_computes_it() -> None:
    check_program(krea2_graph(TINY, 1, 8, 4, 9))


def test_the_program_computes_its_text() -> None:
    check_program(krea2_text_graph(TINY, 2, 5))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    counts = [7, 3]
    graph = krea2_text_graph(TINY, 2, 7)
    inputs, parameters = given(graph, counts)
    found = evaluate(graph, inputs, parameters)["context"]
    picture = krea2_graph(TINY, 2, 6, 4, 7)
    more, others = given(picture, counts)
    more["context"] = found
    seen = evaluate(picture, more, others)["prediction"]
    for row, count in enumerate(counts):
        alone = {name: array[row:row + 1, :count] for name, array in inputs.items()}
        expected = evaluate(krea2_text_graph(TINY, 1, count), alone, parameters)["context"]
        np.testing.assert_allclose(found[row:row + 1, :count], expected, rtol=1e-4, atol=1e-5)
        alone = {name: array[row:row + 1] for name, array in more.items()}
        alone |= {name: alone[name][:, :count] for name in ("context", "mask")}
        expected = evaluate(krea2_graph(TINY, 1, 6, 4, count), alone, others)["prediction"]
        np.testing.assert_allclose(seen[row:row + 1], expected, rtol=1e-4, atol=1e-5)


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, 2.0**-5):
        monkeypatch.setattr(krea2, "STREAM_UNIT", unit)
        graph = krea2_graph(TINY, 1, 6, 4, 5)
        found.append(evaluate(graph, *given(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_it(vulkan: Gpu, precision: str) -> None:
    graph = krea2_graph(WIDE, 1, 32, 16, 32)
    assert gpu_error(vulkan, graph, precision, *given(graph, [30])) < ALLOWED[precision]
    graph = krea2_text_graph(TINY, 2, 32)
    assert gpu_error(vulkan, graph, precision, *given(graph, [32, 9])) < ALLOWED[precision]


def test_bf16() -> None:
    graph = krea2_graph(WIDE, 1, 16, 16, 32)
    assert bf16_error(graph, *given(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 \(height x width\)"):
        krea2_graph(TINY, 1, 7, 8, 5)
