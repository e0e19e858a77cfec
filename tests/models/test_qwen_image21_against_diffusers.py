"""Qwen-Image-2.1, evaluated by the interpreter, against diffusers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from transformer_peers import TINY_QWEN_IMAGE21, filled, internal, qwen_image21_module, weights_of

from smalti.benchmark.agreement import relative_error
from smalti.families.keys import QWEN_IMAGE21 as KEYS
from smalti.graph import evaluate
from smalti.models import QWEN_IMAGE21, qwen_image21_graph
from smalti.models.flux import PREFIX as DENOISER

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-4
"""Time is an angle of thousands of radians, of which f32 keeps four digits."""

MODELS = {
    "Qwen-Image-2.1": TINY_QWEN_IMAGE21,
    "three heads of 16, one block": replace(TINY_QWEN_IMAGE21, hidden_size=48, heads=3, blocks=1,
                                            mlp_size=144, axes=(2, 8, 6)),
}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize(("count", "filling", "time"), [(1, 0, 1000), (7, 0, 250.5), (12, 4, 20)])
@pytest.mark.parametrize("name", MODELS)
def test_qwen_image21(name: str, count: int, filling: int, time: float) -> None:
    """diffusers reads each text alone; here it may be filled up."""
    import torch

    config, height, width = MODELS[name], 4, 6
    module = filled(qwen_image21_module(config))
    stored = {key: value.numpy() for key, value in module.state_dict().items()}
    weights = {f"{DENOISER}.{key}": value for key, value in stored.items()}
    latent = normal(1, 1, config.in_channels, height, width)
    context = normal(2, 1, count + filling, config.context_dim)
    graph = qwen_image21_graph(config, 1, height, width, count + filling)
    assert {each: value.shape for each, value in graph.parameters.items()} == {
        each: value.shape for each, value in weights.items()}
    mask = (np.arange(count + filling) < count).astype(np.float32)[None]
    (found,) = evaluate(graph, {
        "latent": latent, "context": context, "mask": mask,
        "timesteps": np.array([time], np.float32)}, weights).values()
    slots = torch.tensor([[False] * count + [True] * (height * width // 4)])
    with torch.no_grad():
        (tokens,) = module(
            torch.tensor(latent).flatten(2).transpose(1, 2), torch.tensor(context[:, :count]),
            torch.tensor([time]) / 1000, [[(1, height, width)]], slots, return_dict=False)
    expected = tokens[:, count:].transpose(1, 2).reshape(latent.shape).numpy()
    assert relative_error(found, expected) <= ERROR_MAX


def test_files_of_comfyui_are_those_of_diffusers() -> None:
    from diffusers.loaders.single_file_utils import (
        convert_qwen_image21_transformer_checkpoint_to_diffusers as converted,
    )

    module = filled(qwen_image21_module(TINY_QWEN_IMAGE21))
    ours = weights_of(module, KEYS, DENOISER, set(module.state_dict()))
    assert not ours  # no name is another
    stored = dict(module.state_dict())
    for block in range(TINY_QWEN_IMAGE21.blocks):
        start = f"transformer_blocks.{block}.img_mlp."
        import torch

        stored[f"{start}gate_up.weight"] = torch.cat([
            stored.pop(f"{start}{name}.weight") for name in ("gate_layer", "proj")])
    fused = {name: value.numpy() for name, value in stored.items()}
    plain = {name for name in fused if "gate_up" not in name}
    found = internal(fused, KEYS, DENOISER, plain)
    expected = converted({f"model.diffusion_model.{name}": value
                          for name, value in stored.items()})
    assert {f"{DENOISER}.{name}" for name in expected} == {
        *found, *(f"{DENOISER}.{name}" for name in plain)}
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name.removeprefix(f"{DENOISER}.")].numpy())


def test_full_size_qwen_image21() -> None:
    import torch

    with torch.device("meta"):
        module = qwen_image21_module(QWEN_IMAGE21)
    shapes = {f"{DENOISER}.{name}": tuple(value.shape)
              for name, value in module.state_dict().items()}
    graph = qwen_image21_graph(QWEN_IMAGE21, 1, 4, 4, 4)
    assert {name: value.shape for name, value in graph.parameters.items()} == shapes
