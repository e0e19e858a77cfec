"""Parameter names: from what files call them to the latent-diffusion names used inside.

Diffusers numbers blocks per level (`down_blocks.1.resnets.0`), latent diffusion numbers them in a
row (`input_blocks.4.0`), with one more position per level for the down- or upsampling. The map
needs only the number of residual blocks per level and which levels have attention; both are seen
in the names. Source: the naming of the two public code bases, CompVis/stable-diffusion and
huggingface/diffusers (`scripts/convert_diffusers_to_original_stable_diffusion.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from smalti.families.prefixes import UNET, VAE

CONTROL = "control_model."
_TEXT_OLD = "cond_stage_model.transformer."

# tensors that belong to training, to other views of the same weights, or to constants
IGNORED = re.compile(
    r"model_ema\.|betas$|alphas_cumprod|sqrt_|log_one_minus|posterior_|logvar$|lvlb_weights$"
    r"|scale_factor$|global_step$|optimizer|first_stage_model\.loss\.|embedding_manager\."
    r"|.*\.position_ids$|.*\.logit_scale$|.*\.num_batches_tracked$"
    r"|(model\.)?(diffusion_model\.)?norm_final\.weight$"  # of Z-Image, which does not read it
    r"|.*\._extra_state$|(net\.)?accum_\w+$"  # of Cosmos-Predict2, as is the next
    r"|(net\.|(model\.)?diffusion_model\.)?pos_embedder\.(seq|dim_\w+_range)$"
    r"|(model\.diffusion_model\.|diffusion_model\.)?repa_projectors\."  # of FLUX.3's training
    r"|.*\.time_conv\.(weight|bias)$"  # of films: the one frame of a picture is not read by it
)

_UNET_ENDS = {
    "time_embedding.cond_proj": "time_embed.cond_proj",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_UNET_RESIDUAL = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_VAE_ATTENTION = {
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
    "query": "q",
    "key": "k",
    "value": "v",
    "proj_attn": "proj_out",
}
_BLOCK = re.compile(
    r"(down|up)_blocks\.(\d{1,4})\.(resnets|attentions|downsamplers|upsamplers)\.(\d{1,4})\.(.+)"
)
_MIDDLE = re.compile(r"mid_block\.(resnets|attentions)\.(\d{1,4})\.(.+)")

_HINT = re.compile(r"controlnet_cond_embedding\.blocks\.(\d{1,4})(?=\.)")

Rename = Callable[[str], str]


def is_ignored(name: str) -> bool:
    """Whether a tensor of this name is known to be of no use for making pictures.

    >>> is_ignored("model_ema.decay"), is_ignored("first_stage_model.quant_conv.bias")
    (True, False)
    """
    return IGNORED.match(name) is not None


def clip_name(name: str) -> str:
    """Name of a tensor of CLIP's text encoder below the prefix of the encoder.

    Some old files, and files written by newer libraries, lack `text_model.`; it is put in.

    >>> clip_name("final_layer_norm.bias"), clip_name("text_projection.weight")
    ('text_model.final_layer_norm.bias', 'text_projection.weight')
    """
    bare = name.startswith(("embeddings.", "encoder.", "final_layer_norm."))
    return f"text_model.{name}" if bare else name


def text_encoder_name(name: str) -> str:
    """Internal name of a tensor of a folder's `text_encoder/` (with or without `text_model.`).

    >>> text_encoder_name("text_model.final_layer_norm.bias")
    'cond_stage_model.transformer.text_model.final_layer_norm.bias'
    """
    return _TEXT_OLD + clip_name(name)


def t5_name(name: str) -> str:
    """Name of a tensor of T5 in a file without `shared.weight`, which is stored a second time.

    >>> t5_name("encoder.embed_tokens.weight")
    'shared.weight'
    """
    return name.replace("encoder.embed_tokens.", "shared.")


def flux_name(name: str) -> str:
    """Name of a tensor of a transformer: some files call the scales of its norms weights.

    >>> flux_name("double_blocks.0.img_attn.norm.key_norm.weight")
    'double_blocks.0.img_attn.norm.key_norm.scale'
    """
    return re.sub(r"\.(query_norm|key_norm)\.weight$", r".\1.scale", name)


def unet_renaming(names: Iterable[str]) -> Rename:
    """Function from diffusers names of a UNet, all of which are `names`, to internal names.

    >>> names = [f"down_blocks.{b}.resnets.{r}.conv1.bias" for b in range(3) for r in range(2)]
    >>> unet_renaming(names)("down_blocks.1.resnets.1.conv1.bias")
    'model.diffusion_model.input_blocks.5.0.in_layers.2.bias'
    """
    matches = [match for match in map(_BLOCK.match, names) if match]
    down_blocks = [int(m[4]) for m in matches if m[1] == "down" and m[3] == "resnets"]
    res_blocks = 1 + max(down_blocks, default=0)
    attends = {int(m[2]) for m in matches if m[1] == "up" and m[3] == "attentions"}

    def rename(name: str) -> str:
        match = _BLOCK.match(name)
        if not match:
            return UNET + _unet_end(name)
        side, block, kind, item, rest = match.groups()
        level, place = int(block), int(item)
        if side == "down":
            first, prefix = 1 + level * (res_blocks + 1), "input_blocks"
        else:
            first, prefix = level * (res_blocks + 1), "output_blocks"
        if kind == "resnets":
            return f"{UNET}{prefix}.{first + place}.0.{_swap(rest, _UNET_RESIDUAL)}"
        if kind == "attentions":
            return f"{UNET}{prefix}.{first + place}.1.{rest}"
        if kind == "downsamplers":
            return f"{UNET}{prefix}.{first + res_blocks}.0.{rest.replace('conv.', 'op.')}"
        after = 2 if level in attends else 1
        return f"{UNET}{prefix}.{first + res_blocks}.{after}.{rest}"

    return rename


def controlnet_renaming(names: Iterable[str]) -> Rename:
    """Function from diffusers names of a ControlNet, all of which are `names`, to internal ones.

    >>> rename = controlnet_renaming(
    ...     [f"controlnet_cond_embedding.blocks.{i}.bias" for i in range(6)])
    >>> rename("controlnet_cond_embedding.conv_out.bias"), rename("mid_block.resnets.1.norm1.bias")
    ('control_model.input_hint_block.14.bias', 'control_model.middle_block.2.in_layers.0.bias')
    """
    names = list(names)
    as_unet = unet_renaming(names)
    ends = {match[0]: f"input_hint_block.{2 + 2 * int(match[1])}"
            for match in map(_HINT.match, names) if match}
    ends["controlnet_cond_embedding.conv_out"] = f"input_hint_block.{2 + 2 * len(ends)}"
    ends["controlnet_cond_embedding.conv_in"] = "input_hint_block.0"
    ends["controlnet_mid_block"] = "middle_block_out.0"

    def rename(name: str) -> str:
        path, _, leaf = name.rpartition(".")
        if path in ends:
            return f"{CONTROL}{ends[path]}.{leaf}"
        if path.startswith("controlnet_down_blocks."):
            return f"{CONTROL}zero_convs.{path.removeprefix('controlnet_down_blocks.')}.0.{leaf}"
        return CONTROL + as_unet(name).removeprefix(UNET)

    return rename


def vae_renaming(names: Iterable[str]) -> Rename:
    """Function from diffusers names of an autoencoder, all of which are `names`, to internal ones.

    >>> vae_renaming(["decoder.up_blocks.3.resnets.0.norm1.bias"])(
    ...     "decoder.up_blocks.0.resnets.2.conv_shortcut.bias")
    'first_stage_model.decoder.up.3.block.2.nin_shortcut.bias'
    """
    found = [re.match(r"(?:encoder\.down|decoder\.up)_blocks\.(\d{1,4})\.", name) for name in names]
    last = max((int(match[1]) for match in found if match), default=0)

    def rename(name: str) -> str:
        part, _, rest = name.partition(".")
        if part not in ("encoder", "decoder"):
            return VAE + name
        if rest.startswith(("quant_conv.", "post_quant_conv.")):  # of FLUX.2's authors
            return VAE + rest
        prefix = f"{VAE}{part}."
        if match := _BLOCK.match(rest):
            side, block, kind, item, tail = match.groups()
            level = int(block) if side == "down" else last - int(block)
            if kind == "resnets":
                tail = _swap(tail, {"conv_shortcut": "nin_shortcut"})
                return f"{prefix}{side}.{level}.block.{item}.{tail}"
            sample = "downsample" if side == "down" else "upsample"
            return f"{prefix}{side}.{level}.{sample}.{tail}"
        if match := _MIDDLE.match(rest):
            kind, item, tail = match.groups()
            if kind == "attentions":
                return f"{prefix}mid.attn_1.{_swap(tail, _VAE_ATTENTION)}"
            return f"{prefix}mid.block_{int(item) + 1}.{tail}"
        return prefix + _swap(rest, {"conv_norm_out": "norm_out"})

    return rename


def internal_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a tensor under its internal name.

    The autoencoder's attention is stored as a linear layer by some and as a 1x1 convolution by
    others; inside it is the convolution. Factors of norms are stored with axes of time and place.

    >>> internal_shape("first_stage_model.decoder.mid.attn_1.q.weight", (8, 8))
    (8, 8, 1, 1)
    >>> internal_shape("first_stage_model.decoder.norm_out.gamma", (96, 1, 1, 1))
    (96,)
    """
    if name.startswith(VAE) and name.endswith(".gamma") and set(shape[1:]) == {1}:
        return shape[:1]
    if name.startswith(UNET) and name.endswith(".mod.lin"):  # of Krea 2: vectors, or one of all
        return (math.prod(shape),)
    if len(shape) == 2 and name.startswith(VAE) and ".mid.attn_1." in name:
        return (*shape, 1, 1)
    return shape


def _unet_end(name: str) -> str:
    """UNet names outside the numbered blocks."""
    if match := _MIDDLE.match(name):
        if match[1] == "resnets":
            return f"middle_block.{2 * int(match[2])}.{_swap(match[3], _UNET_RESIDUAL)}"
        return f"middle_block.1.{match[3]}"
    return _swap(name, _UNET_ENDS)


def _swap(name: str, table: dict[str, str]) -> str:
    """`name` with the module path before its last part replaced by `table`."""
    path, _, leaf = name.rpartition(".")
    return f"{table.get(path, path)}.{leaf}" if path else name
