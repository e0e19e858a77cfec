"""ControlNets of Flux and SD 3: what they give, what it changes, and against diffusers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import arrays_for
from transformer_graphs import check_program
from transformer_peers import (
    TINY_FLUX,
    TINY_MMDIT,
    filled,
    flux_controlnet_module,
    flux_module,
    image_ids,
    mmdit_module,
    packed,
    sd3_controlnet_module,
    weights_of,
)

from smalti.benchmark.agreement import relative_error
from smalti.errors import InputError
from smalti.families.keys import (
    FLUX_CONTROLNET_DIFFUSERS,
    FLUX_CONTROLNET_ORIGINAL,
    FLUX_DIFFUSERS,
    SD3_CONTROLNET_DIFFUSERS,
    Table,
    expressions,
    sd3_diffusers,
    sd35_controlnet,
)
from smalti.graph import Graph, evaluate, verify
from smalti.models import (
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    flux_control_places,
    flux_controlnet_graph,
    flux_graph,
    mmdit_graph,
    sd3_control_places,
    sd3_controlnet_graph,
)

CONTROL, MODEL = "control_model", "model.diffusion_model"
DENOISER_ERROR_MAX = 1e-4
"""As in test_transformers_against_peers."""

INSTANTX = FluxControlNetConfig(**{**vars(TINY_FLUX), "double_blocks": 2, "single_blocks": 1})
FLUX = {
    "InstantX": INSTANTX,
    "union": replace(INSTANTX, modes=7, double_blocks=1),
    "XLabs": replace(INSTANTX, single_blocks=0, hint_channels=(16, 16, 16, 16)),
}
INSTANTX_SD3 = MMDiTControlNetConfig(**{**vars(TINY_MMDIT), "blocks": 2}, hint_channels=4)
SD3 = {
    "InstantX": INSTANTX_SD3,
    "inpaint, 3.5 medium": replace(INSTANTX_SD3, hint_channels=5, qk_norm=True, dual_blocks=1),
    "3.5 large": replace(INSTANTX_SD3, joint=False),
}


@pytest.mark.parametrize("name", FLUX)
def test_native_code_computes_those_of_flux(name: str) -> None:
    graph = flux_controlnet_graph(FLUX[name], 1, 4, 6, 5)
    verify(graph)
    check_program(graph)


@pytest.mark.parametrize("name", SD3)
def test_native_code_computes_those_of_sd3(name: str) -> None:
    graph = sd3_controlnet_graph(SD3[name], 1, 4, 6, 5)
    verify(graph)
    check_program(graph)


@pytest.mark.parametrize("in_turn, order", [(False, "00011"), (True, "01010")])
def test_controls_go_to_blocks_in_rows_or_in_turn(in_turn: bool, order: str) -> None:
    model = replace(TINY_FLUX, double_blocks=5, single_blocks=5)
    net = replace(INSTANTX, double_blocks=2, single_blocks=2, hint_channels=(16,) * in_turn)
    graph = flux_graph(model, 1, 4, 4, 3, control=flux_control_places(net, model))
    for kind in ("double", "single"):
        prefix = f"control.{kind}."
        read = [value.name.removeprefix(prefix) for node in graph.nodes for value in node.inputs
                if value.name.startswith(prefix)]
        assert "".join(read) == order
    none = replace(net, single_blocks=0)
    assert flux_control_places(none, model)[1] == ()


def test_controls_of_sd3_spare_the_last_block() -> None:
    model = replace(TINY_MMDIT, blocks=6)
    places = sd3_control_places(INSTANTX_SD3, model)
    assert places == (0, 0, 0, 1, 1, -1)
    graph = mmdit_graph(model, 1, 4, 4, 3, control=places)
    read = [value.name for node in graph.nodes for value in node.inputs
            if value.name.startswith("control.")]
    assert read == ["control.0"] * 3 + ["control.1"] * 2


@pytest.mark.parametrize("places", [(0,), (0, 0, -2), (0, 0, 0, 0)])
def test_controls_of_another_number_of_blocks_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="are given for 3 blocks"):
        mmdit_graph(TINY_MMDIT, 1, 4, 4, 3, control=places)


@pytest.mark.parametrize("config, stored, table", [
    (FLUX["XLabs"], "pos_embed_input.weight", FLUX_CONTROLNET_ORIGINAL),
    (SD3["3.5 large"], "transformer_blocks.1.attn.qkv.weight", sd35_controlnet(
        ("t_embedder.mlp.0.weight", "transformer_blocks.0.attn.qkv.weight"))),
])
def test_original_files_hold_every_parameter(config: object, stored: str, table: Table) -> None:
    build = flux_controlnet_graph if isinstance(config, FluxControlNetConfig) \
        else sd3_controlnet_graph
    names = {part.name.replace("*", str(block)) for rule in table.values() for part in rule
             for block in range(2)}
    found, unknown = expressions(names, table)
    wanted = {name.removeprefix(f"{CONTROL}.") for name in build(config, 1, 4, 4, 3).parameters
              if name.startswith(CONTROL)}
    assert stored in names and not unknown and wanted <= set(found)


# ---------------------------------------------------------------------- against diffusers


def arrays_of(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs, at times that differ, with guidance, and hints in [0, 1]."""
    inputs, _ = arrays_for(graph)
    count = len(inputs["timesteps"])
    inputs["timesteps"] = np.linspace(1000, 250.5, count, dtype=np.float32)
    if "guidance" in inputs:
        inputs["guidance"] = np.full(count, 3.5, np.float32)
    if graph.inputs["hint"].shape[1] == 3:
        inputs["hint"] = np.abs(inputs["hint"]) % 1
    return inputs


@pytest.mark.peers
@pytest.mark.parametrize("name", FLUX)
def test_flux(name: str) -> None:
    import torch
    from diffusers import FluxPipeline

    config, (height, width), length = FLUX[name], (4, 6), 5
    module, model = filled(flux_controlnet_module(config)), filled(flux_module(TINY_FLUX))
    graph = flux_controlnet_graph(config, 2, height, width, length)
    weights = weights_of(module, FLUX_CONTROLNET_DIFFUSERS, CONTROL)
    assert shapes_of(graph) == {name: array.shape for name, array in weights.items()}
    inputs = arrays_of(graph)
    found = evaluate(graph, inputs, weights)
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    shared = {"hidden_states": packed(tensors["latent"]), "timestep": tensors["timesteps"] / 1000,
              "encoder_hidden_states": tensors["context"], "guidance": tensors["guidance"],
              "pooled_projections": tensors["pooled"], "img_ids": image_ids(height, width),
              "txt_ids": torch.zeros(length, 3)}
    hint = 2 * tensors["hint"] - 1 if config.hint_channels else packed(tensors["hint"])
    with torch.no_grad():
        double, single = module(
            controlnet_cond=hint, controlnet_mode=tensors["mode"][:, None].long()
            if config.modes else None, return_dict=False, **shared)
        tokens = model(controlnet_block_samples=double, controlnet_single_block_samples=single,
                       controlnet_blocks_repeat=bool(config.hint_channels), return_dict=False,
                       **shared)[0]
    expected = [*double, *(single or [])]
    assert len(found) == len(expected) == config.double_blocks + config.single_blocks
    for array, tensor in zip(found.values(), expected, strict=True):
        given = array / np.float32(config.unit)
        assert relative_error(given, tensor.numpy()) <= DENOISER_ERROR_MAX
    whole = flux_graph(TINY_FLUX, 2, height, width, length,
                       control=flux_control_places(config, TINY_FLUX))
    given = {name: {**inputs, **found}[name] for name in whole.inputs}
    prediction = evaluate(whole, given, weights_of(model, FLUX_DIFFUSERS, MODEL))["prediction"]
    unpacked = FluxPipeline._unpack_latents(tokens, 8 * height, 8 * width, 8).numpy()
    assert relative_error(prediction, unpacked) <= DENOISER_ERROR_MAX


@pytest.mark.peers
@pytest.mark.parametrize("name", SD3)
def test_sd3(name: str) -> None:
    import torch

    config, (height, width), length = SD3[name], (4, 6), 5
    module, model = filled(sd3_controlnet_module(config)), filled(mmdit_module(TINY_MMDIT))
    graph = sd3_controlnet_graph(config, 2, height, width, length)
    table = SD3_CONTROLNET_DIFFUSERS if config.joint else sd35_controlnet(())
    weights = weights_of(module, table, CONTROL)
    of_model = weights_of(model, sd3_diffusers(TINY_MMDIT.blocks), MODEL)
    shapes = {name: array.shape for name, array in {**of_model, **weights}.items()}
    assert {name for name in shapes_of(graph) if name.startswith(CONTROL)} == set(weights)
    assert all(shapes[name] == shape for name, shape in shapes_of(graph).items())
    inputs = arrays_of(graph)
    found = evaluate(graph, inputs, {**of_model, **weights})
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    context = normal_context(config, length)
    with torch.no_grad():
        tokens = tensors["latent"] if config.joint else model.pos_embed(tensors["latent"])
        expected = module(tokens, tensors["hint"], 1.0, tensors.get("context"), tensors["pooled"],
                          tensors["timesteps"], return_dict=False)[0]
        image = model(tensors["latent"], torch.tensor(context), tensors["pooled"],
                      tensors["timesteps"], expected, return_dict=False)[0].numpy()
    assert len(found) == len(expected) == config.blocks
    for array, tensor in zip(found.values(), expected, strict=True):
        assert relative_error(array, tensor.numpy()) <= DENOISER_ERROR_MAX
    whole = mmdit_graph(TINY_MMDIT, 2, height, width, length,
                        control=sd3_control_places(config, TINY_MMDIT))
    given = {name: {**inputs, **found, "context": context}[name] for name in whole.inputs}
    assert relative_error(evaluate(whole, given, of_model)["prediction"],
                          image) <= DENOISER_ERROR_MAX


def normal_context(config: MMDiTControlNetConfig, length: int) -> np.ndarray:
    """What the model reads as text, whether or not its ControlNet does."""
    shape = (2, length, config.context_dim)
    return np.random.default_rng(7).standard_normal(shape, np.float32)


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in graph.parameters.items()}
