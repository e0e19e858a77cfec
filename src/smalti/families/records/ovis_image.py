"""Ovis-Image (AIDC-AI 2025, arXiv:2511.22982)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import contexts_fit, only_context
from smalti.families.keys import OVIS_DIFFUSERS, ovis_original
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Backbone,
    Layout,
    ModelFamily,
    ModelPart,
    Text,
    all_tokens,
    always,
)
from smalti.families.records.flux import DEV, flux_fields
from smalti.families.spelling import Layers, SpelledLayers, spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX_VAE
from smalti.models.flux import flux_graph, flux_modulation_graph
from smalti.models.newer_transformer_config import OVIS_IMAGE as PUBLISHED
from smalti.models.newer_transformer_config import OvisImageConfig

SYSTEM = ("Describe the image by detailing the color, quantity, text, shape, size, texture, "
          "spatial relationships of the objects and background: ")
"""What the text encoder is told before a prompt."""
TEMPLATE = language.CHATML_ANSWER.replace("{}", SYSTEM + "{}")
TEMPLATE_TOKENS = 28
"""Of it that stand before the prompt."""
PROMPT_TOKENS = 256
"""Of every prompt, with the end of the template, which is filled up to so many; all are seen, and
what fills up is zeros."""

SHAPED = {r"blocks_\d+_linear1$": (1, 11), r"proj_mlp$": (1, 8),
          r"ff(_context)?_net_0_proj$": (1, 8), r"(img|txt)_mlp_[02]$": (0, 1)}
"""Layers that Flux.1 has, too, of other proportions: what they read to what they give; 0 to 1 where
there is no such layer here."""


def ovis_image_config(where: object, shapes: Shapes, hints: Hints) -> OvisImageConfig:
    """The transformer of Ovis-Image. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    fields = flux_fields(found)
    fields["mlp_size"] = found.parts(fields["mlp_size"], 2)
    return OvisImageConfig(
        **fields,
        single_blocks=found.blocks("single_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
    )


def _parts(config: OvisImageConfig) -> dict[str, ModelPart]:
    return {
        "modulation": ModelPart("the modulations", partial(flux_modulation_graph, config), (1,)),
        "transformer": transformer_part(partial(flux_graph, config, modulated=True)),
    }


def _layout(names: Iterable[str]) -> Layout:
    """Names of diffusers, or of the authors, become those of Flux.1."""
    names = list(names)
    theirs = any(name.startswith("single_transformer_blocks.") for name in names)
    return OVIS_DIFFUSERS if theirs else ovis_original(names)


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of diffusers, and of the authors."""
    yield from spelled_by(layers, OVIS_DIFFUSERS)
    yield from spelled_by(layers, ovis_original(()))


def _shows(names: Names) -> bool:
    """Its files, folders, and what has the names of the graph."""
    return names.has("double_blocks.0.img_mlp.gate_proj.", "context_embedder_norm.",
                     "context_norm.")


OVIS_IMAGE = ModelFamily(
    name="ovis-image",
    title="Ovis-Image",
    files=(FileKind("ovis-image", "an Ovis-Image checkpoint", _shows),),
    before=("flux", "chroma", "longcat-image"),
    texts=(Text(language.QWEN3, final_norm=True, template=TEMPLATE, dropped=TEMPLATE_TOKENS,
                tokens=all_tokens(*[TEMPLATE_TOKENS + PROMPT_TOKENS] * 2), only_valid=True,
                file="ovis_2.5.safetensors"),),
    backbone=Backbone(
        name="ovis-image",
        models=("Ovis-Image",),
        config=ovis_image_config,
        parts=_parts,
        layout=_layout,
        mark="context_norm.",
        first="img_in",
        adapted=r"double_blocks_\d+_(img|txt)_mlp_(gate|up|down)_proj",
        alike="flux",
        shaped=SHAPED,
        precise=r"(img|txt|time)_in\.|(txt|context)_norm\.|final_layer\.|norm_out\.linear\."
                r"|(x|context|timestep)_embedder\.|(^|diffusion_model\.)proj_out\.",
        spelled=_spelled,
    ),
    join=only_context,
    agreements=contexts_fit,
    autoencoder=KL,
    vae=FLUX_VAE,
    prediction="flow",
    defaults=always(replace(DEV, steps=50, guidance=5.0)),
    published=(PUBLISHED,),
)
