"""Chroma: parameters, masks, the order of its modulations, and what native code computes."""

from __future__ import annotations

import numpy as np
from native_regions import EACH_LEVEL, arrays_for, check_graph
from transformer_graphs import check_program

from smalti.graph import evaluate, verify
from smalti.models import CHROMA, ChromaConfig, chroma_graph, chroma_modulation_graph

TINY = ChromaConfig(hidden_size=64, heads=2, mlp_size=256, double_blocks=1, single_blocks=2,
                    in_channels=4, out_channels=4, context_dim=24, axes=(4, 12, 16),
                    approximator_size=40, approximator_layers=2)


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    """643 tensors, of which 29 belong to the network that modulates."""
    graph, modulation = chroma_graph(CHROMA, 1, 8, 8, 4), chroma_modulation_graph(CHROMA)
    verify(graph)
    verify(modulation)
    assert len(graph.parameters) + len(modulation.parameters) == 643
    prefix = "model.diffusion_model.distilled_guidance_layer."
    shapes = {name.removeprefix(prefix): v.shape for name, v in modulation.parameters.items()}
    assert shapes["in_proj.weight"] == (5120, 64) and shapes["out_proj.weight"] == (3072, 5120)
    assert shapes["norms.4.scale"] == (5120,) and shapes["layers.4.in_layer.bias"] == (5120,)


@EACH_LEVEL
def test_native_code_computes_it(name: str) -> None:
    check_graph(chroma_graph(TINY, 2, 6, 4, 5, masked=True), name)
    check_graph(chroma_modulation_graph(TINY, 2), name)


def test_the_program_computes_it() -> None:
    check_program(chroma_graph(TINY, 1, 8, 8, 9))
    check_program(chroma_modulation_graph(TINY))


def test_masked_text_is_as_good_as_none() -> None:
    """Tokens that nobody sees may be left out: text stands at no place."""
    graph, shorter = chroma_graph(TINY, 1, 4, 4, 6, masked=True), chroma_graph(TINY, 1, 4, 4, 4)
    inputs, parameters = arrays_for(graph)
    inputs["mask"] = np.array([[1, 1, 1, 1, 0, 0]], np.float32)
    found = evaluate(graph, inputs, parameters)["prediction"]
    del inputs["mask"]
    inputs["context"] = inputs["context"][:, :4]
    expected = evaluate(shorter, inputs, parameters)["prediction"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
