"""Configurations of T5, of the transformer denoisers and of their ControlNets, from shapes."""

from __future__ import annotations

import math
import re
from typing import Any

from smalti.checkpoint.layout import DENOISER, INSIDE
from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, count, most, sizes
from smalti.families.keys.renaming import CONTROL
from smalti.models.t5 import PREFIX as T5_PREFIX
from smalti.models.transformer_config import (
    T5_XXL,
    ChromaConfig,
    FluxConfig,
    FluxControlNetConfig,
    MMDiTConfig,
    MMDiTControlNetConfig,
    T5Config,
)

MMDIT_HEAD_DIM = 64
_JOINT = r"joint_blocks\.(\d{1,4})\.x_block\."
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
    return MMDiTConfig(
        **_mmdit(found),
        **_embedded(found),
        qk_norm=found.has(_JOINT + r"attn\.ln_q\."),
        dual_blocks=found.count(_JOINT + r"attn2\."),
        blocks=found.blocks("joint_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
    )


def flux_config(where: object, shapes: Shapes) -> FluxConfig:
    """The transformer of Flux.1. Raises CheckpointError where a number cannot be seen."""
    found = _Shown(where, shapes)
    return FluxConfig(
        **_flux(found),
        **_conditions(found),
        single_blocks=found.blocks("single_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
    )


def chroma_config(where: object, shapes: Shapes) -> ChromaConfig:
    """The transformer of Chroma. Raises CheckpointError where a number cannot be seen."""
    found = _Shown(where, shapes)
    return ChromaConfig(
        **_flux(found),
        single_blocks=found.blocks("single_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        approximator_size=found.size("distilled_guidance_layer.in_proj.weight", 0),
        approximator_layers=found.blocks("distilled_guidance_layer.layers"),
        approximator_features=found.size("distilled_guidance_layer.in_proj.weight", 1),
    )


def flux_controlnet_config(where: object, shapes: Shapes) -> FluxControlNetConfig:
    """A ControlNet of Flux.1. Raises CheckpointError where a number cannot be seen."""
    found = _Shown(where, shapes, CONTROL)
    stages = [found.size(f"input_hint_block.{number}.weight", 0) for number in (0, 4, 8, 12)] \
        if found.has(r"input_hint_block\.") else []
    return FluxControlNetConfig(
        **_flux(found),
        **_conditions(found),
        single_blocks=found.blocks("single_blocks") if found.has(r"single_blocks\.") else 0,
        modes=found.size("controlnet_mode_embedder.weight", 0)
        if found.has("controlnet_mode_embedder") else 0,
        hint_channels=tuple(stages),
    )


def sd3_controlnet_config(where: object, shapes: Shapes,
                          canny: bool = False) -> MMDiTControlNetConfig:
    """A ControlNet of Stable Diffusion 3. Raises CheckpointError where a number cannot be seen.

    Without positions of its own it is one for 3.5 large, and reads those of the model; which of
    these is for edges, `canny`, shapes do not tell.
    """
    found = _Shown(where, shapes, CONTROL)
    hint = found.size("pos_embed_input.proj.weight", 1)
    if not found.has("pos_embed$"):
        return MMDiTControlNetConfig(**_mmdit(found), blocks=found.blocks("transformer_blocks"),
                                     hint_channels=hint, joint=False, canny=canny)
    return MMDiTControlNetConfig(
        **_mmdit(found),
        **_embedded(found),
        qk_norm=found.has(_JOINT + r"attn\.ln_q\."),
        dual_blocks=found.count(_JOINT + r"attn2\."),
        blocks=found.blocks("joint_blocks"),
        hint_channels=hint,
    )


def _mmdit(found: _Shown) -> dict[str, Any]:
    """What all transformers of Stable Diffusion 3 have in common."""
    hidden = found.size("t_embedder.mlp.2.weight", 0)
    return dict(
        hidden_size=hidden,
        heads=found.parts(hidden, MMDIT_HEAD_DIM),
        pooled_dim=found.size("y_embedder.mlp.0.weight", 1),
    )


def _embedded(found: _Shown) -> dict[str, Any]:
    """How the latent and the text become tokens."""
    return dict(
        positions=math.isqrt(found.size("pos_embed", 1)),
        in_channels=found.size("x_embedder.proj.weight", 1),
        context_dim=found.size("context_embedder.weight", 1),
    )


def _conditions(found: _Shown) -> dict[str, Any]:
    """What Flux is told besides the text."""
    return dict(pooled_dim=found.size("vector_in.in_layer.weight", 1),
                guidance=found.has(r"guidance_in\."))


def _flux(found: _Shown) -> dict[str, Any]:
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

    def __init__(self, where: object, shapes: Shapes, prefix: str = INSIDE[DENOISER]) -> None:
        self.where = where
        self.shapes = shapes
        self.prefix = prefix

    def has(self, pattern: str) -> bool:
        """Whether a tensor's name starts so."""
        start = re.compile(re.escape(self.prefix) + pattern)
        return any(map(start.match, self.shapes))

    def count(self, pattern: str) -> int:
        """How many different numbers the group of the pattern matches."""
        start = re.compile(re.escape(self.prefix) + pattern)
        return len({match[1] for match in map(start.match, self.shapes) if match})

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
