"""Hyperparameters of the ControlNets of transformers, from the shapes of their tensors."""

from __future__ import annotations

from smalti.families.evidence import Shapes, Shown
from smalti.families.keys.renaming import CONTROL
from smalti.families.records.flux import condition_fields, flux_fields
from smalti.families.records.qwen_image import qwen_image_fields
from smalti.families.records.sd3 import JOINT, embedding_fields, mmdit_fields
from smalti.models.transformer_config import (
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    QwenImageControlNetConfig,
)


def flux_controlnet_config(where: object, shapes: Shapes) -> FluxControlNetConfig:
    """A ControlNet of Flux.1. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes, CONTROL)
    stages = [found.size(f"input_hint_block.{number}.weight", 0) for number in (0, 4, 8, 12)] \
        if found.has(r"input_hint_block\.") else []
    return FluxControlNetConfig(
        **flux_fields(found),
        **condition_fields(found),
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
    found = Shown(where, shapes, CONTROL)
    hint = found.size("pos_embed_input.proj.weight", 1)
    if not found.has("pos_embed$"):
        return MMDiTControlNetConfig(
            **mmdit_fields(found), blocks=found.blocks("transformer_blocks"), hint_channels=hint,
            joint=False, canny=canny)
    return MMDiTControlNetConfig(
        **mmdit_fields(found),
        **embedding_fields(found),
        qk_norm=found.has(JOINT + r"attn\.ln_q\."),
        dual_blocks=found.count(JOINT + r"attn2\."),
        blocks=found.blocks("joint_blocks"),
        hint_channels=hint,
    )


def qwen_image_controlnet_config(where: object, shapes: Shapes) -> QwenImageControlNetConfig:
    """A ControlNet of Qwen-Image. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes, CONTROL)
    return QwenImageControlNetConfig(
        **qwen_image_fields(found),
        hint_channels=found.parts(found.size("controlnet_x_embedder.weight", 1), 4))
