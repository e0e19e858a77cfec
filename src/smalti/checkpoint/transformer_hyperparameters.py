"""Configurations of T5 and of the transformer denoisers, from the shapes of tensors."""

from __future__ import annotations

import math
import re
from typing import Any
from smalti.checkpoint.evidence import Shapes, count, has, most, sizes
from smalti.checkpoint.layout import DENOISER, INSIDE
from smalti.errors import CheckpointError
from smalti.models.t5 import PREFIX as T5_PREFIX
from smalti.models.transformer_config import T5_XXL, ChromaConfig, FluxConfig, MMDiTConfig, T5Config

MMDIT_HEAD_DIM = 64
INDEX_SHARE, PLACE_SHARE = 1 / 8, 7 / 16
"""Of the channels of a head of Flux: those that turn with the index, with the row or column."""


def t5_config(where: object, shapes: Shapes) -> T5Config:
    """The encoder of T5. Raises CheckpointError where a number cannot be seen."""
    block = re.escape(f"{T5_PREFIX}.encoder.block.") + r"(\d{1,4})\.layer\."
    attention = block + r"0\.SelfAttention\."
    heads = most(where, "heads of T5", sizes(
        shapes, attention + r"relative_attention_bias\.weight$", 1))
    inner = most(where, "inner width of T5", sizes(shapes, attention + r"[qkv]\.weight$", 0))
    if not heads or inner % heads:
        raise CheckpointError(f"{where}: T5's {inner} channels cannot be split into {heads} heads")
    return T5Config(
        vocab_size=next(iter(sizes(shapes, re.escape(f"{T5_PREFIX}.shared.weight") + "$", 0)),
                        T5_XXL.vocab_size),
        hidden_size=most(where, "width of T5", sizes(shapes, attention + r"[qkv]\.weight$", 1)),
        mlp_size=most(where, "inner width of T5's MLPs",
                      sizes(shapes, block + r"1\.DenseReluDense\.wi_[01]\.weight$", 0)),
        layers=count(where, "block of T5", shapes, block),
        heads=heads,
        head_dim=inner // heads,
        buckets=most(where, "distances of T5", sizes(
            shapes, attention + r"relative_attention_bias\.weight$", 0)),
    )


def mmdit_config(where: object, shapes: Shapes) -> MMDiTConfig:
    """The transformer of Stable Diffusion 3. Raises CheckpointError where a number cannot be seen.
    """
    found = _Shown(where, shapes)
    hidden, places = found.size("x_embedder.proj.weight", 0), found.size("pos_embed", 1)
    block = re.escape(f"{found.prefix}joint_blocks.") + r"(\d{1,4})\.x_block\."
    dual = re.compile(block + r"attn2\.")
    return MMDiTConfig(
        hidden_size=hidden,
        heads=found.parts(hidden, MMDIT_HEAD_DIM),
        blocks=found.blocks("joint_blocks"),
        positions=math.isqrt(places),
        qk_norm=any(re.match(block + r"attn\.ln_q\.", name) for name in shapes),
        dual_blocks=len({match[1] for match in map(dual.match, shapes) if match}),
        in_channels=found.size("x_embedder.proj.weight", 1),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        context_dim=found.size("context_embedder.weight", 1),
        pooled_dim=found.size("y_embedder.mlp.0.weight", 1),
    )


def flux_config(where: object, shapes: Shapes) -> FluxConfig:
    """The transformer of Flux.1. Raises CheckpointError where a number cannot be seen."""
    found = _Shown(where, shapes)
    return FluxConfig(
        **_flux(found),
        pooled_dim=found.size("vector_in.in_layer.weight", 1),
        guidance=has(shapes, f"{found.prefix}guidance_in."),
    )


def chroma_config(where: object, shapes: Shapes) -> ChromaConfig:
    """The transformer of Chroma. Raises CheckpointError where a number cannot be seen."""
    found = _Shown(where, shapes)
    return ChromaConfig(
        **_flux(found),
        approximator_size=found.size("distilled_guidance_layer.in_proj.weight", 0),
        approximator_layers=found.blocks("distilled_guidance_layer.layers"),
        approximator_features=found.size("distilled_guidance_layer.in_proj.weight", 1),
    )


def _flux(found: _Shown) -> dict[str, Any]:
    """What Flux and Chroma have in common."""
    hidden = found.size("img_in.weight", 0)
    head_dim = found.size("double_blocks.0.img_attn.norm.query_norm.scale", 0)
    return dict(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("double_blocks.0.img_mlp.0.weight", 0),
        double_blocks=found.blocks("double_blocks"),
        single_blocks=found.blocks("single_blocks"),
        in_channels=found.parts(found.size("img_in.weight", 1), 4),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        context_dim=found.size("txt_in.weight", 1),
        axes=_axes(found.where, head_dim),
    )


def _axes(where: object, head_dim: int) -> tuple[int, ...]:
    """The channels of a head of Flux that turn with index, row and column: 16, 56, 56 of 128."""
    found = (int(head_dim * INDEX_SHARE), *2 * (int(head_dim * PLACE_SHARE),))
    if sum(found) != head_dim or any(axis % 2 for axis in found):
        raise CheckpointError(f"{where}: heads of {head_dim} channels cannot be split into even "
                              f"parts of 1/8, 7/16 and 7/16; expected 128, or a multiple of 32")
    return found


class _Shown:
    """Numbers of a denoiser, each from a tensor that it cannot be without."""

    prefix = INSIDE[DENOISER]

    def __init__(self, where: object, shapes: Shapes) -> None:
        self.where = where
        self.shapes = shapes

    def size(self, name: str, axis: int) -> int:
        """Length of an axis of a tensor."""
        return most(self.where, f"{axis + 1}. extent of {name}",
                    sizes(self.shapes, re.escape(self.prefix + name) + "$", axis))

    def blocks(self, name: str) -> int:
        """How many blocks of a name there are."""
        return count(self.where, f"{name.replace('_', ' ')[:-1]}", self.shapes,
                     re.escape(f"{self.prefix}{name}.") + r"(\d{1,4})\.")

    def parts(self, whole: int, part: int) -> int:
        """How often `part` goes into `whole`. Raises CheckpointError where something is left."""
        if not part or whole % part:
            raise CheckpointError(f"{self.where}: {whole} channels cannot be split into parts of "
                                  f"{part}; the file is damaged or of another model")
        return whole // part
