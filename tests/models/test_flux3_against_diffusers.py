"""FLUX.3, evaluated by the interpreter, against diffusers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformer_peers import TINY_FLUX3, filled, flux3_module, weights_of

from smalti.benchmark.agreement import relative_error
from smalti.families.keys import FLUX3_DIFFUSERS, expressions
from smalti.graph import evaluate
from smalti.models import FLUX3_KLEIN, FLUX3_KLEIN_BASE, flux3_graph
from smalti.models.flux import PREFIX as DENOISER

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-4
"""Time is an angle of thousands of radians, of which f32 keeps four digits."""
FLUX3 = {
    "klein": TINY_FLUX3,
    "base, three heads": replace(TINY_FLUX3, hidden_size=96, heads=3, mlp_size=288, blocks=1,
                                 flow_map=False)}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def tokens(latent: np.ndarray) -> np.ndarray:
    """[n, c, h, w] -> [n, h * w, c]."""
    return latent.reshape(*latent.shape[:2], -1).transpose(0, 2, 1)


@pytest.mark.parametrize("referenced", [(), ((3, 5), (4, 2))])
@pytest.mark.parametrize("name", FLUX3)
def test_flux3(name: str, referenced: tuple[tuple[int, int], ...]) -> None:
    """Text and pictures that are read, at time 0, in one sequence with the image."""
    import torch
    from diffusers.modular_pipelines.flux3.before_denoise import (
        Flux3TextRoPEInputsStep,
        _prepare_image_ids,
    )

    config, height, width, length = FLUX3[name], 3, 5, 7
    module = filled(flux3_module(config))
    graph = flux3_graph(config, 2, height, width, length, referenced=referenced)
    weights = weights_of(module, FLUX3_DIFFUSERS, DENOISER)
    if not referenced:
        weights = {key: value for key, value in weights.items() if "image_cond" not in key}
    assert {key: value.shape for key, value in graph.parameters.items()} == {
        key: value.shape for key, value in weights.items()}
    latent, context = normal(1, 2, config.in_channels, height, width), normal(
        2, 2, length, config.context_dim)
    inputs = {"latent": latent, "context": context, "mask": np.ones((2, length), np.float32),
              "timesteps": np.array([1000, 250.5], np.float32)}
    told: dict[str, Any] = {}
    if config.flow_map:
        inputs["target"] = np.array([640, 0], np.float32)
        told["target_timestep"] = torch.tensor(inputs["target"] / 1000)
    shown = [normal(3 + k, 2, config.in_channels, *size) for k, size in enumerate(referenced)]
    inputs |= {f"reference.{k}": each for k, each in enumerate(shown)}
    if shown:
        told |= {"image_cond_hidden_states": torch.tensor(np.concatenate(
            [tokens(each) for each in shown], axis=1)), "image_cond_ids": torch.cat([
                _prepare_image_ids(*each.shape[2:], 0.5, -1 - k) for k, each in enumerate(shown)])}
    (found,) = evaluate(graph, inputs, weights).values()
    with torch.no_grad():
        expected = module(
            torch.tensor(tokens(latent)), torch.tensor(context),
            torch.tensor(inputs["timesteps"] / 1000), _prepare_image_ids(height, width, 0.5),
            Flux3TextRoPEInputsStep._prepare_text_ids(torch.tensor(context)), **told).sample
    assert relative_error(tokens(found), expected.numpy()) <= ERROR_MAX


@pytest.mark.parametrize("config", [FLUX3_KLEIN, FLUX3_KLEIN_BASE])
def test_full_size_flux3(config: Any) -> None:
    import torch

    with torch.device("meta"):
        state = flux3_module(config).state_dict()
    graph = flux3_graph(config, 1, 4, 4, 4, referenced=((2, 2),))
    found, unknown = expressions(state, FLUX3_DIFFUSERS)
    assert not unknown and {f"{DENOISER}.{name}": tuple(state[parts[0].name].shape)
                            for name, parts in found.items()} == {
        name: value.shape for name, value in graph.parameters.items()}


def test_files_of_its_authors_become_what_diffusers_makes_of_them() -> None:
    """What trained the model alone is not read."""
    import torch
    from diffusers.loaders import single_file_utils

    module = filled(flux3_module(TINY_FLUX3))
    original = weights_of(module, FLUX3_DIFFUSERS, DENOISER)
    stored = {name.removeprefix(f"{DENOISER}."): torch.tensor(value)
              for name, value in original.items()}
    back = single_file_utils.convert_flux3_transformer_checkpoint_to_diffusers(
        {**stored, "repa_projectors.0.weight": torch.zeros(1)})
    state = module.state_dict()
    assert set(back) == set(state)
    for name, value in back.items():
        np.testing.assert_array_equal(value.numpy(), state[name].numpy(), name)
