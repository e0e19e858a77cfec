"""Anima (CircleStone Labs 2025), drawings by the transformer of Cosmos-Predict2."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from smalti.errors import CheckpointError
from smalti.families import language
from smalti.families.autoencoder import CAUSAL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import ANIMA_DIFFUSERS
from smalti.families.keys.anima import BLOCKS, TEXT
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
from smalti.families.spelling import Layers, SpelledLayers, spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.anima import TEXT_TOKENS, anima_graph, anima_text_graph
from smalti.models.config import WAN_VAE
from smalti.models.transformer_config import ANIMA as PUBLISHED
from smalti.models.transformer_config import AnimaConfig

ROUND = 32
"""Texts are filled up to a multiple of so many tokens, which are not seen: fewer programs."""
HEAD_MIN = 24
"""Channels of a head: rows and columns need four each to turn at two speeds."""

TURBO = {"steps": 10, "guidance": 1.0, "flow_shift": 3.0}
"""Between the 8 and 12 that its authors recommend."""


def anima_config(where: object, shapes: Shapes, hints: Hints) -> AnimaConfig:
    """The transformer of Anima. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden = found.size("x_embedder.proj.1.weight", 0)
    head_dim = found.size("blocks.0.self_attn.q_norm.weight", 0)
    if head_dim < HEAD_MIN or head_dim % 2:
        raise CheckpointError(f"{where}: heads of {head_dim} channels; expected 128, or an even "
                              f"number from {HEAD_MIN} on; the file is damaged or of another model")
    text = found.size(f"{TEXT}embed.weight", 1)
    return AnimaConfig(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("blocks.0.mlp.layer1.weight", 0),
        blocks=found.blocks("blocks"),
        in_channels=found.parts(found.size("x_embedder.proj.1.weight", 1), 4) - 1,
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        context_dim=found.size(f"{TEXT}blocks.0.cross_attn.k_proj.weight", 1),
        rank=found.size("blocks.0.adaln_modulation_mlp.1.weight", 0),
        text_dim=text,
        text_heads=found.parts(text, found.size(f"{TEXT}blocks.0.self_attn.q_norm.weight", 0)),
        text_mlp_size=found.size(f"{TEXT}blocks.0.mlp.0.weight", 0),
        text_blocks=found.blocks(f"{TEXT}blocks"),
        vocab_size=found.size(f"{TEXT}embed.weight", 0),
    )


def _parts(config: AnimaConfig) -> dict[str, ModelPart]:
    return {CONDITIONER: ModelPart("what reads texts for the transformer",
                                   partial(anima_text_graph, config), (1, 1, 1),
                                   wide=True),
            "transformer": transformer_part(partial(anima_graph, config))}


def _layout(names: Iterable[str]) -> Layout:
    """The names of diffusers become the original ones, which are inside; its component that reads
    texts has the latter without their beginning."""
    names = set(names)
    if any(name.startswith("transformer_blocks.") for name in names):
        return ANIMA_DIFFUSERS
    original = any(name.startswith("x_embedder.") for name in names)
    return str if original else lambda name: TEXT + name


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of diffusers, and of what reads texts as a component of its own."""
    yield from spelled_by(layers, ANIMA_DIFFUSERS)
    for path in layers.rows:
        if path.startswith(TEXT):
            yield f"text_conditioner.{path.removeprefix(TEXT)}", layers.whole(path)


def _shows(names: Names) -> bool:
    reads = names.has(f"{TEXT}blocks.0.") or "text_conditioner" in names.components
    return reads and names.has(*BLOCKS)


ANIMA = ModelFamily(
    name="anima",
    title="Anima",
    files=(FileKind("anima", "an Anima checkpoint", _shows),),
    texts=(Text(language.QWEN3, file="qwen_3_06b_base.safetensors", final_norm=True,
                tokens=all_tokens(ROUND, 512), round_to=ROUND, only_valid=True),),
    backbone=Backbone(
        name="anima",
        models=("Anima",),
        config=anima_config,
        parts=_parts,
        layout=_layout,
        mark=TEXT,
        first="x_embedder.proj.1",
        adapted=r"(^|_)blocks_\d+_(adaln_modulation_|(self|cross)_attn_(output|[qkv])_proj)"
                r"|(^|_)(llm_adapter|text_conditioner)_",
        precise=r"(x|t)_embedder\.|t_embedding_norm\.|final_layer\.|adaln_modulation_|"
                r"llm_adapter\.(embed|out_proj)\.",
        spelled=_spelled,
    ),
    join=context_and_mask,
    conditioner=Conditioner("t5", most=TEXT_TOKENS, round_to=ROUND),
    agreements=contexts_fit,
    autoencoder=CAUSAL,
    vae=WAN_VAE,
    vae_file="qwen_image_vae.safetensors",
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=30, guidance=4.0, sampler="euler", noise="trailing",
                             flow_shift=3.0)),
    distilled={"turbo": TURBO},
    published=(PUBLISHED,),
)
