"""FLUX.1 dev, schnell, Fill, Canny, Depth, Kontext and Krea (Black Forest Labs 2024, 2025)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from smalti.families import clip, redux, t5
from smalti.families.autoencoder import KL
from smalti.families.distilled import DISTILLED_FLOW, Recommended
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import guidance_told, t5_fits
from smalti.families.keys import CHROMA_DIFFUSERS, FLUX_DIFFUSERS, Table
from smalti.families.keys.renaming import flux_name
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Agreement,
    Backbone,
    Circumstances,
    Defaults,
    Encoded,
    Floats,
    Layout,
    ModelFamily,
    ModelPart,
    Text,
)
from smalti.families.spelling import Layers, SpelledLayers, spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX_VAE, ModelConfig, Prediction
from smalti.models.flux import flux_graph, flux_modulation_graph
from smalti.models.transformer_config import FLUX_DEV, FLUX_SCHNELL, FluxConfig

INDEX_SHARE, PLACE_SHARE = 1 / 8, 7 / 16
"""Of the channels of a head: those that turn with the index, with the row or column."""

TOKENS_SCHNELL, TOKENS_DEV = 256, 512
"""Of every prompt, which is filled up to so many."""

SCHNELL = Defaults(size=1024, steps=4, guidance=1.0, sampler="euler", noise="trailing",
                   areas=(0.1, 2.0))
"""The areas are those that the authors name: 0.1 to 2 megapixels."""

DEV = replace(SCHNELL, flow_shift=None, steps=20)
"""Of models that are told the strength of guidance; others are distilled to few steps."""

CHANGING = replace(DEV, distilled_guidance=30.0)
"""Of Fill and Canny, which read a picture as channels; Depth takes 10."""

NAMED: Recommended = {
    **DISTILLED_FLOW,
    "turbo": {"steps": 8, "guidance": 1.0},
    "kontext": {"steps": 28, "distilled_guidance": 2.5, "reference": True},
    "krea": {"steps": 28, "distilled_guidance": 4.5},
    "depth dev": {"distilled_guidance": 10.0},
    "depth lora": {"distilled_guidance": 10.0},
}
"""What names tell beside how a model was distilled, each as on the page of the published model;
FLUX.1 Turbo Alpha is of 8 steps."""


def flux_config(where: object, shapes: Shapes, hints: Hints) -> FluxConfig:
    """The transformer of Flux.1. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    return FluxConfig(
        **flux_fields(found),
        **condition_fields(found),
        single_blocks=found.blocks("single_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        reference=bool(hints.reference),
    )


def condition_fields(found: Shown) -> dict[str, Any]:
    """What Flux is told besides the text."""
    return dict(pooled_dim=found.size("vector_in.in_layer.weight", 1),
                guidance=found.has(r"guidance_in\."))


def flux_fields(found: Shown) -> dict[str, Any]:
    """What Flux and Chroma have in common."""
    hidden = found.size("img_in.weight", 0)
    head_dim = found.size("double_blocks.0.img_attn.norm.query_norm.scale", 0)
    return dict(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("double_blocks.0.img_mlp.0.weight", 0),
        double_blocks=found.blocks("double_blocks"),
        in_channels=found.parts(found.size("img_in.weight", 1), 4),
        context_dim=found.size("txt_in.weight", 1),
        axes=found.axes(head_dim, INDEX_SHARE, PLACE_SHARE),
    )


def _parts(config: FluxConfig) -> dict[str, ModelPart]:
    return {
        "modulation": ModelPart("the modulations", partial(flux_modulation_graph, config), (1,)),
        "transformer": transformer_part(partial(flux_graph, config, modulated=True)),
    }


def flux_layout(diffusers: Table, names: Iterable[str]) -> Layout:
    """Names of diffusers become the original ones; some files call scales of norms weights."""
    theirs = ("transformer_blocks.", "single_transformer_blocks.")
    return diffusers if any(name.startswith(theirs) for name in names) else flux_name


_XLABS = {"img_attn.qkv": "qkv_lora1", "img_attn.proj": "proj_lora1",
        "txt_attn.qkv": "qkv_lora2", "txt_attn.proj": "proj_lora2"}


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of diffusers and XLabs for Flux and Chroma."""
    yield from spelled_by(layers, {**CHROMA_DIFFUSERS, **FLUX_DIFFUSERS})
    for path in layers.rows:
        kind, _, rest = path.partition(".")
        number, _, rest = rest.partition(".")
        if kind == "double_blocks" and rest in _XLABS:
            yield f"double_blocks.{number}.{_XLABS[rest]}", layers.whole(path)
        elif kind == "single_blocks" and rest == "linear1":
            width = layers.rows[f"single_blocks.{number}.linear2"]
            yield f"single_blocks.{number}.qkv_lora", layers.split(path, 3 * width)[0]
        elif kind == "single_blocks" and rest == "linear2":
            yield f"single_blocks.{number}.proj_lora", layers.whole(path)


def _join(config: ModelConfig, encoded: Mapping[str, Encoded],
          told: Circumstances) -> dict[str, Floats]:
    """T5's tokens, CLIP's pooled one, and the strength of guidance where the model is told it."""
    pooled = encoded["clip_l"].pooled
    return {"context": encoded["t5xxl"].context, "pooled": pooled,
            **guidance_told(config, told, len(pooled))}


def _agreements(config: ModelConfig) -> Iterator[Agreement]:
    denoiser: Any = config.denoiser
    yield from t5_fits(config)
    yield ("channels of the pooled prompt", denoiser.pooled_dim, "of the text encoder",
           config.texts["clip_l"].hidden_size)
    if "redux" in config.texts:
        pictures: Any = config.texts["redux"]
        yield ("channels that Redux makes of pictures", pictures.out_size, "of T5's tokens",
               config.texts["t5xxl"].hidden_size)


def _shows(names: Names) -> bool:
    return names.has("double_blocks.0.img_attn.") or names.has("single_transformer_blocks.")


def _shows_dev(names: Names) -> bool:
    return _shows(names) and names.has("guidance_in.", "time_text_embed.guidance_embedder.")


def _defaults(denoiser: FluxConfig, prediction: Prediction) -> Defaults:
    if not denoiser.guidance:
        return SCHNELL
    return CHANGING if denoiser.in_channels > FLUX_VAE.z_channels else DEV


def _tokens(denoiser: FluxConfig) -> tuple[int, int]:
    return (TOKENS_DEV, TOKENS_DEV) if denoiser.guidance else (TOKENS_SCHNELL, TOKENS_SCHNELL)


BACKBONE = Backbone(
    name="flux",
    models=("Flux.1", "Chroma", "LongCat-Image"),
    config=flux_config,
    parts=_parts,
    layout=partial(flux_layout, FLUX_DIFFUSERS),
    mark="double_blocks.",
    first="img_in",
    adapted=r"(double_blocks|single_blocks|single_transformer_blocks)_\d",
    precise=r"(img|txt|time|vector|guidance)_in\.|final_layer\.|distilled_guidance_layer\.",
    spelled=_spelled,
)

FLUX = ModelFamily(
    name="flux",
    title="FLUX.1",
    files=(FileKind("flux-dev", "a FLUX.1 dev checkpoint", _shows_dev),
           FileKind("flux-schnell", "a FLUX.1 schnell checkpoint", _shows)),
    texts=(Text(clip.L, final_norm=True, pooled=True, pooled_alone=True),
           Text(t5.XXL, tokens=_tokens),
           Text(redux.REDUX, optional=True)),
    backbone=BACKBONE,
    join=_join,
    agreements=_agreements,
    autoencoder=KL,
    vae=FLUX_VAE,
    prediction="flow",
    defaults=_defaults,
    distilled=NAMED,
    published=(FLUX_DEV, FLUX_SCHNELL),
)
