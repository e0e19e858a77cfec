"""What a model has and Smalti does not compute: layers, and settings of a diffusers folder.

A picture that is made without them is another one, often a wrong one, and nothing shows why. So
such a model is refused by the names of what is not known, and by what they are where that is known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping

from smalti.checkpoint.hints import Tables, language_table
from smalti.checkpoint.layout import DENOISER, VAE, inside
from smalti.checkpoint.tensors import StoredTensor
from smalti.errors import first_of
from smalti.families import text_encoders
from smalti.families.hints import Hints
from smalti.families.keys.renaming import is_ignored
from smalti.models.config import ModelConfig
from smalti.models.language import TURNS_KEPT, TURNS_STRETCHED

LAYERS = (
    (r"class_embedding\.|label_emb\.weight$",
     "a class or a level of noise as an input, as of unCLIP and of upscalers"),
    (r".*motion_modules\.|.*temporal_transformer\.", "motion, of AnimateDiff"),
    (r".*\.(to_[kv]_ip|processor)\.|encoder_hid_proj\.|ip_adapter\.",
     "a picture as an input, of IP-Adapter"),
    (r"position_net\.|.*\.fuser\.", "places of objects as an input, of GLIGEN"),
)
"""What the names of layers begin with, below the prefix of the denoiser, and what they are."""
CODERS = ("encoder.", "decoder.")
"""What an autoencoder computes with; what is beside them in some files belongs to its training."""

NORMALLY: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "unet": {
        "_class_name": ("UNet2DConditionModel",),
        "act_fn": ("silu", "swish"),
        "addition_embed_type": (None, "text_time"),
        "attention_type": ("default",),
        "center_input_sample": (False,),
        "class_embed_type": (None,),
        "class_embeddings_concat": (False,),
        "conv_in_kernel": (3,),
        "conv_out_kernel": (3,),
        "cross_attention_norm": (None,),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "downsample_padding": (1,),
        "dual_cross_attention": (False,),
        "encoder_hid_dim": (None,),
        "encoder_hid_dim_type": (None,),
        "flip_sin_to_cos": (True,),
        "freq_shift": (0,),
        "mid_block_only_cross_attention": (None, False),
        "mid_block_scale_factor": (1,),
        "mid_block_type": ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D", None),
        "num_class_embeds": (None,),
        "only_cross_attention": (False,),
        "resnet_out_scale_factor": (1,),
        "resnet_skip_time_act": (False,),
        "resnet_time_scale_shift": ("default",),
        "time_embedding_act_fn": (None,),
        "time_embedding_type": ("positional",),
        "timestep_post_act": (None,),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    },
    "transformer": {
        "causal_condition": (True,),
        "concat_padding_mask": (True,),
        "extra_pos_embed_type": (None,),
        "img_context_dim_in": (None, 0),
        "rope_scale": (1.0, 4.0),
        "use_crossattn_projection": (False,),
    },
    "text_conditioner": {
        "min_sequence_length": (512,),
        "use_layer_norm": (False,),
        "use_self_attention": (True,),
    },
    "vae": {
        "_class_name": ("AutoencoderKL", "AutoencoderKLFlux2", "AutoencoderKLQwenImage",
                        "AutoencoderKLQwenImage21", "AutoencoderKLWan"),
        "act_fn": ("silu", "swish"),
        "attn_scales": ([],),
        "down_block_types": ("DownEncoderBlock2D",),
        "is_residual": (False,),
        "mid_block_add_attention": (True,),
        "up_block_types": ("UpDecoderBlock2D",),
    },
    "text_encoder": {"rope_parameters": (None,), "rope_scaling": (None,),
                     "use_sliding_window": (False,)},
    "scheduler": {"trained_betas": (None,)},
}
"""Component of a folder -> key of its configuration -> the values that are computed, the first one
being what is meant where the key is absent (diffusers' UNet2DConditionModel, AutoencoderKL). Of a
list, each entry must be one of them."""
OF_CLASS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "AutoencoderKLQwenImage21": {"is_residual": (True,), "patch_size": (None, 1)},
}
"""What is computed of a class, where it is another thing than of others."""
PLAIN = ("default", "mrope")
"""Kinds of `rope_scaling`, and of `rope_parameters`, that scale nothing: Qwen2.5-VL turns by three
positions, which are equal where no picture is read."""
STRETCHING = "yarn"
"""The kind that is computed: of the usual numbers of turns, with scores as they are."""
TRAINED = "original_max_position_embeddings"
"""The tokens from which on it stretches, without which it is not known what turns how often."""
USUAL_TURNS = {"beta_fast": TURNS_KEPT, "beta_slow": TURNS_STRETCHED}
"""What it states of turns."""
SHOWN_MAX = 3
"""Layers of one kind that are named."""


def layers(tensors: Mapping[str, StoredTensor], left: Iterable[str]) -> list[str]:
    """Lines about the layers among the tensors that are `left`, which no graph reads.

    Marks of a single number, which some files carry, are no layers; neither is what lies beside an
    autoencoder's encoder and decoder.
    """
    kinds: dict[str, list[str]] = {}
    texts = {each.inside: each.known for each in text_encoders().values() if each.known}
    for name in left:
        start = next(filter(name.startswith, texts), None)
        if start is not None and not re.fullmatch(texts[start], name.removeprefix(start)):
            kinds.setdefault("", []).append(tensors[name].stored_names[0])
        below = name.removeprefix(inside(DENOISER))
        coder = name.removeprefix(inside(VAE)).startswith(CODERS) and name.startswith(inside(VAE))
        if is_ignored(name):
            continue
        if math.prod(tensors[name].shape) > 1 and (below != name or coder):
            what = next((words for pattern, words in LAYERS if re.match(pattern, below)), "")
            kinds.setdefault(what, []).append(tensors[name].stored_names[0])
    return [first_of(names, SHOWN_MAX) + f": {what}" * bool(what) for what, names in kinds.items()]


def settings(tables: Tables) -> list[str]:
    """Lines about the settings of a folder's components that are not computed.

    >>> settings({"unet": {"act_fn": "silu", "flip_sin_to_cos": False, "out_channels": 4}})
    ['unet/config.json: flip_sin_to_cos is false; expected true']
    """
    lines = []
    for component, keys in NORMALLY.items():
        table = language_table(tables.get(component))
        stated = table if isinstance(table, Mapping) else {}
        own = OF_CLASS.get(str(stated.get("_class_name")), {})
        for key, computed in {**keys, **own}.items():
            value = stated.get(key, computed[0])
            if isinstance(value, Mapping) and _computed(value):
                value = None
            entries = value if isinstance(value, list) else [value]
            if not all(any(_same(each, known) for known in computed) for each in entries):
                file = "scheduler_config" if component == "scheduler" else "config"
                lines.append(f"{component}/{file}.json: {key} is {_text(value)}; expected "
                             f"{' or '.join(map(_text, computed))}")
    return lines


def pictures(hints: Hints, config: ModelConfig) -> list[str]:
    """A line about a model whose name says that it reads pictures, where that is not computed."""
    if not hints.reference or config.denoiser.reference:
        return []
    return ["a picture that is read beside the prompt, as its name says: without it, such a model "
            "makes other pictures than those that it is for"]


def _computed(turns: Mapping[str, object]) -> bool:
    """Whether these turns are computed.

    >>> _computed({"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    ...            "original_max_position_embeddings": 16384})
    True
    >>> _computed({"rope_type": "yarn", "factor": 4.0})  # which makes scores larger
    False
    """
    kind = turns.get("rope_type", turns.get("type", PLAIN[0]))
    scores = turns.get("attention_factor") or (
        1 if turns.get("mscale") and turns["mscale"] == turns.get("mscale_all_dim") else 0)
    return kind in PLAIN or (
        kind == STRETCHING and scores == 1 and bool(turns.get("factor") and turns.get(TRAINED))
        and turns.get("truncate") is not False and all(
            (turns.get(name) or usual) == usual for name, usual in USUAL_TURNS.items()))


def _same(value: object, known: object) -> bool:
    """Whether two values are equal; a truth value is no number."""
    return value == known and isinstance(value, bool) == isinstance(known, bool)


def _text(value: object) -> str:
    """A value as JSON has it."""
    return f"{json.dumps(value):.80}"
