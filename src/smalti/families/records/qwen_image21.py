"""Qwen-Image-2.1 (Qwen team 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import RESIDUAL
from smalti.families.evidence import Shapes, Shown
from smalti.families.flow_shift import ExponentialShift
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import QWEN_IMAGE21 as KEYS
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Backbone,
    Defaults,
    ModelFamily,
    Text,
    all_tokens,
    always,
)
from smalti.families.spelling import Layers, SpelledLayers, own_spelling
from smalti.families.transformer import transformer_part
from smalti.models.config import QWEN_IMAGE21_VAE
from smalti.models.newer_transformer_config import QWEN_IMAGE21 as PUBLISHED
from smalti.models.newer_transformer_config import QwenImage21Config
from smalti.models.qwen_image21 import qwen_image21_graph

TEXT_SHARE, PLACE_SHARE = 1 / 8, 7 / 16
"""Of the channels of a head: those that turn with the place in the text, with the row or column."""

SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
"""What the text encoder is told before a prompt."""
SYSTEM_TOKENS = 14
"""Of it, whose states the denoiser does not see."""
ROUND, PROMPT_TOKENS = 32, 2048
"""Tokens of a prompt: filled up to a multiple of so many, which are not seen, and at most so many;
its authors set no limit."""

GATES = "img_mlp.gate_layer"
"""The layer that gives the gates of an MLP."""

FEW: Mapping[str, float | str] = {"steps": 4, "guidance": 1.0, "flow_terminal": 0.0}
"""Of Lightning (lightx2v 2026): the shift follows the size as ever, and no level is left at the
end."""
TURBO: Mapping[str, float | str] = {
    **FEW, "steps": 8,
    "noise": "1,0.978453,0.95418,0.926626,0.89508,0.845148,0.704534,0.414568,0"}
"""Of Qwen-Image-2.1-Turbo: the levels that it was trained at, whatever the size, which its
`model_index.json` states as `sample_sigmas`."""


def qwen_image21_config(where: object, shapes: Shapes, hints: Hints) -> QwenImage21Config:
    """The transformer of Qwen-Image-2.1. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden = found.size("img_in.weight", 0)
    head_dim = found.size("transformer_blocks.0.attn.norm_q.weight", 0)
    return QwenImage21Config(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("transformer_blocks.0.img_mlp.gate_layer.weight", 0),
        blocks=found.blocks("transformer_blocks"),
        in_channels=found.size("img_in.weight", 1),
        out_channels=found.size("proj_out.weight", 0),
        context_dim=found.size("txt_in.in_layer.weight", 1),
        axes=found.axes(head_dim, TEXT_SHARE, PLACE_SHARE),
    )


def _spelled(layers: Layers) -> SpelledLayers:
    """As they are called here, and as in files that have both layers of an MLP in one."""
    yield from own_spelling(layers)
    for path in layers.rows:
        if path.endswith(f".{GATES}"):
            both = (layers.whole(path.replace(GATES, name)) for name in (GATES, "img_mlp.proj"))
            yield path.replace(GATES, "img_mlp.gate_up"), tuple(
                rows for target in both for rows in target)


def _shows(names: Names) -> bool:
    return names.has("txt_in.text_norm.")


QWEN_IMAGE21 = ModelFamily(
    name="qwen-image21",
    title="Qwen-Image-2.1",
    files=(FileKind("qwen-image21", "a Qwen-Image-2.1 checkpoint", _shows),),
    texts=(Text(language.QWEN3_VL, template=SYSTEM + language.CHATML, dropped=SYSTEM_TOKENS,
                tokens=all_tokens(SYSTEM_TOKENS + ROUND, SYSTEM_TOKENS + PROMPT_TOKENS),
                round_to=ROUND, only_valid=True, ended=True, blank=" ",
                file="qwen3vl_8b_bf16.safetensors"),),
    backbone=Backbone(
        name="qwen-image21",
        models=("Qwen-Image-2.1",),
        config=qwen_image21_config,
        parts=lambda config: {"transformer": transformer_part(partial(qwen_image21_graph, config))},
        layout=lambda names: KEYS,
        mark="txt_in.text_norm.",
        first="img_in",
        adapted=r"transformer_blocks_\d+_img_mlp_(gate_(layer|up)|proj|out)($|_)|txt_in_in_layer",
        spelled=_spelled,
        precise=r"(img|txt)_in\.|time_text_embed\.|(^|diffusion_model\.)(modulation|proj_out)\."
                r"|norm_out\.linear\.",
    ),
    join=context_and_mask,
    agreements=contexts_fit,
    autoencoder=RESIDUAL,
    vae=QWEN_IMAGE21_VAE,
    vae_file="qwen_image_2.1_vae_bf16.safetensors",
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=40, guidance=1.0, sampler="euler", noise="trailing",
                             flow_shift=None, flow_terminal=0.02, areas=(0.25, 4.0))),
    distilled={"lightning": FEW, "turbo": TURBO},
    published=(PUBLISHED,),
    shift_by_size=ExponentialShift((256, 0.5), (8192, 0.9)),
)
