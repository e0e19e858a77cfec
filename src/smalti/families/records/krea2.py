"""Krea 2 Raw and Turbo (Krea 2026)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import CAUSAL
from smalti.families.evidence import Shapes, Shown
from smalti.families.flow_shift import ExponentialShift
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import KREA2_DIFFUSERS
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    CONDITIONER,
    Backbone,
    Conditioner,
    Defaults,
    Layout,
    ModelFamily,
    ModelPart,
    Text,
    all_tokens,
    always,
)
from smalti.families.records.qwen_image import PROMPT_TOKENS, ROUND, TEMPLATE, TEMPLATE_TOKENS
from smalti.families.spelling import spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import WAN_VAE
from smalti.models.krea2 import krea2_graph, krea2_text_graph
from smalti.models.transformer_config import KREA2 as PUBLISHED
from smalti.models.transformer_config import Krea2Config

TAPS = tuple(range(2, 36, 3))
"""Layers of the text encoder behind which states are read."""
FIRST_SHARE, PLACE_SHARE = 1 / 4, 3 / 8
"""Of the channels of a head: those that turn with the frame, with the row or column."""
MU_SMALL, MU_LARGE = 0.5, 1.15
"""Logarithms of the shift at 256 and at 6400 tokens; Turbo has the second at all sizes."""

TURBO = {"steps": 8, "guidance": 1.0, "flow_shift": math.exp(MU_LARGE)}
"""As its authors recommend."""


def krea2_config(where: object, shapes: Shapes, hints: Hints) -> Krea2Config:
    """The transformer of Krea 2. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden, text = found.size("first.weight", 0), found.size("txtmlp.0.scale", 0)
    head_dim = found.size("blocks.0.attn.qknorm.qnorm.scale", 0)
    inside = "txtfusion.refiner_blocks"
    text_head = found.size(f"{inside}.0.attn.qknorm.qnorm.scale", 0)
    return Krea2Config(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        kv_heads=found.parts(found.size("blocks.0.attn.wk.weight", 0), head_dim),
        mlp_size=found.size("blocks.0.mlp.up.weight", 0),
        blocks=found.blocks("blocks"),
        in_channels=found.parts(found.size("first.weight", 1), 4),
        out_channels=found.parts(found.size("last.linear.weight", 0), 4),
        text_dim=text,
        taps=found.size("txtfusion.projector.weight", 1),
        text_heads=found.parts(text, text_head),
        text_kv_heads=found.parts(found.size(f"{inside}.0.attn.wk.weight", 0), text_head),
        text_mlp_size=found.size(f"{inside}.0.mlp.up.weight", 0),
        layer_blocks=found.blocks("txtfusion.layerwise_blocks"),
        text_blocks=found.blocks(inside),
        axes=found.axes(head_dim, FIRST_SHARE, PLACE_SHARE),
    )


def _parts(config: Krea2Config) -> dict[str, ModelPart]:
    return {CONDITIONER: ModelPart("what reads texts for the transformer",
                                   partial(krea2_text_graph, config), (1, 1), wide=True),
            "transformer": transformer_part(partial(krea2_graph, config))}


def _layout(names: Iterable[str]) -> Layout:
    """The names of diffusers become the original ones."""
    return KREA2_DIFFUSERS if any(name.startswith("text_fusion.") for name in names) else str


def _shows(names: Names) -> bool:
    return names.has("txtfusion.", "text_fusion.")


KREA2 = ModelFamily(
    name="krea2",
    title="Krea 2",
    files=(FileKind("krea2", "a Krea 2 checkpoint", _shows),),
    texts=(Text(language.QWEN3_VL, taps=TAPS, template=TEMPLATE, ended=True,
                dropped=TEMPLATE_TOKENS,
                tokens=all_tokens(TEMPLATE_TOKENS + ROUND, TEMPLATE_TOKENS + PROMPT_TOKENS),
                round_to=ROUND, only_valid=True),),
    backbone=Backbone(
        name="krea2",
        models=("Krea 2",),
        config=krea2_config,
        parts=_parts,
        layout=_layout,
        mark="txtfusion.",
        first="first",
        adapted=r"(^|_)blocks_\d+_attn_(w[qkvo]|gate)($|_)|(^|_)(txtfusion|text_fusion)_"
                r"|transformer_blocks_\d+_attn_to_gate",
        precise=r"(^|diffusion_model\.)(first|last\.linear|tmlp|tproj|txtmlp)\.|projector\.|"
                r"(img|txt)_in\.|time_(embed|mod_proj)\.|final_layer\.",
        spelled=partial(spelled_by, table=KREA2_DIFFUSERS),
    ),
    join=context_and_mask,
    conditioner=Conditioner(kept=("mask",)),
    agreements=partial(contexts_fit, taps=len(TAPS)),
    autoencoder=CAUSAL,
    vae=WAN_VAE,
    vae_file="qwen_image_vae.safetensors",
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=28, guidance=5.5, sampler="euler", noise="trailing",
                             flow_shift=None)),
    distilled={"turbo": TURBO},
    published=(PUBLISHED,),
    shift_by_size=ExponentialShift((256, MU_SMALL), (6400, MU_LARGE)),
)
