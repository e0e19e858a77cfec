"""The autoencoder of Qwen-Image-2.1: names, sizes, what is added to levels, and what diffusers
computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tiny_families import film_shape, of_wan22
from transformer_graphs import check_program
from transformer_peers import residual_autoencoder

from smalti.benchmark.agreement import relative_error
from smalti.errors import CheckpointError, InputError
from smalti.families.autoencoder import CAUSAL, KL, RESIDUAL
from smalti.families.hints import Hints
from smalti.families.keys import assembled, expressions, shape_of
from smalti.families.keys.causal_vae import residual_vae
from smalti.families.keys.renaming import internal_shape, is_ignored
from smalti.families.prefixes import VAE as PREFIX
from smalti.graph import Graph, evaluate, verify
from smalti.models import (
    QWEN_IMAGE21_VAE,
    ResidualVaeConfig,
    residual_decoder_graph,
    residual_encoder_graph,
)
from smalti.models.residual_vae import enlarged, reduced

TINY = ResidualVaeConfig(channels=8, block_channels=(8, 16, 16), res_blocks=1, z_channels=4,
                         decoder_channels=(12, 24, 24), latents_mean=(0.5, -0.5, 0.0, 1.0),
                         latents_std=(2.0, 1.5, 3.0, 1.0))
PICTURES = {"three levels": TINY,
            "five, two residual blocks": replace(
                TINY, block_channels=(8, 16, 32, 64, 64), res_blocks=2,
                decoder_channels=(12, 24, 48, 96, 96)),
            "all as wide": replace(TINY, block_channels=(8, 8, 8), decoder_channels=())}
ERROR_MAX = 1e-5

Arrays = Mapping[str, np.ndarray]


def graphs(config: ResidualVaeConfig) -> tuple[Graph, Graph]:
    """Both halves for a latent of 3 x 2 pixels."""
    factor = config.downscale
    return (residual_decoder_graph(config, 1, 3, 2),
            residual_encoder_graph(config, 1, 3 * factor, 2 * factor))


def parameters(config: ResidualVaeConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters."""
    return {name: value.shape for graph in graphs(config)
            for name, value in graph.parameters.items()}


def read(stored: Arrays) -> dict[str, np.ndarray]:
    """The parameters in a file with these tensors, which are below no prefix."""
    names = [name for name in stored if not is_ignored(name)]
    found, unknown = expressions(names, residual_vae(names))
    assert not unknown
    return {PREFIX + name: assembled(each, stored.__getitem__).reshape(internal_shape(
                PREFIX + name, shape_of(each, lambda name: stored[name].shape)))
            for name, each in found.items()}


def test_the_published_one_has_331_million_numbers() -> None:
    """But for what halves and doubles time, of which a picture reads nothing."""
    shapes = parameters(QWEN_IMAGE21_VAE)
    for graph in graphs(QWEN_IMAGE21_VAE):
        verify(graph)
    assert sum(map(math.prod, shapes.values())) == 330_987_188
    assert shapes["first_stage_model.decoder.up_blocks.4.resnets.2.conv2.weight"] == (
        144, 144, 3, 3)
    assert shapes["first_stage_model.encoder.down_blocks.2.resnets.0.conv_shortcut.weight"] == (
        384, 192, 1, 1)


@pytest.mark.parametrize("name", PICTURES)
def test_files_of_both_kinds_hold_it(name: str) -> None:
    """ComfyUI's have names of Wan 2.2 and kernels of one frame, diffusers' no axis for it."""
    config, random = PICTURES[name], np.random.default_rng(0)
    shapes = {name.removeprefix(PREFIX): shape for name, shape in parameters(config).items()}
    stored = {name: random.standard_normal(
        shape[:1] + (1,) * 3 if name.endswith("gamma") else shape, np.float32)
        for name, shape in shapes.items()}
    films = {name: value.reshape(film_shape(name, shapes[name], still=True))
             for name, value in stored.items()}
    theirs = of_wan22(films, config)
    assert len(theirs) == len(stored) and theirs.keys() != stored.keys()
    for names in (theirs, stored):
        assert RESIDUAL.shows(names) and not CAUSAL.shows(names) and not KL.shows(names)
    found, other = read(stored), read(theirs)
    assert {each: array.shape for each, array in found.items()} == parameters(config)
    assert other.keys() == found.keys()
    assert all(np.array_equal(other[each], array) for each, array in found.items())


def test_shapes_tell_all_but_statistics() -> None:
    for config in (*PICTURES.values(), QWEN_IMAGE21_VAE):
        assert RESIDUAL.config("file", parameters(config), Hints(), config) == config
    assert RESIDUAL.config("file", parameters(TINY), Hints(
        latents_mean=(1.0,) * 4), TINY).latents_mean == (1.0,) * 4
    with pytest.raises(CheckpointError, match="file: no tensor is part of a level of the auto"):
        RESIDUAL.config("file", {}, Hints(), TINY)


def test_that_of_wan_22_is_refused() -> None:
    films = replace(TINY, image_channels=12)
    with pytest.raises(CheckpointError, match="gives 12 channels of pictures; expected 4; one of "
                                              "12 is of Wan 2.2"):
        RESIDUAL.config("file", parameters(films), Hints(), TINY)


@pytest.mark.parametrize(("read", "channels", "frames"), [
    (8, 8, 1), (8, 8, 2), (8, 4, 1), (8, 4, 2), (8, 2, 2), (4, 8, 2)])
def test_what_is_added_is_counted_in_films(read: int, channels: int, frames: int) -> None:
    """Against arrays of all frames, of which the picture is the last."""
    x = np.random.default_rng(0).standard_normal((1, read, 4, 6), np.float32)
    g = Graph()
    value = g.input("x", x.shape)
    for name, found in (("larger", enlarged(value, channels, frames)),
                        ("smaller", reduced(value, channels, 2, frames))):
        g.output(name, found)
    made = evaluate(g, {"x": x}, {})
    repeated = x.repeat(channels * frames * 4 // read, axis=1)
    larger = repeated.reshape(1, channels, frames, 2, 2, 4, 6)[:, :, -1]
    np.testing.assert_array_equal(
        made["larger"], larger.transpose(0, 1, 4, 2, 5, 3).reshape(1, channels, 8, 12))
    film = np.zeros((1, read, frames, 4, 6), np.float32)
    film[:, :, -1] = x
    squares = film.reshape(1, read, frames, 2, 2, 3, 2).transpose(0, 1, 2, 4, 6, 3, 5)
    smaller = squares.reshape(1, channels, -1, 2, 3).mean(axis=2)
    np.testing.assert_allclose(made["smaller"], smaller, atol=1e-6)


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="reads 8 channels and gives 5; one must be a multiple"):
        enlarged(Graph().input("x", (1, 8, 2, 2)), 5, 1)
    with pytest.raises(InputError, match=r"18 x 16 pixels .* multiples of 4"):
        residual_encoder_graph(TINY, 1, 18, 16)


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_the_program_computes_it(half: int) -> None:
    check_program(graphs(TINY)[half])


@pytest.mark.peers
@pytest.mark.parametrize("name", PICTURES)
def test_diffusers_computes_the_same(name: str) -> None:
    import torch

    config, random = PICTURES[name], np.random.default_rng(1)
    module = residual_autoencoder(config).eval()
    for each, tensor in module.named_parameters():
        torch.nn.init.normal_(tensor.data, float("gamma" in each), 0.2)
    weights = read({each: tensor.numpy() for each, tensor in module.state_dict().items()})
    decoder, encoder = graphs(config)
    assert weights.keys() == parameters(config).keys()
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
def test_full_size() -> None:
    import torch

    with torch.device("meta"):
        module = residual_autoencoder(QWEN_IMAGE21_VAE)
    state = {name: tensor for name, tensor in module.state_dict().items() if not is_ignored(name)}
    assert {PREFIX + name: internal_shape(PREFIX + name, tuple(tensor.shape))
            for name, tensor in state.items()} == parameters(QWEN_IMAGE21_VAE)
