"""Models whose pictures can be repeated: they commute with a move around the edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from built_modules import built
from native_regions import LEVELS, arrays_for, relative_error
from peers_models import TINY_UNET, TINY_VAE

from smalti.benchmark import peers
from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import tileable, unet_graph, vae_decoder_graph, vae_encoder_graph
from smalti.runtime.cpu.program import NativeProgram

SMALL_VAE = replace(TINY_VAE, block_channels=(16, 32))
MOVES = {"x": (0, 4), "y": (2, 0), "xy": (2, 4)}
"""Rows and columns of the latent, multiples of what the UNet halves."""


def moved(x: np.ndarray, move: tuple[int, int], factor: float = 1) -> np.ndarray:
    return np.roll(x, tuple(int(factor * step) for step in move), axis=(2, 3))


def errors_of_moves(graph: Graph, factor: float) -> dict[str, float]:
    """How far the result of inputs that are moved in each way is from the moved result."""
    inputs, parameters = arrays_for(graph)
    (result,) = evaluate(graph, inputs, parameters).values()
    errors = {}
    for name, move in MOVES.items():
        given = {name: moved(x, move) if x.ndim == 4 else x for name, x in inputs.items()}
        (found,) = evaluate(graph, given, parameters).values()
        errors[name] = relative_error(found, moved(result, move, factor))
    return errors


@pytest.mark.parametrize("directions", MOVES)
def test_what_is_computed_moves_with_the_latent(directions: str) -> None:
    for graph, factor in ((unet_graph(TINY_UNET, 1, 8, 8, tokens=3), 1),
                          (vae_decoder_graph(SMALL_VAE, 1, 4, 8), 2),
                          (vae_encoder_graph(SMALL_VAE, 1, 8, 8), 0.5)):
        tiled = tileable(graph, directions)
        verify(tiled)
        assert list(tiled.parameters) == list(graph.parameters)
        for other, error in errors_of_moves(tiled, factor).items():
            if set(other) <= set(directions):
                assert error < 1e-5, other
            else:
                assert error > 1e-3, other


@pytest.mark.peers
def test_what_circular_padding_in_pytorch_computes() -> None:
    import torch

    peer = peers.peer_unet(TINY_UNET)
    for module in peer.module.modules():
        if isinstance(module, torch.nn.Conv2d) and module.padding != (0, 0):
            module.padding_mode = "circular"
            module._reversed_padding_repeated_twice = [n for n in module.padding for _ in range(2)]
    graph = tileable(unet_graph(TINY_UNET, 1, 8, 4, tokens=3))
    inputs, _ = arrays_for(graph)
    with torch.no_grad():
        expected = peer.module(*(torch.tensor(inputs[name]) for name in
                                 ("latent", "timesteps", "context"))).sample.numpy()
    found = evaluate(graph, inputs, peer.weights)["prediction"]
    assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("directions", [
    pytest.param(each, marks=[] if each == "xy" else pytest.mark.sweep) for each in MOVES])
def test_native_code_computes_the_same(directions: str) -> None:
    graph = tileable(unet_graph(TINY_UNET, 1, 8, 4, tokens=3), directions)
    inputs, parameters = arrays_for(graph)
    image = built(graph, level(LEVELS[-1]), limits(level(LEVELS[-1]), 1), "f32")
    program = NativeProgram(image, 1)
    program.bind(parameters.__getitem__)
    assert "host" not in program.explain()
    expected = evaluate(graph, inputs, parameters)["prediction"]
    assert relative_error(program.run(inputs)["prediction"], expected) < 1e-5


def test_other_directions_are_refused() -> None:
    with pytest.raises(InputError, match="repeated in x, y, xy, not in 'z'"):
        tileable(unet_graph(TINY_UNET, 1, 4, 4, tokens=3), "z")
