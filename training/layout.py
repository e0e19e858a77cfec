"""Names of tensors: diffusers and transformers on one side, the SD 1 single file on the other."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

UNET, VAE = "model.diffusion_model.", "first_stage_model."
TEXT = "cond_stage_model.transformer.text_model."
TOKEN_TABLE = TEXT + "embeddings.token_embedding.weight"

RESIDUAL = {"norm1": "in_layers.0", "conv1": "in_layers.2", "norm2": "out_layers.0",
            "conv2": "out_layers.3", "time_emb_proj": "emb_layers.1",
            "conv_shortcut": "skip_connection"}
VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v",
                 "to_out.0": "proj_out"}


def renamed(name: str, table: dict[str, str]) -> str:
    """A name with every part of the table replaced."""
    for old, new in table.items():
        name = name.replace(old, new)
    return name


def unet_name(name: str, preset: dict) -> str:
    """The single-file name of a tensor of the UNet."""
    part, size = name.split("."), preset["unet"]
    step = size["lpb"] + 1
    fixed = {"conv_in": "input_blocks.0.0.", "conv_norm_out": "out.0.", "conv_out": "out.2."}
    if part[0] in fixed:
        return UNET + fixed[part[0]] + part[1]
    if part[0] == "time_embedding":
        return f"{UNET}time_embed.{2 * int(part[1][-1]) - 2}.{part[2]}"
    if part[0] == "mid_block":
        if part[1] == "resnets":
            inner = renamed(".".join(part[3:]), RESIDUAL)
            return f"{UNET}middle_block.{2 * int(part[2])}.{inner}"
        return f"{UNET}middle_block.1.{'.'.join(part[3:])}"
    level, block = int(part[1]), int(part[3])
    if part[2] == "downsamplers":
        return f"{UNET}input_blocks.{(level + 1) * step}.0.op.{part[-1]}"
    if part[2] == "upsamplers":
        slot = 2 if list(reversed(size["attn"]))[level] else 1
        return f"{UNET}output_blocks.{level * step + size['lpb']}.{slot}.conv.{part[-1]}"
    inner = ".".join(part[4:])
    inner = "0." + renamed(inner, RESIDUAL) if part[2] == "resnets" else "1." + inner
    if part[0] == "down_blocks":
        return f"{UNET}input_blocks.{1 + level * step + block}.{inner}"
    return f"{UNET}output_blocks.{level * step + block}.{inner}"


def vae_name(name: str, preset: dict) -> str:
    """The single-file name of a tensor of the autoencoder."""
    part, levels = name.split("."), len(preset["vae"]["ch"])
    if part[0] in ("quant_conv", "post_quant_conv") or part[1] in ("conv_in", "conv_out"):
        return VAE + name
    if part[1] == "conv_norm_out":
        return f"{VAE}{part[0]}.norm_out.{part[2]}"
    rest = ".".join(part[4:])
    if part[1] == "mid_block" and part[2] == "resnets":
        inner = f"mid.block_{int(part[3]) + 1}.{rest}"
    elif part[1] == "mid_block":
        inner = f"mid.attn_1.{renamed(rest, VAE_ATTENTION)}"
    else:
        side = "down" if part[0] == "encoder" else "up"
        level = int(part[2]) if side == "down" else levels - 1 - int(part[2])
        inner = (f"{side}.{level}.block.{part[4]}.{'.'.join(part[5:])}" if part[3] == "resnets"
                 else f"{side}.{level}.{side}sample.conv.{part[-1]}")
    return f"{VAE}{part[0]}.{inner.replace('conv_shortcut', 'nin_shortcut')}"


def text_name(name: str, preset: dict) -> str:
    """The single-file name of a tensor of the text encoder."""
    return TEXT + name.removeprefix("text_model.")


NAMES = {"unet": unet_name, "vae": vae_name, "text": text_name}


def to_single_file(model: torch.nn.Module, part: str, preset: dict) -> dict[str, torch.Tensor]:
    """The tensors of a model under their single-file names; attention of the VAE as 1x1 maps."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("position_ids"):
            continue
        target = NAMES[part](name, preset)
        if ".attn_1." in target and tensor.ndim == 2:
            tensor = tensor[:, :, None, None]
        tensors[target] = tensor.detach().cpu()
    return tensors


def from_single_file(model: torch.nn.Module, part: str, preset: dict,
                     tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Fill a model from a single file; the inverse of `to_single_file`."""
    state = {}
    for name, present in model.state_dict().items():
        if name.endswith("position_ids"):
            state[name] = present
            continue
        state[name] = tensors[NAMES[part](name, preset)].float().reshape(present.shape)
    model.load_state_dict(state)
    return model


def read_file(path: Path) -> tuple[dict[str, torch.Tensor], dict]:
    """The tensors of a single file and its `arch_config`. Raises `SystemExit` for one that training
    did not write."""
    if not Path(path).is_file():
        raise SystemExit(f"{path}: no such file")
    try:
        with safe_open(path, "pt") as file:
            described = file.metadata() or {}
    except SafetensorError as error:
        raise SystemExit(f"{path}: no safetensors file ({error})") from None
    if "arch_config" not in described:
        raise SystemExit(f"{path}: no arch_config in its metadata: expected a file of training")
    return load_file(path), json.loads(described["arch_config"])


def preset_of(config: dict) -> dict:
    """The sizes that a file's `arch_config` describes, in the form of a preset."""
    vae, unet, text = config["vae"], config["unet"], config["text"]
    return dict(
        px=config["default"]["width"],
        vae=dict(ch=vae["block_out_channels"], lpb=vae["num_res_blocks"],
                 groups=vae["norm_num_groups"], z=vae["z_channels"]),
        unet=dict(ch=unet["block_out_channels"], lpb=unet["num_res_blocks"],
                  attn=unet["attention"], heads=unet["num_heads"],
                  groups=unet["norm_num_groups"]),
        text=dict(width=text["hidden_size"], layers=text["num_hidden_layers"],
                  heads=text["num_attention_heads"]))


def trained_tokens(table: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The row that all untrained tokens of a file share, and the tokens that have their own."""
    rows, counts = torch.unique(table, dim=0, return_counts=True)
    shared = rows[counts.argmax()]
    return shared, (table != shared).any(1).nonzero().flatten().tolist()
