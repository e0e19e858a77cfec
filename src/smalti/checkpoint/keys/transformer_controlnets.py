"""Hyperparameters of the ControlNets of transformers, from the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, Shown
from smalti.families.keys.renaming import CONTROL
from smalti.families.records.flux import condition_fields, flux_fields
from smalti.families.records.qwen_image import qwen_image_fields
from smalti.families.records.sd3 import JOINT, embedding_fields, mmdit_fields
from smalti.families.records.z_image import FIRST_SHARE, PLACE_SHARE
from smalti.models.transformer_config import (
    ALONE,
    LAYERS,
    STEERING,
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    QwenImageControlNetConfig,
    ZImageControlNetConfig,
)
from smalti.models.z_image_controlnet import BLOCKS, EMBEDDER, REFINERS


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


def z_image_controlnet_config(where: object, shapes: Shapes, stated: Mapping[str, object],
                              idle: bool = False) -> ZImageControlNetConfig:
    """A ControlNet of Z-Image; `stated` is the config.json of a folder. Where its refiners are
    `idle`, as in files of 2.0, which were trained without them, all blocks refine. Raises
    CheckpointError where a number cannot be seen, or what is stated is of other blocks."""
    found = Shown(where, shapes, CONTROL)
    hidden, first = found.size(f"{EMBEDDER}.weight", 0), f"{BLOCKS}.0."
    head_dim = found.size(f"{first}attention.q_norm.weight", 0)
    blocks = found.blocks(BLOCKS)
    refining = LAYERS if idle or not found.has(REFINERS) else (
        STEERING if found.has(rf"{REFINERS}\.\d+\.after_proj\.") else ALONE)
    refiners = 0 if refining == LAYERS else found.blocks(REFINERS)
    return ZImageControlNetConfig(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size(f"{first}feed_forward.w1.weight", 0),
        vector_size=found.size(f"{first}adaLN_modulation.0.weight", 1),
        axes=found.axes(head_dim, FIRST_SHARE, PLACE_SHARE),
        blocks=blocks,
        refiners=refiners,
        hint_channels=found.parts(found.size(f"{EMBEDDER}.weight", 1), 4),
        refining=refining,
        places=_places(where, stated, "control_layers_places", range(blocks, blocks + 1)),
        refiner_places=() if refining == ALONE else _places(
            where, stated, "control_refiner_layers_places", range((refiners or blocks) + 1)),
    )


def _places(where: object, stated: Mapping[str, object], name: str,
            counts: Sequence[int]) -> tuple[int, ...]:
    """The numbers of blocks that a folder states, as many as may be; none where it does not."""
    given = stated.get(name)
    if not given:
        return ()
    if not isinstance(given, list) or len(given) not in counts \
            or not all(isinstance(each, int) and each >= 0 for each in given):
        raise CheckpointError(f"{where}: config.json states {name} as {given!r:.80}; expected a "
                              f"list of numbers of blocks, {counts[-1]} of them")
    return tuple(given)
