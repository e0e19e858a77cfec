"""FLUX.3-image-klein and its base (Black Forest Labs 2026)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import FLUX3_DIFFUSERS
from smalti.families.keys.renaming import flux_name
from smalti.families.names import FileKind
from smalti.families.record import (
    Backbone,
    Defaults,
    Layout,
    ModelFamily,
    ModelPart,
    Text,
    all_tokens,
)
from smalti.families.spelling import spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX2_VAE, Prediction
from smalti.models.flux3 import flux3_graph
from smalti.models.newer_transformer_config import FLUX3_KLEIN, FLUX3_KLEIN_BASE, Flux3Config

WINDOW, TOKENS = 80, 8192
"""A text is filled up to a multiple of so many tokens, all of which are seen; of a longer one than
the second so many are read."""

TAPS = tuple(range(4, 33, 4))
"""Layers of the text encoder behind which states are read."""

BASE = Defaults(size=1024, steps=50, guidance=3.5, sampler="euler", noise="trailing",
                flow_shift=6.93, areas=(0.1, 4.0))
"""As its authors recommend; areas up to 4 megapixels, as of FLUX.2."""

KLEIN = replace(BASE, steps=16, guidance=1.0)
"""Of the model that was distilled, which its layers show."""


def flux3_config(where: object, shapes: Shapes, hints: Hints) -> Flux3Config:
    """The transformer of FLUX.3. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden = found.size("emb_in.image.weight", 0)
    head_dim = found.size("single_blocks.0.norm.query_norm.scale", 0)
    axes = len(FLUX3_KLEIN.axes)
    return Flux3Config(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.parts(found.size("single_blocks.0.mlp_in.weight", 0), 2),
        stream_blocks=found.blocks("txt_mode_blocks"),
        blocks=found.blocks("single_blocks"),
        in_channels=found.size("emb_in.image.weight", 1),
        out_channels=found.size("final_layer.image.linear.weight", 0),
        context_dim=found.size("txt_in.weight", 1),
        flow_map=found.has(r"ref_time_in\."),
        reference=found.has(r"emb_in\.image_cond\.") and hints.reference is not False,
        axes=(2 * found.parts(head_dim, 2 * axes),) * axes,
    )


def _parts(config: Flux3Config) -> Mapping[str, ModelPart]:
    """The smallest shape is one with a picture that is read, where there are layers for it."""
    part = transformer_part(partial(flux3_graph, config))
    beside: tuple[Any, ...] = (False, "", False, ((1, 1),)) if config.reference else ()
    return {"transformer": replace(part, smallest=(*part.smallest, *beside))}


def _layout(names: Iterable[str]) -> Layout:
    """The names of diffusers become the original ones."""
    known = any(name.startswith("x_embedders.") for name in names)
    return FLUX3_DIFFUSERS if known else flux_name


def _defaults(denoiser: Flux3Config, prediction: Prediction) -> Defaults:
    return KLEIN if denoiser.flow_map else BASE


FLUX3 = ModelFamily(
    name="flux3",
    title="FLUX.3-image-klein",
    files=(FileKind("flux3", "a FLUX.3-image-klein checkpoint",
                    lambda names: names.has("early_stream_modulations.")),),
    before=("flux", "chroma", "longcat-image"),
    texts=(Text(language.QWEN3_VL, taps=TAPS, template=language.CHATML, masked=True,
                tokens=all_tokens(WINDOW, TOKENS), round_to=WINDOW, windowed=True,
                filled_at=1),),
    backbone=Backbone(
        name="flux3",
        models=("FLUX.3",),
        config=flux3_config,
        parts=_parts,
        layout=_layout,
        mark="early_stream_modulations.",
        first="emb_in.image",
        adapted=r"mode_blocks_(image_|\d)|(early|single)_stream_modulations_"
                r"|single_blocks_\d+_([qkv]_proj|attn_out|mlp_(in|out))"
                r"|single_transformer_blocks_\d+_(ff_linear_|attn_to_out_0)",
        stack="single_transformer_blocks",
        alike="flux",
        shaped={r"(double_blocks|(?<!single_)transformer_blocks)_\d": (0, 1),
                r"single_blocks_\d+_(linear[12]|modulation_lin)$": (0, 1),
                r"single_transformer_blocks_\d+_(proj_(mlp|out)|norm_linear)$": (0, 1)},
        precise=r"(txt|time|ref_time)_in\.|emb_in\.|final_layer\.|_stream_modulations\."
                r"|x_embedders\.|context_embedder\.|timestep_embedder\.|norm_out\."
                r"|(^|diffusion_model\.)proj_out\.",
        spelled=partial(spelled_by, table=FLUX3_DIFFUSERS),
    ),
    join=context_and_mask,
    agreements=partial(contexts_fit, taps=len(TAPS)),
    autoencoder=KL,
    vae=FLUX2_VAE,
    vae_file="flux2-vae.safetensors",
    prediction="flow",
    defaults=_defaults,
    published=(FLUX3_KLEIN, FLUX3_KLEIN_BASE),
)
