"""ControlNets: names and shapes, diffusers' numbers, and a UNet that reads what they give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from peers_models import TINY_UNET

from smalti.benchmark import peers
from smalti.benchmark.agreement import relative_error
from smalti.errors import InputError
from smalti.families.keys.renaming import controlnet_renaming
from smalti.graph import evaluate, parse, show, verify
from smalti.models import (
    SD1_UNET,
    SD2_UNET,
    SDXL_UNET,
    ControlNetConfig,
    controlnet_graph,
    unet_graph,
)

ERROR_MAX = 1e-5
SINUSOIDS, NUMBERS, POOLED = 8, 6, 24
TINY_SDXL = replace(
    TINY_UNET, block_channels=(16, 32, 48), norm_groups=4, head_dim=8, res_blocks=1,
    attention=(False, True, True), transformer_depth=(0, 1, 2), linear_projection=True,
    vector_dim=POOLED + NUMBERS * SINUSOIDS)
TINY_UNION = ControlNetConfig(TINY_SDXL, hint_channels=(8, 12, 16, 20), types=6,
                              type_sinusoids=SINUSOIDS, type_layers=2)
CONTROLNETS = {
    "SD 1 pattern": ControlNetConfig(TINY_UNET),
    "SD 2 pattern": ControlNetConfig(
        replace(TINY_UNET, block_channels=(32, 64, 96), head_dim=16, attention=(True, True, False),
                transformer_depth=(1, 1, 0), linear_projection=True), (8, 12, 16, 20)),
    "SDXL pattern": ControlNetConfig(TINY_SDXL, hint_channels=(8, 12, 16, 20)),
    "SDXL small pattern": ControlNetConfig(
        replace(TINY_SDXL, attention=(False, False, False), transformer_depth=(0, 0, 0),
                depth_in_middle=0), hint_channels=(8, 12, 16, 20)),
    "mean over all pixels": ControlNetConfig(TINY_UNET, (8, 16), pooled=True),
    "union": TINY_UNION,
}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def inputs_of(config: ControlNetConfig, hints: int) -> tuple[dict, dict, dict]:
    """Our inputs, diffusers' arguments, and `added_cond_kwargs`; one picture with two contexts."""
    import torch

    names = ["hint"] if hints == 1 else [f"hint.{i}" for i in range(hints)]
    side = config.downscale * 8
    ours = {"latent": normal(1, 1, 4, 8, 8).repeat(2, axis=0),
            "timesteps": np.array([250.5, 250.5], np.float32), "context": normal(2, 2, 5, 48)}
    ours |= {name: np.abs(normal(5 + i, 1, 3, side, side)).repeat(2, axis=0)
             for i, name in enumerate(names)}
    theirs = {"sample": ours["latent"], "timestep": ours["timesteps"],
              "encoder_hidden_states": ours["context"]}
    theirs = {name: torch.tensor(array) for name, array in theirs.items()}
    pictures = [torch.tensor(ours[name]) for name in names]
    theirs["controlnet_cond"] = pictures if config.types else pictures[0]
    added = {}
    if config.unet.vector_dim:
        pooled, numbers = normal(3, 2, POOLED), np.arange(2 * NUMBERS).reshape(2, -1) * 100 + 8
        angles = numbers[..., None] * 10000.0 ** (-np.arange(SINUSOIDS // 2) / (SINUSOIDS // 2))
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1).reshape(2, -1)
        ours["vector"] = np.hstack([pooled, waves.astype(np.float32)])
        added = {"text_embeds": torch.tensor(pooled), "time_ids": torch.tensor(numbers)}
    return ours, theirs, added


@pytest.mark.peers
@pytest.mark.parametrize(("name", "kinds"), [
    *((name, ()) for name in CONTROLNETS if name != "union"), ("union", (3,)), ("union", (1, 4))])
def test_what_diffusers_computes(name: str, kinds: tuple[int, ...]) -> None:
    import torch

    config, hints = CONTROLNETS[name], max(1, len(kinds))
    peer = peers.peer_controlnet(config, sinusoids=SINUSOIDS)
    ours, theirs, added = inputs_of(config, hints)
    if kinds:
        ours["types"] = np.eye(config.types, dtype=np.float32)[list(kinds)]
        theirs["control_type"] = torch.tensor(ours["types"].sum(axis=0)).repeat(2, 1)
        theirs["control_type_idx"] = list(kinds)
    graph = controlnet_graph(config, 2, 8, 8, tokens=5, hints=hints)
    assert set(graph.parameters) == set(peer.weights)
    found = evaluate(graph, ours, peer.weights)
    with torch.no_grad():
        down, middle = peer.module(**theirs, added_cond_kwargs=added, return_dict=False)
    assert len(down) + 1 == len(found)
    for i, expected in enumerate([*down, middle]):
        array = found[f"control.{i}" if i < len(down) else "control.middle"]
        assert relative_error(array, np.broadcast_to(expected.numpy(), array.shape)) <= ERROR_MAX


@pytest.mark.peers
@pytest.mark.parametrize("name", ["SD 1 pattern", "SDXL pattern"])
def test_a_unet_that_is_controlled(name: str) -> None:
    """Every residual, some of them far from small, through diffusers' UNet."""
    import torch

    config = CONTROLNETS[name].unet
    peer = peers.peer_unet(config, sinusoids=SINUSOIDS)
    ours, theirs, added = inputs_of(CONTROLNETS[name], 1)
    graph = unet_graph(config, 2, 8, 8, tokens=5, control=True)
    inputs = {key: ours[key] for key in ours if key in graph.inputs}
    controls = [key for key in graph.inputs if key.startswith("control.")]
    inputs |= {key: normal(9 + i, *graph.inputs[key].shape) for i, key in enumerate(controls)}
    *down, middle = (torch.tensor(inputs[key]) for key in controls)
    del theirs["controlnet_cond"]
    with torch.no_grad():
        expected = peer.module(**theirs, added_cond_kwargs=added,
                               down_block_additional_residuals=down,
                               mid_block_additional_residual=middle).sample.numpy()
    found = evaluate(graph, inputs, peer.weights)["prediction"]
    assert relative_error(found, expected) <= ERROR_MAX


FULL = {"SD 1": ControlNetConfig(SD1_UNET), "SD 2": ControlNetConfig(SD2_UNET),
        "SDXL": ControlNetConfig(SDXL_UNET), "SDXL union": ControlNetConfig(SDXL_UNET, types=6)}
MILLIONS = {"SD 1": 361, "SD 2": 364, "SDXL": 1251}
"""Sizes as published."""


@pytest.mark.peers
@pytest.mark.parametrize("name", FULL)
def test_one_of_full_size_has_the_tensors_of_diffusers(name: str) -> None:
    import torch

    config = FULL[name]
    with torch.device("meta"):
        state = peers.controlnet_module(config).state_dict()
    rename = controlnet_renaming(state)
    expected = {rename(name): tuple(tensor.shape) for name, tensor in state.items()}
    parameters = controlnet_graph(config, 2, 64, 64).parameters
    assert {name: value.shape for name, value in parameters.items()} == expected
    size = sum(value.type.size for value in parameters.values())
    assert size / 1e6 == pytest.approx(MILLIONS.get(name, size / 1e6), abs=1)


def test_every_output_is_an_input_of_the_unet() -> None:
    for name, config in CONTROLNETS.items():
        graph = controlnet_graph(config, 2, 8, 12, tokens=5)
        verify(graph)
        assert show(parse(show(graph))) == show(graph)
        inputs = unet_graph(config.unet, 2, 8, 12, tokens=5, control=True).inputs
        controls = {key: value.shape for key, value in inputs.items() if key.startswith("control.")}
        assert {key: value.shape for key, value in graph.outputs.items()} == controls, name


def test_names_of_the_original_code() -> None:
    names = controlnet_graph(ControlNetConfig(SD1_UNET), 2, 64, 64).parameters
    for name, shape in {
        "input_hint_block.0.weight": (16, 3, 3, 3),
        "input_hint_block.14.weight": (320, 256, 3, 3),
        "zero_convs.11.0.weight": (1280, 1280, 1, 1),
        "middle_block_out.0.bias": (1280,),
        "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (320, 768),
    }.items():
        assert names[f"control_model.{name}"].shape == shape
    assert not any("output_blocks" in name or ".out." in name for name in names)


def test_zero_control_changes_nothing() -> None:
    graph, controlled = (unet_graph(TINY_UNET, 1, 4, 4, tokens=3, control=control)
                         for control in (False, True))
    inputs = {name: normal(1, *value.shape) for name, value in graph.inputs.items()}
    weights = {name: normal(2, *value.shape) * 0.05 for name, value in graph.parameters.items()}
    zeros = {name: np.zeros(value.shape, np.float32)
             for name, value in controlled.inputs.items() if name.startswith("control.")}
    expected = evaluate(graph, inputs, weights)["prediction"]
    found = evaluate(controlled, inputs | zeros, weights)["prediction"]
    assert np.array_equal(found, expected)
    zeros["control.middle"] += 1
    changed = evaluate(controlled, inputs | zeros, weights)["prediction"]
    assert not np.allclose(changed, expected)


def test_a_size_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(InputError, match="a latent of 68 x 64 .* positive multiples of 8"):
        controlnet_graph(ControlNetConfig(SD1_UNET), 1, 68, 64)
