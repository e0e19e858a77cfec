"""Qwen-Image and Qwen-Image-2512 (Qwen team 2025, arXiv:2508.02324)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from smalti.families import language
from smalti.families.autoencoder import CAUSAL
from smalti.families.distilled import Recommended
from smalti.families.evidence import Shapes, Shown
from smalti.families.flow_shift import ExponentialShift
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Backbone,
    Defaults,
    ModelFamily,
    ModelPart,
    Text,
    all_tokens,
    always,
)
from smalti.families.transformer import transformer_part
from smalti.models.config import WAN_VAE
from smalti.models.qwen_image import qwen_image_graph, qwen_image_modulation_graph
from smalti.models.transformer_config import QWEN_IMAGE as PUBLISHED
from smalti.models.transformer_config import QwenImageConfig

INDEX_SHARE, PLACE_SHARE = 1 / 8, 7 / 16
"""Of the channels of a head: those that turn with the number of a picture, with the row or column.
"""

SYSTEM = ("<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
          "quantity, text, spatial relationships of the objects and background:<|im_end|>\n")
"""What the text encoder is told before a prompt."""
TEMPLATE = SYSTEM + language.CHATML
TEMPLATE_TOKENS = 34
"""Of it that stand before the prompt, with the line that says whose it is."""
ROUND, PROMPT_TOKENS = 32, 512
"""Tokens of a prompt: filled up to a multiple of so many, and at most so many."""

FEW: Mapping[str, float | str] = {"steps": 4, "guidance": 1.0, "flow_shift": 3.0,
                                  "flow_terminal": 0.0}
"""Of Lightning (ModelTC/lightx2v 2025): the shift is the same for all sizes, and no level is left
at the end."""
NAMED: Recommended = {"lightning": FEW, "turbo": FEW}
"""What names tell."""

CLEAN = "__index_timestep_zero__"
"""A tensor that says of some files of 2511 that pictures are read as at time 0."""

_EDIT = r"(?<![a-z])edit(?![a-z])"
EDITS = {rf"{_EDIT}.*(?<!\d)2511(?!\d)": "qwen-image-edit-2511",
         rf"{_EDIT}.*((?<!\d)2[5-9]\d\d(?!\d)|(?<![a-z])plus(?![a-z]))": "qwen-image-edit-2509",
         _EDIT: "qwen-image-edit"}
"""What names say of models whose tensors are those of Qwen-Image -> the family. Plus is what
diffusers calls the pipeline of 2509 and 2511."""


def qwen_image_config(where: object, shapes: Shapes, hints: Hints, *, references: int = 0,
                      clean: bool = False) -> QwenImageConfig:
    """The transformer of Qwen-Image, or of Edit, which reads so many other pictures, `clean` or not
    unless the file says so. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    return QwenImageConfig(
        **qwen_image_fields(found),
        out_channels=found.parts(found.size("proj_out.weight", 0), 4),
        references=references,
        clean=bool(references) and (found.has(CLEAN) or (
            clean if hints.clean is None else hints.clean)),
    )


def qwen_image_fields(found: Shown) -> dict[str, Any]:
    """What the model and its ControlNets have in common."""
    hidden = found.size("img_in.weight", 0)
    head_dim = found.size("transformer_blocks.0.attn.norm_q.weight", 0)
    return dict(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("transformer_blocks.0.img_mlp.net.0.proj.weight", 0),
        blocks=found.blocks("transformer_blocks"),
        in_channels=found.parts(found.size("img_in.weight", 1), 4),
        context_dim=found.size("txt_in.weight", 1),
        axes=found.axes(head_dim, INDEX_SHARE, PLACE_SHARE),
    )


def _parts(config: QwenImageConfig) -> dict[str, ModelPart]:
    return {
        "modulation": ModelPart("the modulations", partial(qwen_image_modulation_graph, config),
                                (1,)),
        "transformer": transformer_part(partial(qwen_image_graph, config, modulated=True)),
    }


def _shows(names: Names) -> bool:
    return names.has("transformer_blocks.0.img_mod.1.") and names.has("txt_norm.")


QWEN_IMAGE = ModelFamily(
    name="qwen-image",
    title="Qwen-Image",
    files=(FileKind("qwen-image", "a Qwen-Image checkpoint", _shows),),
    texts=(Text(language.QWEN25, final_norm=True, template=TEMPLATE, dropped=TEMPLATE_TOKENS,
                tokens=all_tokens(TEMPLATE_TOKENS + ROUND, TEMPLATE_TOKENS + PROMPT_TOKENS),
                round_to=ROUND, only_valid=True),),
    backbone=Backbone(
        name="qwen-image",
        models=("Qwen-Image",),
        config=qwen_image_config,
        parts=_parts,
        layout=lambda names: str,
        mark="txt_norm.",
        first="img_in",
        adapted=r"transformer_blocks_\d+_(img|txt)_m(od|lp_net)_",
        precise=r"(img|txt)_in\.|txt_norm\.|time_text_embed\.|norm_out\.linear\."
                r"|(^|diffusion_model\.)proj_out\.",
    ),
    join=context_and_mask,
    agreements=contexts_fit,
    autoencoder=CAUSAL,
    vae=WAN_VAE,
    vae_file="qwen_image_vae.safetensors",
    prediction="flow",
    defaults=always(Defaults(size=1328, steps=50, guidance=4.0, sampler="euler", noise="trailing",
                             flow_shift=None, flow_terminal=0.02, areas=(0.25, 2.0))),
    distilled=NAMED,
    published=(PUBLISHED,),
    shift_by_size=ExponentialShift((256, 0.5), (8192, 0.9)),
    named=EDITS,
)
