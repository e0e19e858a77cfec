"""The transformer of SD 3: parameters, text, sizes, and what native code computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import EACH_LEVEL, arrays_for, check_graph
from transformer_graphs import check_program

from smalti.errors import InputError
from smalti.graph import evaluate, parse, show, verify
from smalti.models import SD3_MEDIUM, SD35_LARGE, SD35_MEDIUM, MMDiTConfig, mmdit_graph

TINY = MMDiTConfig(hidden_size=32, heads=2, blocks=3, positions=8, qk_norm=True, dual_blocks=2,
                   in_channels=4, out_channels=4, context_dim=24, pooled_dim=20)
PREFIX = "model.diffusion_model."


@pytest.mark.parametrize("config, count, positions", [
    (SD3_MEDIUM, 491, (1, 36864, 1536)),
    (SD35_MEDIUM, 491 + 4 * 24 + 13 * 6, (1, 147456, 1536)),
    (SD35_LARGE, 491 + 14 * 20 + 4 * 38, (1, 36864, 2432)),
])
def test_the_parameters_are_those_of_the_checkpoint(config, count, positions) -> None:
    graph = mmdit_graph(config, 1, 8, 8, 4)
    verify(graph)
    assert show(parse(show(graph))) == show(graph)
    shapes = {name.removeprefix(PREFIX): v.shape for name, v in graph.parameters.items()}
    width, last = config.hidden_size, config.blocks - 1
    assert len(shapes) == count and shapes["pos_embed"] == positions
    assert shapes["x_embedder.proj.weight"] == (width, 16, 2, 2)
    assert shapes[f"joint_blocks.{last}.context_block.adaLN_modulation.1.weight"] == (
        2 * width, width)
    assert f"joint_blocks.{last}.context_block.attn.proj.weight" not in shapes
    assert shapes["final_layer.linear.weight"] == (64, width)


@EACH_LEVEL
def test_native_code_computes_it(name: str) -> None:
    check_graph(mmdit_graph(TINY, 2, 6, 4, 5, control=(0, 1, -1)), name)


def test_the_program_computes_it() -> None:
    check_program(mmdit_graph(TINY, 1, 8, 10, 9))


def test_positions_are_those_of_the_middle() -> None:
    """Numbers outside the middle change nothing, those in it do."""
    graph = mmdit_graph(TINY, 1, 4, 8, 3)
    inputs, parameters = arrays_for(graph)
    places = parameters[f"{PREFIX}pos_embed"].reshape(8, 8, 32)
    expected = evaluate(graph, inputs, parameters)["prediction"]
    outside = np.ones((8, 8), bool)
    outside[3:5, 2:6] = False
    places[outside] += 7
    np.testing.assert_array_equal(evaluate(graph, inputs, parameters)["prediction"], expected)
    places[3, 2] += 7
    assert (evaluate(graph, inputs, parameters)["prediction"] != expected).any()


def test_a_block_that_is_not_kept_adds_nothing() -> None:
    """Its own weights do not matter then, row by row; with all kept it is the graph without."""
    graph = mmdit_graph(TINY, 2, 4, 4, 3, gated=True)
    inputs, parameters = arrays_for(graph)
    plain = {name: array for name, array in inputs.items() if name != "keep"}
    expected = evaluate(mmdit_graph(TINY, 2, 4, 4, 3), plain, parameters)["prediction"]
    inputs["keep"] = np.ones((2, TINY.blocks), np.float32)
    np.testing.assert_array_equal(evaluate(graph, inputs, parameters)["prediction"], expected)
    inputs["keep"][1, 1] = 0
    skipping = evaluate(graph, inputs, parameters)["prediction"]
    np.testing.assert_array_equal(skipping[0], expected[0])
    assert (skipping[1] != expected[1]).any()
    for name in parameters:
        if "joint_blocks.1." in name:
            parameters[name] = parameters[name] * np.float32(0.5)
    found = evaluate(graph, inputs, parameters)["prediction"]
    np.testing.assert_array_equal(found[1], skipping[1])
    assert (found[0] != skipping[0]).any()


@pytest.mark.parametrize("height, width", [(7, 8), (8, 0), (18, 8)])
def test_sizes_that_do_not_fit_are_refused(height: int, width: int) -> None:
    with pytest.raises(InputError, match="at most 16"):
        mmdit_graph(replace(TINY, positions=8), 1, height, width, 5)
