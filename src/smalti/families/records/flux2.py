"""FLUX.2 klein of 4 and 9 billion parameters, its base, and dev (Black Forest Labs 2025, 2026)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.distilled import DISTILLED_FLOW, Recommended
from smalti.families.evidence import Shapes, Shown
from smalti.families.flow_shift import flux2_shift
from smalti.families.hints import Hints
from smalti.families.joining import contexts_fit, only_context
from smalti.families.keys import FLUX2_DIFFUSERS
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Backbone,
    Defaults,
    ModelFamily,
    Text,
    all_tokens,
    always,
)
from smalti.families.records.flux import flux_layout
from smalti.families.spelling import Layers, SpelledLayers, spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX2_VAE
from smalti.models.flux2 import flux2_graph
from smalti.models.transformer_config import (
    FLUX2_DEV as PUBLISHED_DEV,
)
from smalti.models.transformer_config import (
    FLUX2_KLEIN_4B,
    FLUX2_KLEIN_9B,
    Flux2Config,
)

TOKENS = 512
"""Of every prompt, which is filled up to so many; all of them are seen."""

TAPS = (9, 18, 27)
"""Layers of Qwen3 behind which prompts are read: a quarter, half and three quarters of the way."""

TAPS_DEV = (10, 20, 30)
"""Layers of Mistral Small behind which prompts are read."""

KLEIN = Defaults(size=1024, steps=4, guidance=1.0, sampler="euler", noise="trailing",
                 flow_shift=None, areas=(0.1, 4.0))
"""Of klein, which is distilled to few steps; areas up to 4 megapixels, as its authors say."""

DEV = replace(KLEIN, steps=28, distilled_guidance=4.0)
"""Of dev, which is told the strength of guidance."""

NAMED: Recommended = {**DISTILLED_FLOW, "base": {"steps": 28, "guidance": 4.0},
                      "kv": {"steps": 4, "guidance": 1.0, "reference": False}}
"""What names tell: klein base is not distilled; its authors take 50 steps, others 20. KV reads
pictures otherwise, each for itself and at time 0, which is not computed."""

SHAPED = {r"(img|txt)_mlp_0$": (1, 6), r"(img|txt)_mlp_2$": (3, 1), r"blocks_\d+_linear1$": (1, 9),
          r"blocks_\d+_(linear2|proj_out)$": (4, 1), r"ff(_context)?_net_2$": (3, 1),
          r"single_transformer_blocks_\d+_attn_to_[qkv]$": (0, 1)}
"""Layers that Flux.1 has, too, of other proportions: what they read to what they give; 0 where
there is no such layer here."""


def flux2_config(where: object, shapes: Shapes, hints: Hints) -> Flux2Config:
    """The transformer of FLUX.2. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden = found.size("img_in.weight", 0)
    head_dim = found.size("double_blocks.0.img_attn.norm.query_norm.scale", 0)
    axes = len(FLUX2_KLEIN_4B.axes)
    return Flux2Config(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.parts(found.size("double_blocks.0.img_mlp.0.weight", 0), 2),
        double_blocks=found.blocks("double_blocks"),
        single_blocks=found.blocks("single_blocks"),
        in_channels=found.size("img_in.weight", 1),
        out_channels=found.size("final_layer.linear.weight", 0),
        context_dim=found.size("txt_in.weight", 1),
        guidance=found.has(r"guidance_in\."),
        reference=hints.reference is not False,
        axes=(2 * found.parts(head_dim, 2 * axes),) * axes,
    )


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of diffusers, and what becomes of them where `tran` is taken for a prefix."""
    for name, target in spelled_by(layers, FLUX2_DIFFUSERS):
        yield name, target
        if "transformer_blocks." in name:
            yield name.replace("transformer_blocks.", "sformer_blocks."), target


def _shows(names: Names) -> bool:
    return names.has("double_stream_modulation_img.", "single_stream_modulation.")


def _shows_dev(names: Names) -> bool:
    return _shows(names) and names.has("guidance_in.", "time_guidance_embed.guidance_embedder.")


BACKBONE = Backbone(
    name="flux2",
    models=("FLUX.2",),
    config=flux2_config,
    parts=lambda config: {"transformer": transformer_part(partial(flux2_graph, config))},
    layout=partial(flux_layout, FLUX2_DIFFUSERS),
    mark="single_stream_modulation.",
    first="img_in",
    adapted=r"(double|single)_stream_modulation(?!s)|attn_to_qkv_mlp_proj"
            r"|(?<!single_)transformer_blocks_\d+_ff(_context)?_linear_(in|out)"
            r"|single_transformer_blocks_\d+_attn_to_out(?!_0)|(^|_)sformer_blocks_\d",
    alike="flux",
    shaped=SHAPED,
    precise=r"(img|txt|time|guidance)_in\.|final_layer\.|_stream_modulation(_img|_txt)?\.",
    spelled=_spelled,
)

FLUX2 = ModelFamily(
    name="flux2",
    title="FLUX.2 klein",
    files=(FileKind("flux2", "a FLUX.2 klein checkpoint", _shows),),
    before=("flux", "chroma", "longcat-image"),
    texts=(Text(language.QWEN3, taps=TAPS, tokens=all_tokens(TOKENS, TOKENS), masked=True,
                template=language.CHATML_ANSWER),),
    backbone=BACKBONE,
    join=only_context,
    agreements=partial(contexts_fit, taps=len(TAPS)),
    autoencoder=KL,
    vae=FLUX2_VAE,
    vae_file="flux2-vae.safetensors",
    prediction="flow",
    defaults=always(KLEIN),
    distilled=NAMED,
    published=(FLUX2_KLEIN_4B, FLUX2_KLEIN_9B),
    shift_by_size=flux2_shift,
)

FLUX2_DEV = replace(
    FLUX2,
    name="flux2-dev",
    title="FLUX.2 dev",
    files=(FileKind("flux2-dev", "a FLUX.2 dev checkpoint", _shows_dev),),
    before=("flux2", "flux", "chroma", "longcat-image"),
    texts=(Text(language.MISTRAL, taps=TAPS_DEV, tokens=all_tokens(TOKENS, TOKENS), masked=True,
                filled_first=True, left_out="[IMG]", template=language.MISTRAL_TEMPLATE),),
    defaults=always(DEV),
    distilled={**DISTILLED_FLOW, "turbo": {"steps": 8, "guidance": 1.0}},
    published=(PUBLISHED_DEV,),
)
