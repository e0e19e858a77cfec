"""The parts that a whole model is made of, each a graph for a shape.

What a checkpoint must hold, what is compiled and what is explained all come from this one table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from smalti.graph import Graph
from smalti.models.chroma import chroma_graph, chroma_modulation_graph
from smalti.models.clip_text import clip_text_graph
from smalti.models.config import ModelConfig, TextConfig, UNetConfig, VaeConfig
from smalti.models.flux import flux_graph, flux_modulation_graph
from smalti.models.mmdit import mmdit_graph
from smalti.models.t5 import t5_graph
from smalti.models.tileable import tileable
from smalti.models.transformer_config import ChromaConfig, FluxConfig, T5Config
from smalti.models.unet import unet_graph
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph

TEXTS = ("text", "text_2", "text_3")
"""What the text encoders of a model are called as parts, in the order of `config.texts`."""

MASKED = ("chroma",)
"""Families whose prompts are masked where they are filled up."""

STEADY = ("context", "vector", "pooled", "guidance", "mask")
"""Inputs of a denoiser that stay the same for all steps of a picture."""

LAST_STATE = ("sd1", "sd2", "flux")
"""Families that read CLIP's states behind its last norm."""

POOLED = {("sdxl", "clip_g"), ("sdxl-refiner", "clip_g"), ("sd3", "clip_l"), ("sd3", "clip_g"),
          ("flux", "clip_l")}
"""Families and text encoders of which the pooled token is read."""


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

        text, text_2, text_3   of CLIP (batch, skip), where the state that is `skip`-th from the end
                               is read, or (batch, skip, True) with rows of tokens for their
                               numbers; of T5 (batch, tokens)
        unet, transformer      (batch, height, width, tokens), sizes of the latent; then `control`
                               of its graph where it reads what ControlNets give, else False, and
                               of a UNet the directions in which the picture can be repeated (see
                               `tileable`)
        modulation             (batch,), of FLUX.1 and Chroma
        vae                    (height, width), of the latent, and the same directions
        vae_encoder            (height, width), in pixels

    >>> from smalti.models.config import SD15
    >>> list(parts(SD15)), parts(SD15)["vae"].graph(8, 8).outputs["image"].shape
    (['text', 'unet', 'vae', 'vae_encoder'], (1, 3, 64, 64))
    """
    side, found = config.vae.downscale, {}
    for part, (name, text) in zip(TEXTS, config.texts.items()):
        title = "the text encoder" if len(config.texts) == 1 else f"the text encoder {name}"
        found[part] = Part(title, text_graph(config.family, name, text), (1, 1))
    found.update(_denoiser(config))
    found["vae"] = Part("the image decoder", partial(_decoder_graph, config.vae), (1, 1))
    found["vae_encoder"] = Part("the image encoder", partial(vae_encoder_graph, config.vae, 1),
                                (side, side))
    return found


def text_graph(family: str, name: str, text: TextConfig) -> Callable[..., Graph]:
    """From (batch, skip), or (batch, tokens) for T5, to the graph of a text encoder of a family.

    With True behind them, CLIP reads the rows of tokens instead of their numbers.
    """
    if isinstance(text, T5Config):
        return partial(t5_graph, text, masked=family in MASKED)
    return lambda batch, skip, embedded=False: clip_text_graph(
        text, batch, skip=skip, final_norm=family in LAST_STATE, pooled=(family, name) in POOLED,
        embedded=embedded)


def _denoiser(config: ModelConfig) -> dict[str, Part]:
    denoiser = config.denoiser
    if isinstance(denoiser, UNetConfig):
        side = 2 ** (len(denoiser.block_channels) - 1)
        return {"unet": Part("the UNet", partial(_unet_graph, denoiser), (1, side, side, 77),
                             STEADY)}
    if isinstance(denoiser, ChromaConfig):
        making, graph = chroma_modulation_graph, partial(chroma_graph, masked=True)
    elif isinstance(denoiser, FluxConfig):
        making, graph = flux_modulation_graph, partial(flux_graph, modulated=True)
    else:
        making, graph = None, mmdit_graph
    found = {}
    if making is not None:
        found["modulation"] = Part("the modulations", partial(making, denoiser), (1,))
    found["transformer"] = Part("the transformer", partial(
        _transformer_graph, partial(graph, denoiser)), (1, 2, 2, 1), STEADY)
    return found


def _unet_graph(config: UNetConfig, batch: int, height: int, width: int, tokens: int,
                control: bool = False, directions: str = "") -> Graph:
    graph = unet_graph(config, batch, height, width, tokens, control)
    return tileable(graph, directions) if directions else graph


def _decoder_graph(config: VaeConfig, height: int, width: int, directions: str = "") -> Graph:
    graph = vae_decoder_graph(config, 1, height, width)
    return tileable(graph, directions) if directions else graph


def _transformer_graph(graph: Callable[..., Graph], batch: int, height: int, width: int,
                       tokens: int, control: Any = False, directions: str = "",
                       gated: bool = False) -> Graph:
    """There are no `directions` for transformers: a token knows where in the picture it stands."""
    options = {"control": control, "gated": gated}
    return graph(batch, height, width, tokens,
                 **{name: value for name, value in options.items() if value})
