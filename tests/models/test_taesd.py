"""The tiny autoencoder: diffusers' numbers, and the original's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smalti.benchmark.agreement import relative_error
from smalti.benchmark.weights import seeded
from smalti.checkpoint.keys import taesd_renaming
from smalti.errors import InputError
from smalti.graph import Graph, evaluate, parse, show, verify
from smalti.models import (
    TAESD,
    TAESD3,
    TaesdConfig,
    taesd_decoder_graph,
    taesd_encoder_graph,
)

TINY = TaesdConfig(z_channels=4, channels=16, decoder_blocks=(2, 1), encoder_blocks=(1, 2))
CONFIGS = {"tiny": TINY, "4 channels": TAESD, "16 channels": TAESD3}
ERROR_MAX = 1e-5


def module(config: TaesdConfig) -> Any:
    """diffusers' AutoencoderTiny with seeded weights."""
    import torch
    from diffusers import AutoencoderTiny

    widths = (config.channels,) * len(config.decoder_blocks)
    found = AutoencoderTiny(
        latent_channels=config.z_channels, num_encoder_blocks=config.encoder_blocks,
        num_decoder_blocks=config.decoder_blocks, encoder_block_out_channels=widths,
        decoder_block_out_channels=widths).eval()
    found.load_state_dict({name: torch.tensor(seeded(name, tensor.shape))
                           for name, tensor in found.state_dict().items()})
    return found


def weights_of(peer: Any) -> dict[str, np.ndarray]:
    state = {name: tensor.numpy() for name, tensor in peer.state_dict().items()}
    rename = taesd_renaming(state)
    return {rename(name): array for name, array in state.items()}


@pytest.mark.peers
@pytest.mark.parametrize("name", CONFIGS)
def test_both_halves_compute_what_diffusers_does(name: str) -> None:
    import torch

    config = CONFIGS[name]
    peer = module(config)
    weights, random, side = weights_of(peer), np.random.default_rng(1), 2 * config.downscale
    decoder = taesd_decoder_graph(config, 2, 3, 2)
    encoder = taesd_encoder_graph(config, 2, side, 2 * side)
    assert set(decoder.parameters) | set(encoder.parameters) == set(weights)
    latent = 4 * random.standard_normal((2, config.z_channels, 3, 2), np.float32)
    image = 2 * random.random((2, 3, side, 2 * side), np.float32) - 1
    with torch.no_grad():
        pixels = peer.decode(torch.tensor(latent)).sample.numpy()
        latents = peer.encode(torch.tensor(image)).latents.numpy()
    found = evaluate(decoder, {"latent": latent}, weights)["image"]
    assert relative_error(found, pixels) <= ERROR_MAX
    found = evaluate(encoder, {"image": image}, weights)["latent"]
    assert relative_error(found, latents) <= ERROR_MAX


def graphs(config: TaesdConfig) -> list[Graph]:
    side = 2 * config.downscale
    return [taesd_decoder_graph(config, 1, 2, 3), taesd_encoder_graph(config, 1, side, side)]


def test_shapes_and_names_of_the_original() -> None:
    decoder, encoder = graphs(TAESD3)
    assert decoder.outputs["image"].shape == (1, 3, 16, 24)
    assert encoder.outputs["latent"].shape == (1, 16, 2, 2)
    for graph in (decoder, encoder):
        verify(graph)
        assert show(parse(show(graph))) == show(graph)
    learned = {name.removeprefix("taesd.") for name in (*decoder.parameters, *encoder.parameters)}
    numbers = {half: sorted({int(name.split(".")[1]) for name in learned if name.startswith(half)})
               for half in ("decoder", "encoder")}
    assert numbers == {"decoder": [1, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 17, 18, 19],
                       "encoder": list(range(15))}
    assert "decoder.7.bias" not in learned and "encoder.2.bias" not in learned
    assert {"decoder.19.bias", "encoder.14.bias", "encoder.1.conv.4.bias"} <= learned
    size = sum(value.type.size for graph in graphs(TAESD) for value in graph.parameters.values())
    assert size == pytest.approx(2.45e6, rel=0.01)


def test_every_layout_of_names_is_understood() -> None:
    for graph in graphs(TAESD):
        names = list(graph.parameters)
        half = names[0].split(".")[1]
        short = [name.removeprefix("taesd.") for name in names]
        bare = [name.removeprefix(f"{half}.") for name in short]
        shift = int(half == "decoder")
        diffusers = [f"{half}.layers.{int(number) - shift}.{rest}"
                     for number, _, rest in (name.partition(".") for name in bare)]
        for layout in (names, short, bare, diffusers):
            assert [taesd_renaming(layout)(name) for name in layout] == names
    assert taesd_renaming(["1.weight"])("global_step") == "global_step"


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="512 x 500 pixels .* multiples of 8"):
        taesd_encoder_graph(TAESD, 1, 512, 500)
