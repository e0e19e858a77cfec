"""Z-Image: parameters, how texts of a batch are filled up, its units, what programs compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native_regions import LEVELS, arrays_for, check_graph
from transformer_graphs import check_program

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import Z_IMAGE, ZImageConfig, z_image, z_image_block_graph, z_image_graph

TINY = ZImageConfig(hidden_size=64, heads=2, mlp_size=96, blocks=1, refiners=1, in_channels=4,
                    out_channels=4, context_dim=24, time_size=32, vector_size=32, axes=(8, 12, 12))


def given(graph: Graph, counts: list[int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs with texts of these numbers of tokens, zeros behind them, and parameters."""
    inputs, parameters = arrays_for(graph)
    mask = np.arange(inputs["mask"].shape[1]) < np.array(counts)[:, None]
    inputs["mask"] = mask.astype(np.float32)
    inputs["context"] *= inputs["mask"][:, :, None]
    inputs["timesteps"] = np.linspace(1000, 200, len(counts)).astype(np.float32)
    return inputs, parameters


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


@pytest.mark.sampled
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
    counts, height, width = [7, 33], 6, 4
    graph = z_image_graph(TINY, len(counts), height, width, max(counts))
    inputs, parameters = given(graph, counts)
    found = evaluate(graph, inputs, parameters)["prediction"]
    for row, count in enumerate(counts):
        alone = {name: array[row:row + 1] for name, array in inputs.items()}
        alone["context"], alone["mask"] = alone["context"][:, :count], alone["mask"][:, :count]
        single = z_image_graph(TINY, 1, height, width, count)
        expected = evaluate(single, alone, parameters)["prediction"][0]
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)


def test_the_units_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are powers of two, and norms read what is in them."""
    found = []
    for power in (0, 1):
        monkeypatch.setattr(z_image, "STREAM_UNIT", 2.0**-5 if power else 1.0)
        monkeypatch.setattr(z_image, "BRANCH_UNIT", 2.0**-7 if power else 1.0)
        graph = z_image_graph(TINY, 1, 6, 4, 5)
        found.append(evaluate(graph, *given(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 \(height x width\)"):
        z_image_graph(TINY, 1, 7, 8, 5)
    with pytest.raises(InputError, match=r"axes of \(8, 12, 10\) channels do not make up .* 32"):
        z_image_graph(ZImageConfig(64, 2, 96, axes=(8, 12, 10)), 1, 8, 8, 5)
