"""The parts that a whole model is made of, each a graph for a shape.

What a checkpoint must hold, what is compiled and what is explained all come from this one table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from smalti.graph import Graph
from smalti.models.clip_text import clip_text_graph
from smalti.models.config import ModelConfig
from smalti.models.unet import unet_graph
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph

TEXTS = ("text", "text_2", "text_3")
"""What the text encoders of a model are called as parts, in the order of `config.texts`."""


@dataclass(frozen=True)
class Part:
    """A part: the words for it, its graph for a shape, the smallest such shape, and the inputs that
    stay the same for all steps of a picture."""

    title: str
    graph: Callable[..., Graph]
    smallest: tuple[int, ...]
    held: tuple[str, ...] = ()


def parts(config: ModelConfig) -> dict[str, Part]:
    """The parts of a model by name; a shape is

        text, text_2, text_3   (batch,)
        unet                   (batch, height, width), of the latent
        vae                    (height, width), of the latent
        vae_encoder            (height, width), in pixels

    >>> from smalti.models.config import SD15
    >>> list(parts(SD15)), parts(SD15)["vae"].graph(8, 8).outputs["image"].shape
    (['text', 'unet', 'vae', 'vae_encoder'], (1, 3, 64, 64))
    """
    side = config.vae.downscale
    latent = 2 ** (len(config.denoiser.block_channels) - 1)
    return {
        **{part: Part("the text encoder", partial(clip_text_graph, text), (1,))
           for part, text in zip(TEXTS, config.texts.values())},
        "unet": Part("the UNet", partial(unet_graph, config.denoiser), (1, latent, latent),
                     held=("context",)),
        "vae": Part("the image decoder", partial(vae_decoder_graph, config.vae, 1), (1, 1)),
        "vae_encoder": Part("the image encoder", partial(vae_encoder_graph, config.vae, 1),
                            (side, side)),
    }
