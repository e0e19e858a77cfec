"""The parts of the model that are measured: our graph, the same module of a peer, and inputs.

`peer_module` builds modules of diffusers and transformers from a configuration, as the tests do,
and fills them with the weights of a checkpoint: nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smalti.checkpoint import Checkpoint
from smalti.diffusion.tokenizer import encode
from smalti.graph import Graph
from smalti.models import (
    Sd1Config,
    clip_text_graph,
    unet_graph,
    vae_decoder_graph,
    vae_encoder_graph,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import peers_models  # noqa: E402
from peers_pipeline import with_weights  # noqa: E402

if TYPE_CHECKING:
    import torch

PROMPT = "a red apple on a wooden table, photograph"
TIMESTEP = 681.0


@dataclass(frozen=True)
class Part:
    """One part at one shape."""

    title: str
    graph: Callable[[Sd1Config], Graph]
    inputs: Callable[[Sd1Config], dict[str, np.ndarray]]
    peer: Callable[[Sd1Config], peers_models.Peer]


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _sides(config: Sd1Config) -> tuple[int, int]:
    """Height and width of the latent of a picture of the model's own size."""
    factor = config.vae.downscale
    return config.default_height // factor, config.default_width // factor


def _unet(batch: int) -> Part:
    def inputs(config: Sd1Config) -> dict[str, np.ndarray]:
        return {"latent": _normal(1, batch, config.unet.in_channels, *_sides(config)),
                "timesteps": np.full(batch, TIMESTEP, np.float32),
                "context": _normal(2, batch, config.text.positions, config.unet.context_dim)}

    return Part(f"UNet step, batch {batch}",
                lambda config: unet_graph(config.unet, batch, *_sides(config)), inputs,
                lambda config: peers_models.peer_unet(config.unet))


def _tokens(config: Sd1Config) -> dict[str, np.ndarray]:
    return {"tokens": np.array([encode(text).ids for text in (PROMPT, "")], np.int32)}


def _latent(config: Sd1Config) -> dict[str, np.ndarray]:
    return {"latent": _normal(3, 1, config.vae.z_channels, *_sides(config))}


def _image(config: Sd1Config) -> dict[str, np.ndarray]:
    shape = (1, 3, config.default_height, config.default_width)
    return {"image": np.random.default_rng(4).uniform(-1, 1, shape).astype(np.float32)}


PARTS = {
    "clip": Part("CLIP text encoder", lambda config: clip_text_graph(config.text, 2), _tokens,
                 lambda config: peers_models.peer_clip_text(config.text)),
    "unet": _unet(2),
    "unet1": _unet(1),
    "decoder": Part("VAE decode", lambda config: vae_decoder_graph(config.vae, 1, *_sides(config)),
                    _latent, lambda config: peers_models.peer_vae(config.vae)),
    "encoder": Part("VAE encode", lambda config: vae_encoder_graph(
                        config.vae, 1, config.default_height, config.default_width),
                    _image, lambda config: peers_models.peer_vae(config.vae)),
}


def peer_module(name: str, checkpoint: Checkpoint) -> torch.nn.Module:
    """Part `name` as a module that takes our inputs in our order and gives one tensor."""
    import torch

    calls = {
        "clip": lambda module, tokens: module(tokens.long()).last_hidden_state,
        "unet": lambda module, *inputs: module(*inputs, return_dict=False)[0],
        "decoder": lambda module, latent: module.decode(latent, return_dict=False)[0],
        "encoder": lambda module, image: module.quant_conv(module.encoder(image)),
    }

    class Wrapped(torch.nn.Module):
        """A module whose `forward` is one of `calls`."""

        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module
            self.call = calls[name.rstrip("1")]

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.call(self.module, *inputs)

    return Wrapped(with_weights(PARTS[name].peer(checkpoint.config), checkpoint)).eval()
