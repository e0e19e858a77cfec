"""Lumina-Image 2 (Alpha-VLLM 2025, arXiv:2503.21758), and models made of it, such as NetaYume."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import LUMINA2_DIFFUSERS, Z_IMAGE_DIFFUSERS
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Backbone,
    Defaults,
    Layout,
    ModelFamily,
    Text,
    all_tokens,
    always,
)
from smalti.families.records.z_image import z_image_config
from smalti.families.spelling import Layers, SpelledLayers, spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX_VAE
from smalti.models.transformer_config import LUMINA2 as PUBLISHED
from smalti.models.transformer_config import Lumina2Config, ZImageConfig
from smalti.models.z_image import z_image_graph

ROUND = 32
"""Texts are filled up to a multiple of so many tokens, which are not seen: fewer programs."""
MARK = "<Prompt Start>"
"""What is said to the model ends with it, and the prompt begins."""
SYSTEM = ("You are an assistant designed to generate superior images with the superior degree of "
          "image-text alignment based on textual prompts or user prompts.")
SHARES = 1 / 3, 1 / 3
"""Of the channels of a head: those that turn with the place in the text, with the row or column."""

SHAPED = {r"attention_qkv$": (3, 5), r"attention_to_[kv]$": (3, 1),
          r"feed_forward_(w|linear_)[13]$": (1, 4), r"feed_forward_(w|linear_)2$": (4, 1),
          r"adaLN_modulation_0$": (0, 1), r"adaLN_modulation_1$|attn_to_|norm1_linear$": (0, 0)}
"""Layers that Z-Image has, too, of other proportions: what they read to what they give; 0 to 1
where there is no such layer here, 0 to 0 where there is one here alone."""


def lumina2_config(where: object, shapes: Shapes, hints: Hints) -> ZImageConfig:
    """The transformer of Lumina-Image 2. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    shared = found.size("layers.0.attention.qkv.weight", 0) - found.size("x_embedder.weight", 0)
    head_dim = found.size("layers.0.attention.q_norm.weight", 0)
    return z_image_config(where, shapes, hints, SHARES, partial(
        Lumina2Config, kv_heads=found.parts(shared, 2 * head_dim)))


def captioned(names: Names) -> bool:
    """Whether it is built like Z-Image, without the tokens that fill up a text there."""
    return (names.has("cap_embedder.1.", "time_caption_embed.caption_embedder.")
            and names.has("noise_refiner.0.") and not names.has("cap_pad_token"))


def _layout(names: Iterable[str]) -> Layout:
    """The names of diffusers become the original ones."""
    return LUMINA2_DIFFUSERS if any(".attn.to_q." in name for name in names) else str


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of diffusers, and those that it has for the same layers of Z-Image."""
    yield from spelled_by(layers, LUMINA2_DIFFUSERS)
    yield from spelled_by(layers, Z_IMAGE_DIFFUSERS)


LUMINA2 = ModelFamily(
    name="lumina2",
    title="Lumina-Image 2",
    files=(FileKind("lumina2", "a Lumina-Image 2 checkpoint", captioned),),
    texts=(Text(language.GEMMA2, layer=2, tokens=all_tokens(ROUND, 256), round_to=ROUND,
                template=f"{SYSTEM} {MARK} {{}}", mark=MARK, plain_negative=True,
                only_valid=True),),
    backbone=Backbone(
        name="lumina2",
        models=("Lumina-Image 2",),
        config=lumina2_config,
        parts=lambda config: {"transformer": transformer_part(partial(z_image_graph, config))},
        layout=_layout,
        mark="layers.0.adaLN_modulation.1",
        first="x_embedder",
        adapted=r"(^|_)(layers|noise_refiner|context_refiner)_\d+_(attn_to_|norm1_linear"
                r"|adaLN_modulation_1|feed_forward_linear_)|(^|_)time_caption_embed_",
        alike="z-image",
        shaped=SHAPED,
        precise=r"(x|t|cap|timestep|caption)_embedder\.|final_layer\.|norm_out\.|"
                r"\d\.(adaLN_modulation|norm1\.linear)\.",
        stack="layers",
        spelled=_spelled,
    ),
    join=context_and_mask,
    agreements=contexts_fit,
    autoencoder=KL,
    vae=FLUX_VAE,
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=30, guidance=4.0, sampler="euler", noise="trailing",
                             flow_shift=6.0, areas=(0.25, 2.0))),
    published=(PUBLISHED,),
)
