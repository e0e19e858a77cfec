"""ERNIE-Image, evaluated by the interpreter, against diffusers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from transformer_peers import TINY_ERNIE_IMAGE, ernie_image_module, filled

from smalti.benchmark.agreement import relative_error
from smalti.graph import Graph, evaluate
from smalti.models import ERNIE_IMAGE, ernie_image_graph
from smalti.models.flux import PREFIX as DENOISER

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-4
"""Time is an angle of thousands of radians, of which f32 keeps four digits."""

Weights = Mapping[str, np.ndarray]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def result(graph: Graph, weights: Weights, **inputs: np.ndarray) -> np.ndarray:
    """The only output; each parameter of the graph is in the checkpoint, and nothing else."""
    assert {name: value.shape for name, value in graph.parameters.items()} == {
        name: value.shape for name, value in weights.items()}
    (found,) = evaluate(graph, inputs, weights).values()
    return found


def kernels_flat(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters by the names of diffusers, which are those inside; kernels of one pixel as
    matrices."""
    return {f"{DENOISER}.{name}": value.reshape(len(value), -1) if value.ndim == 4 else value
            for name, value in state.items()}


ERNIE_IMAGES = {
    "ERNIE-Image": TINY_ERNIE_IMAGE,
    "three heads of 16, texts as wide": replace(TINY_ERNIE_IMAGE, hidden_size=48, heads=3,
                                                blocks=1, context_dim=48, axes=(4, 6, 6)),
}


@pytest.mark.parametrize("counts", [(7,), (1, 12), (9, 4, 6)])
@pytest.mark.parametrize("name", ERNIE_IMAGES)
def test_ernie_image(name: str, counts: tuple[int, ...]) -> None:
    """Texts of a batch have lengths of their own, which also say where their images stand."""
    import torch

    config, height, width, length = ERNIE_IMAGES[name], 3, 5, max(counts)
    module = filled(ernie_image_module(config))
    weights = kernels_flat({key: value.numpy() for key, value in module.state_dict().items()})
    latent = normal(1, len(counts), config.in_channels, height, width)
    context = normal(2, len(counts), length, config.context_dim)
    mask = (np.arange(length) < np.array(counts)[:, None]).astype(np.float32)
    timesteps = np.linspace(1000, 250.5, len(counts)).astype(np.float32)
    found = result(ernie_image_graph(config, len(counts), height, width, length), weights,
                   latent=latent, timesteps=timesteps, context=context, mask=mask)
    with torch.no_grad():
        (expected,) = module(*map(torch.tensor, (latent, timesteps, context)),
                             torch.tensor(counts), return_dict=False)
    assert relative_error(found, expected.numpy()) <= ERROR_MAX


def test_full_size_ernie_image() -> None:
    import torch

    with torch.device("meta"):
        module = ernie_image_module(ERNIE_IMAGE)
    shapes = {f"{DENOISER}.{name}": tuple(value.shape[:2])
              for name, value in module.state_dict().items()}
    graph = ernie_image_graph(ERNIE_IMAGE, 1, 4, 4, 4)
    assert {name: value.shape for name, value in graph.parameters.items()} == shapes
