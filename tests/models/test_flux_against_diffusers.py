"""What is made of the blocks of FLUX.1, evaluated by the interpreter, against diffusers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformer_peers import (
    TINY_LONGCAT_IMAGE,
    TINY_OVIS_IMAGE,
    filled,
    image_ids,
    longcat_image_module,
    ovis_image_module,
    packed,
    weights_of,
)

from smalti.benchmark.agreement import relative_error
from smalti.families.keys import (
    LONGCAT_DIFFUSERS,
    OVIS_DIFFUSERS,
    Table,
    expressions,
    shape_of,
)
from smalti.graph import evaluate
from smalti.models import (
    LONGCAT_IMAGE,
    OVIS_IMAGE,
    FluxConfig,
    flux_graph,
    flux_modulation_graph,
)
from smalti.models.flux import PREFIX as DENOISER

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-4
"""Time is an angle of thousands of radians, of which f32 keeps four digits."""


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


OVIS_IMAGES = {
    "Ovis-Image": TINY_OVIS_IMAGE,
    "three heads of 16": replace(TINY_OVIS_IMAGE, hidden_size=48, heads=3, mlp_size=192,
                                 double_blocks=1, single_blocks=1, axes=(4, 6, 6)),
}


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("name", OVIS_IMAGES)
def test_ovis_image(name: str, modulated: bool) -> None:
    """With what modulates blocks as a graph of its own, too."""
    import torch
    from diffusers import FluxPipeline

    config, height, width, length = OVIS_IMAGES[name], 6, 8, 5
    module = filled(ovis_image_module(config))
    weights = weights_of(module, OVIS_DIFFUSERS, DENOISER)
    latent = normal(1, 2, config.in_channels, height, width)
    context, times = normal(2, 2, length, config.context_dim), np.array([1000, 250.5], np.float32)
    given = {"timesteps": times}
    if modulated:
        graph = flux_modulation_graph(config, 2)
        (vectors,) = evaluate(graph, given, weights).values()
        given = {"modulation": vectors}
    graph = flux_graph(config, 2, height, width, length, modulated=modulated)
    assert graph.parameters.keys() <= weights.keys()
    (found,) = evaluate(graph, {"latent": latent, "context": context, **given}, weights).values()
    places = torch.zeros(length, 3)
    places[:, 1:] = torch.arange(length)[:, None]
    with torch.no_grad():
        tokens = module(packed(torch.tensor(latent)), torch.tensor(context),
                        torch.tensor(times) / 1000, image_ids(height, width), places,
                        return_dict=False)[0]
    expected = FluxPipeline._unpack_latents(tokens, 8 * height, 8 * width, 8).numpy()
    assert relative_error(found, expected) <= ERROR_MAX


def test_longcat_image() -> None:
    """The image stands behind the longest text, with an index of its own."""
    import torch
    from diffusers import FluxPipeline
    from diffusers.pipelines.longcat_image.pipeline_longcat_image import prepare_pos_ids

    config, height, width, length = TINY_LONGCAT_IMAGE, 6, 8, 5
    module = filled(longcat_image_module(config))
    weights = weights_of(module, LONGCAT_DIFFUSERS, DENOISER)
    latent = normal(1, 2, config.in_channels, height, width)
    context, times = normal(2, 2, length, config.context_dim), np.array([1000, 250.5], np.float32)
    graph = flux_graph(config, 2, height, width, length)
    assert graph.parameters.keys() == weights.keys()
    (found,) = evaluate(graph, {"latent": latent, "context": context, "timesteps": times},
                        weights).values()
    with torch.no_grad():
        tokens = module(packed(torch.tensor(latent)), torch.tensor(context),
                        torch.tensor(times) / 1000,
                        prepare_pos_ids(1, "image", (512, 512), height=3, width=4),
                        prepare_pos_ids(0, "text", (0, 0), num_token=length),
                        return_dict=False)[0]
    expected = FluxPipeline._unpack_latents(tokens, 8 * height, 8 * width, 8).numpy()
    assert relative_error(found, expected) <= ERROR_MAX


@pytest.mark.parametrize(("config", "make", "table"), [
    (OVIS_IMAGE, ovis_image_module, OVIS_DIFFUSERS),
    (LONGCAT_IMAGE, longcat_image_module, LONGCAT_DIFFUSERS)])
def test_full_size(config: FluxConfig, make: Callable[..., Any], table: Table) -> None:
    import torch

    with torch.device("meta"):
        module = make(config)
    state = {name: np.broadcast_to(np.float32(0), value.shape)
             for name, value in module.state_dict().items()}
    found, left = expressions(state, table)
    shapes = {f"{DENOISER}.{name}": shape_of(each, lambda stored: state[stored].shape)
              for name, each in found.items()}
    graph = flux_graph(config, 1, 4, 4, 4)
    assert not left and shapes == {
        name: value.shape for name, value in graph.parameters.items()}
