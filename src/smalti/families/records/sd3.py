"""Stable Diffusion 3 and 3.5 (Esser et al. 2024, arXiv:2403.03206)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from smalti.families import clip, t5
from smalti.families.autoencoder import KL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_fits, side_by_side
from smalti.families.keys import sd3_diffusers
from smalti.families.names import FileKind
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
    all_tokens,
    always,
)
from smalti.families.spelling import Layers, SpelledLayers, spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import SD3_VAE, ModelConfig
from smalti.models.mmdit import mmdit_graph
from smalti.models.transformer_config import (
    SD3_MEDIUM,
    SD35_LARGE,
    SD35_MEDIUM,
    MMDiTConfig,
)

HEAD_DIM = 64  # of all published models
T5_TOKENS = (77, 256)
"""Of a prompt, at least and at most; without T5 as many zeros as at least."""

JOINT = r"joint_blocks\.(\d{1,4})\.x_block\."


def mmdit_config(where: object, shapes: Shapes, hints: Hints) -> MMDiTConfig:
    """The transformer of Stable Diffusion 3. Raises CheckpointError where a number cannot be seen.
    """
    found = Shown(where, shapes)
    return MMDiTConfig(
        **mmdit_fields(found),
        **embedding_fields(found),
        qk_norm=found.has(JOINT + r"attn\.ln_q\."),
        dual_blocks=found.count(JOINT + r"attn2\."),
        blocks=found.blocks("joint_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
    )


def mmdit_fields(found: Shown) -> dict[str, Any]:
    """What all transformers of Stable Diffusion 3 have in common."""
    hidden = found.size("t_embedder.mlp.2.weight", 0)
    return dict(
        hidden_size=hidden,
        heads=found.parts(hidden, HEAD_DIM),
        pooled_dim=found.size("y_embedder.mlp.0.weight", 1),
    )


def embedding_fields(found: Shown) -> dict[str, Any]:
    """How the latent and the text become tokens."""
    return dict(
        positions=math.isqrt(found.size("pos_embed", 1)),
        in_channels=found.size("x_embedder.proj.weight", 1),
        context_dim=found.size("context_embedder.weight", 1),
    )


def _parts(config: MMDiTConfig) -> dict[str, ModelPart]:
    return {"transformer": transformer_part(partial(mmdit_graph, config))}


def _layout(names: Iterable[str]) -> Layout:
    """Names of diffusers become the original ones."""
    matches = (re.match(r"transformer_blocks\.(\d{1,3})\.", name) for name in names)
    blocks = [int(match[1]) for match in matches if match]
    return sd3_diffusers(1 + max(blocks)) if blocks else str


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of diffusers for Stable Diffusion 3."""
    blocks = {path.split(".")[1] for path in layers.rows if path.startswith("joint_blocks.")}
    return spelled_by(layers, sd3_diffusers(len(blocks)))


def _join(config: ModelConfig, encoded: Mapping[str, Encoded],
          told: Circumstances) -> dict[str, Floats]:
    """Both CLIPs side by side, filled up to the width of T5, and behind them T5's tokens.

    Section 4 of the paper; without T5 its tokens are zeros.
    """
    clips, width = [encoded["clip_l"], encoded["clip_g"]], config.denoiser.context_dim
    context = side_by_side(clips)
    context = np.pad(context, ((0, 0), (0, 0), (0, width - context.shape[2])))
    t5_context = (encoded["t5xxl"].context if "t5xxl" in encoded
                  else np.zeros((len(context), T5_TOKENS[0], width), np.float32))
    return {"context": np.concatenate([context, t5_context], axis=1),
            "pooled": np.concatenate([each.pooled for each in clips], axis=1)}


def _agreements(config: ModelConfig) -> Iterator[Agreement]:
    denoiser: Any = config.denoiser
    texts: Mapping[str, Any] = config.texts
    if "t5xxl" in texts:
        yield context_fits(config, texts["t5xxl"].hidden_size)
    yield ("channels of the pooled prompt", denoiser.pooled_dim, "of the text encoders",
           sum(texts[name].projection for name in ("clip_l", "clip_g")))


SD3 = ModelFamily(
    name="sd3",
    title="Stable Diffusion 3.x",
    files=(FileKind("sd3", "a Stable Diffusion 3 checkpoint",
                    lambda names: names.has("joint_blocks.0.", "pos_embed.pos_embed")),),
    texts=(Text(clip.L, layer=2, pooled=True, projected=True),
           Text(clip.G, layer=2, pooled=True, projected=True),
           Text(t5.XXL, optional=True, tokens=all_tokens(*T5_TOKENS))),
    backbone=Backbone(
        name="sd3",
        models=("Stable Diffusion 3",),
        config=mmdit_config,
        parts=_parts,
        layout=_layout,
        mark="joint_blocks.",
        first="x_embedder.proj",
        adapted=r"joint_blocks_\d",
        precise=r"final_layer\.",
        spelled=_spelled,
    ),
    join=_join,
    agreements=_agreements,
    autoencoder=KL,
    vae_file="sd3_vae.safetensors",
    vae=SD3_VAE,
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=28, guidance=4.5, sampler="euler", noise="simple",
                             flow_shift=3.0, areas=(0.25, 2.0))),
    published=(SD3_MEDIUM, SD35_MEDIUM, SD35_LARGE),
)
