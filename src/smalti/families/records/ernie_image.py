"""ERNIE-Image and ERNIE-Image-Turbo (Baidu 2026)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.distilled import DISTILLED_FLOW
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import ERNIE_IMAGE as KEYS
from smalti.families.names import FileKind, Names
from smalti.families.record import Backbone, Defaults, ModelFamily, Text, all_tokens, always
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX2_VAE
from smalti.models.ernie_image import ernie_image_graph
from smalti.models.newer_transformer_config import ERNIE_IMAGE as PUBLISHED
from smalti.models.newer_transformer_config import ErnieImageConfig

FIRST_SHARE, PLACE_SHARE = 1 / 4, 3 / 8
"""Of the channels of a head: those that turn with the place in the text, with the row or column."""
ROUND, PROMPT_TOKENS = 32, 2048
"""Tokens of a prompt: filled up to a multiple of so many, which are not seen, and at most so many;
its authors set no limit."""

VAE = replace(FLUX2_VAE, statistics_eps=1e-5)
"""That of FLUX.2; the number that is added to the variances of latents is the one that the model
was trained with, whatever its folder states (diffusers, `pipeline_ernie_image.py`)."""

TURBO = {"steps": 8, "guidance": 1.0}
"""As its authors recommend."""


def ernie_image_config(where: object, shapes: Shapes, hints: Hints) -> ErnieImageConfig:
    """The transformer of ERNIE-Image. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden = found.size("x_embedder.proj.weight", 0)
    head_dim = found.size("layers.0.self_attention.norm_q.weight", 0)
    return ErnieImageConfig(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("layers.0.mlp.gate_proj.weight", 0),
        blocks=found.blocks("layers"),
        in_channels=found.size("x_embedder.proj.weight", 1),
        out_channels=found.size("final_linear.weight", 0),
        context_dim=found.size("text_proj.weight", 1) if found.has(r"text_proj\.") else hidden,
        axes=found.axes(head_dim, FIRST_SHARE, PLACE_SHARE),
    )


def _shows(names: Names) -> bool:
    return names.has("layers.0.adaLN_sa_ln.")


ERNIE_IMAGE = ModelFamily(
    name="ernie-image",
    title="ERNIE-Image",
    files=(FileKind("ernie-image", "an ERNIE-Image checkpoint", _shows),),
    texts=(Text(language.MINISTRAL, layer=2, tokens=all_tokens(ROUND, PROMPT_TOKENS),
                round_to=ROUND, template="<s>{}", only_valid=True),),
    backbone=Backbone(
        name="ernie-image",
        models=("ERNIE-Image",),
        config=ernie_image_config,
        parts=lambda config: {"transformer": transformer_part(partial(ernie_image_graph, config))},
        layout=lambda names: KEYS,
        mark="layers.0.adaLN_sa_ln.",
        first="x_embedder.proj",
        adapted=r"(^|_)layers_\d+_(self_attention_(to|norm)_|mlp_linear_fc2|adaLN_(sa|mlp)_ln)",
        precise=r"x_embedder\.|(^|diffusion_model\.)(text_proj|time_embedding|adaLN_modulation)\."
                r"|final_(norm|linear)\.",
        stack="layers",
    ),
    join=context_and_mask,
    agreements=contexts_fit,
    autoencoder=KL,
    vae=VAE,
    vae_file="flux2-vae.safetensors",
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=50, guidance=4.0, sampler="euler", noise="trailing",
                             flow_shift=4.0)),
    distilled={**DISTILLED_FLOW, "turbo": TURBO},
    published=(PUBLISHED,),
)
