"""Each model, evaluated by the interpreter, against diffusers and transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from peers_models import TINY_FLUX, TINY_TEXT, TINY_UNET, TINY_VAE

from smalti.benchmark import peers
from smalti.benchmark.agreement import relative_error
from smalti.families.keys.renaming import unet_renaming
from smalti.graph import Graph, evaluate
from smalti.models import (
    CLIP_L,
    OPENCLIP_G,
    OPENCLIP_H,
    SD1_UNET,
    SD2_UNET,
    SDXL_REFINER_UNET,
    SDXL_UNET,
    SSD1B_UNET,
    VEGA_UNET,
    MobileNetV2Config,
    clip_text_graph,
    flux_double_block_graph,
    mobilenet_v2_graph,
    unet_graph,
    vae_decoder_graph,
    vae_encoder_graph,
)

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-5


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def run(graph: Graph, peer: peers.Peer, **inputs: np.ndarray) -> np.ndarray:
    """The only output; every parameter of the graph is in the checkpoint."""
    assert set(graph.parameters) <= set(peer.weights)
    (result,) = evaluate(graph, inputs, peer.weights).values()
    return result


SINUSOIDS, NUMBERS, POOLED = 8, 6, 24
VECTOR = POOLED + NUMBERS * SINUSOIDS
"""Width of the vector of tiny models of the SDXL family."""
UNETS = {
    "two levels": TINY_UNET,
    "one residual block, head dimension 40": replace(
        TINY_UNET, block_channels=(40, 80), res_blocks=1, heads=2, attention=(False, True),
        transformer_depth=(0, 1)),
    "SD 1 pattern": replace(
        TINY_UNET, block_channels=(16, 32, 48, 48), norm_groups=4, heads=2,
        attention=(True, True, True, False), transformer_depth=(1, 1, 1, 0)),
    "SD 2 pattern": replace(
        TINY_UNET, block_channels=(32, 64, 96), head_dim=16, attention=(True, True, False),
        transformer_depth=(1, 1, 0), linear_projection=True),
    "deep transformers": replace(
        TINY_UNET, block_channels=(16, 32, 48), norm_groups=4, head_dim=8,
        attention=(False, True, True), transformer_depth=(0, 1, 2), linear_projection=True,
        in_channels=9),
    "SDXL pattern": replace(
        TINY_UNET, block_channels=(16, 32, 48), norm_groups=4, head_dim=8,
        attention=(False, True, True), transformer_depth=(0, 1, 2), linear_projection=True,
        vector_dim=VECTOR),
    "refiner pattern": replace(
        TINY_UNET, block_channels=(24, 32, 40, 40), norm_groups=4, head_dim=8, res_blocks=1,
        attention=(False, True, True, False), transformer_depth=(0, 2, 2, 0),
        linear_projection=True, vector_dim=VECTOR),
    "SSD-1B pattern": replace(
        TINY_UNET, block_channels=(16, 32, 48), norm_groups=4, head_dim=8,
        attention=(False, True, True), transformer_depth=(0, 2, 1), linear_projection=True,
        vector_dim=VECTOR, output_depth=((0, 0, 0), (2, 1, 1), (1, 1, 3)), middle="residual"),
    "told of guidance": replace(TINY_UNET, res_blocks=1, guidance=True, guidance_sinusoids=32),
    "no middle": replace(TINY_UNET, res_blocks=1, middle="none"),
    "one level, context of one token": replace(
        TINY_UNET, block_channels=(24,), attention=(True,), transformer_depth=(1,), res_blocks=1),
}


@pytest.mark.parametrize("name", UNETS)
def test_unet(name: str) -> None:
    import torch

    config = UNETS[name]
    peer = peers.peer_unet(config, sinusoids=SINUSOIDS)
    tokens = 1 if "one token" in name else 7
    latent, context = normal(1, 2, config.in_channels, 16, 8), normal(2, 2, tokens, 48)
    timesteps = np.array([999, 250.5], np.float32)
    graph = unet_graph(config, batch=2, height=16, width=8, tokens=tokens)
    assert set(graph.parameters) == set(peer.weights)
    inputs, added = {"latent": latent, "timesteps": timesteps, "context": context}, {}
    if config.vector_dim:
        pooled, numbers = normal(3, 2, POOLED), np.arange(2 * NUMBERS).reshape(2, -1) * 100 + 8
        inputs["vector"] = np.hstack([pooled, sinusoids(numbers, SINUSOIDS)])
        added = {"text_embeds": torch.tensor(pooled), "time_ids": torch.tensor(numbers)}
    told = None
    if config.guidance:
        from diffusers import LatentConsistencyModelPipeline

        inputs["guidance"] = np.array([8.5, 2.25], np.float32)
        told = LatentConsistencyModelPipeline.get_guidance_scale_embedding(
            None, torch.tensor(inputs["guidance"] - 1), config.guidance_sinusoids)
    found = run(graph, peer, **inputs)
    with torch.no_grad():
        expected = peer.module(torch.tensor(latent), torch.tensor(timesteps),
                               torch.tensor(context), timestep_cond=told,
                               added_cond_kwargs=added).sample.numpy()
    assert relative_error(found, expected) <= ERROR_MAX


def sinusoids(numbers: np.ndarray, width: int) -> np.ndarray:
    """numbers [n, k] -> [n, k * width], cosines first."""
    angles = numbers[..., None] * 10000.0 ** (-np.arange(width // 2) / (width // 2))
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    return waves.reshape(len(numbers), -1).astype(np.float32)


FULL_UNETS = {
    "SD 1": SD1_UNET, "SD 1 inpainting": replace(SD1_UNET, in_channels=9),
    "InstructPix2Pix": replace(SD1_UNET, in_channels=8), "SD 2": SD2_UNET, "SDXL": SDXL_UNET,
    "SDXL refiner": SDXL_REFINER_UNET, "SSD-1B": SSD1B_UNET, "Vega": VEGA_UNET}
BILLIONS = {"SD 1": 0.86, "SD 2": 0.866, "SDXL": 2.567, "SDXL refiner": 2.26, "SSD-1B": 1.3,
            "Vega": 0.74}
"""Sizes as published, of the UNet alone."""


@pytest.mark.parametrize("name", FULL_UNETS)
def test_a_unet_of_full_size_has_the_tensors_of_diffusers(name: str) -> None:
    import torch
    from diffusers import UNet2DConditionModel

    config = FULL_UNETS[name]
    with torch.device("meta"):
        state = UNet2DConditionModel(**peers.unet_arguments(config)).state_dict()
    rename = unet_renaming(state)
    expected = {rename(name): tuple(tensor.shape) for name, tensor in state.items()}
    parameters = unet_graph(config, 2, 64, 64).parameters
    assert {name: value.shape for name, value in parameters.items()} == expected
    size = sum(value.type.size for value in parameters.values())
    assert size / 1e9 == pytest.approx(BILLIONS.get(name, size / 1e9), rel=0.03)


VAES = {
    "four levels": TINY_VAE,
    "two levels, two residual blocks": replace(
        TINY_VAE, channels=24, block_channels=(24, 40), res_blocks=2),
    "one level, 16 channels": replace(TINY_VAE, block_channels=(16,), z_channels=16),
    "SD 3 pattern": replace(TINY_VAE, z_channels=16, quant_conv=False, shift_factor=0.06),
}


@pytest.mark.parametrize("name", VAES)
def test_vae_decoder(name: str) -> None:
    import torch

    config = VAES[name]
    peer = peers.peer_vae(config)
    latent = normal(1, 2, config.z_channels, 3, 5)
    found = run(vae_decoder_graph(config, 2, 3, 5), peer, latent=latent)
    with torch.no_grad():
        expected = peer.module.decode(torch.tensor(latent)).sample.numpy()
    assert relative_error(found, expected) <= ERROR_MAX


@pytest.mark.parametrize("name", VAES)
def test_vae_encoder(name: str) -> None:
    import torch

    config = VAES[name]
    peer = peers.peer_vae(config)
    height, width = 3 * config.downscale, 4 * config.downscale
    image = normal(1, 2, 3, height, width)
    found = run(vae_encoder_graph(config, 2, height, width), peer, image=image)
    with torch.no_grad():
        expected = peer.module.encode(torch.tensor(image)).latent_dist.parameters.numpy()
    assert relative_error(found, expected) <= ERROR_MAX


def test_both_halves_of_the_vae_read_the_whole_checkpoint() -> None:
    graphs = vae_decoder_graph(TINY_VAE, 1, 2, 2), vae_encoder_graph(TINY_VAE, 1, 16, 16)
    names = set().union(*(graph.parameters for graph in graphs))
    assert names == set(peers.peer_vae(TINY_VAE).weights)


TEXTS = {
    "quick gelu": TINY_TEXT,
    "exact gelu": replace(TINY_TEXT, activation="gelu", layers=3, heads=3),
    "head dimension 40": replace(TINY_TEXT, hidden_size=80, heads=2, positions=20),
    "OpenCLIP": replace(TINY_TEXT, activation="gelu", layers=3, prefix=OPENCLIP_G.prefix,
                        projection=40),
}


@pytest.mark.parametrize("tokens", [20, 5])
@pytest.mark.parametrize("name", TEXTS)
def test_text_encoder(name: str, tokens: int) -> None:
    import torch

    config = TEXTS[name]
    peer = peers.peer_clip_text(config)
    ids = np.random.default_rng(1).integers(0, config.vocab_size, (2, tokens), np.int32)
    graph = clip_text_graph(config, 2, tokens)
    assert set(graph.parameters) == set(peer.weights) - {f"{config.prefix}.text_projection.weight"}
    found = run(graph, peer, tokens=ids)
    with torch.no_grad():
        expected = peer.module(torch.tensor(ids.astype(np.int64))).last_hidden_state.numpy()
    assert relative_error(found, expected) <= ERROR_MAX


@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("skip", [1, 2, 3])
@pytest.mark.parametrize("name", ["exact gelu", "OpenCLIP"])
def test_text_encoder_with_pooled_token(name: str, skip: int, final_norm: bool) -> None:
    """Also with the rows of the tokens gathered outside, as textual inversion does."""
    import torch

    config, places = TEXTS[name], np.array([3, 19], np.int32)
    peer = peers.peer_clip_text(config)
    ids = np.random.default_rng(1).integers(0, config.vocab_size - 1, (2, 20), np.int32)
    ids[[0, 1], places] = config.vocab_size - 1
    options = {"skip": skip, "final_norm": final_norm, "pooled": True}
    found = evaluate(clip_text_graph(config, 2, 20, **options),
                     {"tokens": ids, "end": places}, peer.weights)
    words = peer.weights[f"{config.prefix}.text_model.embeddings.token_embedding.weight"]
    graph = clip_text_graph(config, 2, 20, embedded=True, **options)
    embedded = evaluate(graph, {"embeddings": words[ids], "end": places}, peer.weights)
    with torch.no_grad():
        made = peer.module(torch.tensor(ids.astype(np.int64)), output_hidden_states=True)
        norm = next(module for name, module in peer.module.named_modules()
                    if name.endswith("final_layer_norm"))
        context = made.hidden_states[-skip]
        context = (norm(context) if final_norm else context).numpy()
        pooled = (made.text_embeds if config.projection else made.pooler_output).numpy()
    for outputs in (found, embedded):
        assert relative_error(outputs["context"], context) <= ERROR_MAX
        assert relative_error(outputs["pooled"], pooled) <= ERROR_MAX


FULL_TEXTS = {"CLIP-L": CLIP_L, "OpenCLIP-H": OPENCLIP_H, "OpenCLIP-bigG": OPENCLIP_G}


@pytest.mark.parametrize("name", FULL_TEXTS)
def test_a_text_encoder_of_full_size_has_the_tensors_of_transformers(name: str) -> None:
    import torch

    config = FULL_TEXTS[name]
    with torch.device("meta"):
        state = peers.clip_text_module(config).state_dict()
    rename = peers.clip_text_renaming(config)
    expected = {rename(name): tuple(tensor.shape) for name, tensor in state.items()
                if not name.endswith("position_ids")}
    graph = clip_text_graph(config, 2, pooled=True)
    assert {name: value.shape for name, value in graph.parameters.items()} == expected


def test_fewer_layers_are_clip_skip() -> None:
    """The penultimate hidden state after the final norm, from the whole checkpoint."""
    import torch

    peer = peers.peer_clip_text(TINY_TEXT)
    ids = np.random.default_rng(1).integers(0, TINY_TEXT.vocab_size, (1, 77), np.int32)
    shorter = clip_text_graph(replace(TINY_TEXT, layers=TINY_TEXT.layers - 1), 1)
    found = run(shorter, peer, tokens=ids)
    with torch.no_grad():
        states = peer.module(torch.tensor(ids.astype(np.int64)), output_hidden_states=True)
        norms = [module for name, module in peer.module.named_modules()
                 if name.endswith("final_layer_norm")]
        expected = norms[0](states.hidden_states[-2]).numpy()
    assert relative_error(found, expected) <= ERROR_MAX


MOBILE = {
    "the paper's": (MobileNetV2Config(), 64, 64),
    "symmetric padding": (MobileNetV2Config(same_padding=False, classes=10), 40, 72),
    "half as wide, odd size": (MobileNetV2Config(multiplier=0.5), 51, 35),
    "wider": (MobileNetV2Config(multiplier=1.3, classes=2), 32, 32),
}


@pytest.mark.parametrize("name", MOBILE)
def test_mobilenet_v2(name: str) -> None:
    import torch

    config, height, width = MOBILE[name]
    peer = peers.peer_mobilenet_v2(config)
    image = normal(1, 2, 3, height, width)
    graph = mobilenet_v2_graph(config, 2, height, width)
    assert set(graph.parameters) == set(peer.weights)
    found = run(graph, peer, image=image)
    with torch.no_grad():
        expected = peer.module(torch.tensor(image)).logits.numpy()
    assert relative_error(found, expected) <= ERROR_MAX


@pytest.mark.parametrize("batch", [1, 2])
def test_flux_double_block(batch: int) -> None:
    import torch

    peer = peers.peer_flux_double_block(TINY_FLUX)
    graph = flux_double_block_graph(TINY_FLUX, 12, 5, batch)
    assert set(graph.parameters) == set(peer.weights)
    inputs = {name: normal(number, *value.shape)
              for number, (name, value) in enumerate(graph.inputs.items())}
    found = evaluate(graph, inputs, peer.weights)
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    with torch.no_grad():
        txt, img = peer.module(
            tensors["img"], tensors["txt"], tensors["vec"],
            tuple(tensors[name][0].repeat_interleave(2, dim=1) for name in ("cos", "sin")))
    for name, expected in (("img", img), ("txt", txt)):
        assert relative_error(found[name], expected.numpy()) <= ERROR_MAX
