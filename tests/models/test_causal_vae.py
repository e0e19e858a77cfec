"""The autoencoder of Wan 2.1 and Qwen-Image: names, sizes, taps, and what diffusers computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_families import film_shape, of_wan

from smalti.benchmark.agreement import relative_error
from smalti.checkpoint.layout import VAE, contents
from smalti.errors import CheckpointError, InputError
from smalti.families.autoencoder import CAUSAL, KL
from smalti.families.hints import Hints
from smalti.families.keys import assembled, expressions, shape_of
from smalti.families.keys.causal_vae import causal_vae
from smalti.families.keys.renaming import internal_shape, is_ignored
from smalti.families.prefixes import VAE as PREFIX
from smalti.graph import Graph, evaluate, verify
from smalti.models import (
    WAN_VAE,
    CausalVaeConfig,
    causal_decoder_graph,
    causal_encoder_graph,
    tileable,
)

TINY = CausalVaeConfig(channels=8, block_channels=(8, 16, 16), res_blocks=1, z_channels=4,
                       latents_mean=(0.5, -0.5, 0.0, 1.0), latents_std=(2.0, 1.5, 3.0, 1.0))
PICTURES = {"three levels": TINY,
            "two residual blocks": replace(TINY, block_channels=(8, 24), res_blocks=2),
            "one level": replace(TINY, block_channels=(8,))}
ERROR_MAX = 1e-5

Arrays = Mapping[str, np.ndarray]


def graphs(config: CausalVaeConfig) -> tuple[Graph, Graph]:
    """Both halves for a latent of 3 x 2 pixels."""
    factor = config.downscale
    return (causal_decoder_graph(config, 1, 3, 2),
            causal_encoder_graph(config, 1, 3 * factor, 2 * factor))


def parameters(config: CausalVaeConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters."""
    return {name: value.shape for graph in graphs(config)
            for name, value in graph.parameters.items()}


def read(stored: Arrays) -> dict[str, np.ndarray]:
    """The parameters in a file with these tensors, which are below no prefix."""
    table = causal_vae(name for name in stored if not is_ignored(name))
    found, unknown = expressions((name for name in stored if not is_ignored(name)), table)
    assert not unknown
    return {PREFIX + name: assembled(each, stored.__getitem__).reshape(internal_shape(
                PREFIX + name, shape_of(each, lambda name: stored[name].shape)))
            for name, each in found.items()}


def test_the_published_one_has_127_million_numbers() -> None:
    """With the taps of other frames, and what halves and doubles time, of which a picture reads
    nothing."""
    shapes = parameters(WAN_VAE)
    for graph in graphs(WAN_VAE):
        verify(graph)
    stored = sum(math.prod(film_shape(name, shape)) for name, shape in shapes.items())
    halving = 3 * (192**2 + 384**2) + 192 + 384
    doubling = 2 * (3 * 384 * 768 + 768)
    assert stored + halving + doubling == 126_892_531
    assert shapes["first_stage_model.decoder.up_blocks.1.resnets.0.conv_shortcut.weight"] == (
        384, 192, 1, 1)


def random_file(config: CausalVaeConfig) -> dict[str, np.ndarray]:
    """The tensors of a file with diffusers' names."""
    random = np.random.default_rng(0)
    shapes = {name.removeprefix(PREFIX): film_shape(name, shape)
              for name, shape in parameters(config).items()}
    shapes["encoder.down_blocks.2.time_conv.weight"] = (8, 8, 3, 1, 1)
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", PICTURES)
def test_files_of_both_kinds_hold_it(name: str) -> None:
    """The names that Wan's authors give are those of diffusers with their own numbers; of kernels
    the last tap is read."""
    config = PICTURES[name]
    stored = random_file(config)
    theirs = of_wan(stored, config)
    assert len(theirs) == len(stored) and theirs.keys() != stored.keys()
    assert CAUSAL.shows(theirs) and CAUSAL.shows(stored)
    assert not KL.shows(theirs) and not KL.shows(stored)
    found = read(stored)
    assert {each: array.shape for each, array in found.items()} == parameters(config)
    np.testing.assert_array_equal(found[PREFIX + "decoder.conv_in.weight"],
                                  stored["decoder.conv_in.weight"][:, :, -1])
    other = read(theirs)
    assert all(np.array_equal(other[each], array) for each, array in found.items())
    assert other.keys() == found.keys()


def test_shapes_tell_all_but_statistics() -> None:
    for config in (*PICTURES.values(), WAN_VAE):
        found = CAUSAL.config("file", parameters(config), Hints(), config)
        assert found == config
    assert CAUSAL.config("file", parameters(TINY), Hints(
        latents_mean=(1.0,) * 4), TINY).latents_mean == (1.0,) * 4
    with pytest.raises(CheckpointError, match="file: no tensor is part of a block of the auto"):
        CAUSAL.config("file", {}, Hints(), TINY)


def test_what_is_no_kernel_of_films_is_refused() -> None:
    table = causal_vae(["decoder.conv1.weight"])
    (expression,) = table.values()
    with pytest.raises(CheckpointError, match=r"decoder.conv1.weight has 3 axes; .* third"):
        shape_of(expression, lambda name: (8, 4, 3))
    tap = np.ones((8, 4, 3, 3))
    assert shape_of(expression, lambda name: tap.shape) == tap.shape
    assert assembled(expression, lambda name: tap) is tap
    assert contents(["vae.decoder.up_blocks.0.upsamplers.0.time_conv.bias"], None, None).others
    assert VAE not in contents(["decoder.upsamples.3.time_conv.weight"], VAE, None).parts


def test_a_picture_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"18 x 16 pixels .* multiples of 4"):
        causal_encoder_graph(TINY, 1, 18, 16)


def test_it_can_decode_what_repeats() -> None:
    graph = tileable(causal_decoder_graph(TINY, 1, 4, 4), "x")
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(value.shape, np.float32) / 4
               for name, value in graph.parameters.items()}
    latent = random.standard_normal((1, 4, 4, 4), np.float32)
    (one,), (other,) = (evaluate(graph, {"latent": each}, weights).values()
                        for each in (latent, np.roll(latent, 1, axis=3)))
    np.testing.assert_allclose(np.roll(one, 4, axis=3), other, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- beside diffusers


def module_of(kind: str, config: CausalVaeConfig) -> Any:
    """diffusers' autoencoder of films with random weights, which halves time where it can."""
    import diffusers
    import torch

    torch.manual_seed(0)
    levels = len(config.block_channels)
    sizes = {} if kind == "AutoencoderKLQwenImage" else {
        "scale_factor_spatial": config.downscale, "scale_factor_temporal": 2}
    module = getattr(diffusers, kind)(
        base_dim=config.channels, z_dim=config.z_channels,
        dim_mult=[width // config.channels for width in config.block_channels],
        num_res_blocks=config.res_blocks, temperal_downsample=[i > 0 for i in range(levels - 1)],
        latents_mean=list(config.latents_mean), latents_std=list(config.latents_std), **sizes)
    for name, tensor in module.named_parameters():
        torch.nn.init.normal_(tensor.data, float("gamma" in name), 0.2)
    return module.eval()


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["AutoencoderKLQwenImage", "AutoencoderKLWan"])
@pytest.mark.parametrize("name", PICTURES)
def test_diffusers_computes_the_same(kind: str, name: str) -> None:
    import torch

    config = PICTURES[name]
    module, random = module_of(kind, config), np.random.default_rng(1)
    weights = read({each: tensor.numpy() for each, tensor in module.state_dict().items()})
    decoder, encoder = graphs(config)
    latent, image = (random.standard_normal(next(iter(graph.inputs.values())).shape, np.float32)
                     for graph in (decoder, encoder))
    with torch.no_grad():
        pixels = module.decode(torch.tensor(latent)[:, :, None], return_dict=False)[0][:, :, 0]
        moments = module.encode(torch.tensor(image)[:, :, None]).latent_dist.parameters[:, :, 0]
    found = evaluate(decoder, {"latent": latent}, weights)["image"]
    assert relative_error(np.clip(found, -1, 1), pixels.numpy()) <= ERROR_MAX
    found = evaluate(encoder, {"image": image}, weights)["moments"]
    assert relative_error(found, moments.numpy()) <= ERROR_MAX


@pytest.mark.peers
def test_diffusers_calls_all_of_wan_as_we_do() -> None:
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    stored = {name.removeprefix(PREFIX): name for name in parameters(WAN_VAE)}
    theirs = of_wan(stored, WAN_VAE)
    assert convert_wan_vae_to_diffusers(dict(theirs)) == stored
