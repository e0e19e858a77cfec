"""The finished model as one file in SD 1's single-file layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from composed import composed_words
from layout import TEXT, TOKEN_TABLE, VAE, to_single_file
from models import latent_side
from presets import CLIP_TOKENS, CONTEXT, END_TOKEN, LATENT_SCALE, START_TOKEN, TRAIN_STEPS
from run import DECODER_FILE
from safetensors.torch import save_file
from shortlist import read_list, taught_words
from stage_few import FEW_FILE

USUAL, FEW_USE = dict(steps=18, cfg_scale=4.0), dict(steps=6, cfg_scale=1.0)
FEW_SUFFIX = "-lcm-6steps"
"""Of a name: what tells samplers of such models to be taken."""


def fold_whitening(tensors: dict[str, torch.Tensor], mean: torch.Tensor,
                   std: torch.Tensor) -> None:
    """Put the shift and scale of the bank's latents into the convolutions around them.

    What the file's encoder gives is (z - mean) / std / 0.18215, so that 0.18215 times that has
    unit variance, as every sampler for SD 1 expects. For a run that started from a file this
    changes nothing.
    """
    scale = std * LATENT_SCALE
    weight, bias = (tensors[f"{VAE}quant_conv.{part}"].clone() for part in ("weight", "bias"))
    count = len(scale)
    weight[:count] /= scale[:, None, None, None]
    bias[:count] = (bias[:count] - mean) / scale
    bias[count:] -= 2 * scale.log()
    tensors[f"{VAE}quant_conv.weight"], tensors[f"{VAE}quant_conv.bias"] = weight, bias
    weight = tensors[f"{VAE}post_quant_conv.weight"]
    shift = weight[:, :, 0, 0] @ mean
    tensors[f"{VAE}post_quant_conv.bias"] = tensors[f"{VAE}post_quant_conv.bias"] + shift
    tensors[f"{VAE}post_quant_conv.weight"] = weight * scale[None, :, None, None]


def description(run, vocabulary: list[int], state: dict, use: dict) -> dict:
    """What the shapes do not tell: `arch_config` of the file, which is for `use` so."""
    preset, options = run.preset, run.options
    unet, vae, text = preset["unet"], preset["vae"], preset["text"]
    train = dict(preset=options.preset, step=state["step"], seconds=round(state["spent"]),
                 styles=preset["styles"])
    if run.start:
        train["before"] = run.start.config["train"]
    if run.marks:
        train["marks"] = {style: [round(value, 6) for value in mark.tolist()]
                          for style, mark in run.marks.items()}
    return dict(
        format="sd1-single-file", model_type="stable-diffusion-1.x (tiny)",
        prediction_type="v_prediction" if options.pred == "v" else "epsilon",
        scheduler=dict(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012,
                       num_train_timesteps=TRAIN_STEPS, steps_offset=1),
        unet=dict(in_channels=vae["z"], out_channels=vae["z"], model_channels=unet["ch"][0],
                  block_out_channels=list(unet["ch"]), num_res_blocks=unet["lpb"],
                  attention=[bool(attends) for attends in unet["attn"]],
                  num_heads=unet["heads"], transformer_depth=1, context_dim=text["width"],
                  norm_num_groups=unet["groups"], norm_eps=1e-5,
                  use_linear_in_transformer=False),
        vae=dict(ch=vae["ch"][0], block_out_channels=list(vae["ch"]),
                 num_res_blocks=vae["lpb"], z_channels=vae["z"], norm_num_groups=vae["groups"],
                 norm_eps=1e-6, scaling_factor=LATENT_SCALE,
                 downsample=preset["px"] // latent_side(preset)),
        text=dict(vocab_size=CLIP_TOKENS, hidden_size=text["width"],
                  intermediate_size=4 * text["width"], num_hidden_layers=text["layers"],
                  num_attention_heads=text["heads"], max_position_embeddings=CONTEXT,
                  hidden_act="quick_gelu", tokenizer="clip-bpe-49408", eos_token_id=END_TOKEN,
                  bos_token_id=START_TOKEN, pad_token_id=END_TOKEN),
        default=dict(width=preset["px"], height=preset["px"], **use),
        trained_tokens=len(vocabulary), train=train)


def export_all(run) -> None:
    """Write the model, and the one for few steps where there is one."""
    unet, text, bank, state = run.finished()
    new = [style for style in run.marks if run.before or style not in run.given_marks]
    if new and not (run.load(DECODER_FILE) or {}).get("done"):
        raise SystemExit(f"{run.out} has no decoder for the marks of {' and '.join(new)}: train "
                         f"it (--stage decoder --decoder-minutes 25), then --stage export")
    name = f"emoji-{run.preset['px']}"
    export(run, name, unet, text, bank, description(run, bank["vocab"], state, USUAL))
    few = run.load(FEW_FILE)
    if few:
        for parameter, mean in zip(unet.parameters(), few["mean"], strict=True):
            parameter.data.copy_(mean)
        config = description(run, bank["vocab"], state, FEW_USE)
        config["train"]["few_steps"] = few["step"]
        export(run, name + FEW_SUFFIX, unet, text, bank, config)


def export(run, name: str, unet: torch.nn.Module, text: torch.nn.Module, bank: dict,
           config: dict) -> None:
    """Write a file and, beside it, its description and words."""
    tensors = {**to_single_file(unet, "unet", run.preset),
               **to_single_file(run.final_vae(), "vae", run.preset),
               **to_single_file(text, "text", run.preset)}
    compact = tensors[TOKEN_TABLE]
    table = compact[0:1].repeat(CLIP_TOKENS, 1)  # every untrained token is the unknown word
    table[torch.tensor(bank["vocab"])] = compact[1:]
    tensors[TOKEN_TABLE] = table
    fold_whitening(tensors, bank["mean"], bank["std"])
    tensors = {name: tensor.half().contiguous() for name, tensor in tensors.items()}
    tensors[TEXT + "embeddings.position_ids"] = torch.arange(CONTEXT)[None]
    px, kind = run.preset["px"], "v" if run.options.pred == "v" else "epsilon"
    metadata = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": "stable-diffusion-v1",
        "modelspec.implementation": "https://github.com/CompVis/stable-diffusion",
        "modelspec.title": name, "modelspec.resolution": f"{px}x{px}",
        "modelspec.prediction_type": kind, "arch_config": json.dumps(config)}
    path = run.out / f"{name}.safetensors"
    save_file(tensors, path, metadata=metadata)
    path.with_suffix(".json").write_text(json.dumps(config, indent=1) + "\n")
    if run.options.concepts:
        entries = read_list(Path(run.options.concepts))
        words = taught_words(entries, composed_words(entries) if run.preset["scenes"] else ())
        path.with_suffix(".words.txt").write_text(words, encoding="utf-8")
    run.log(event="export", file=str(path), tensors=len(tensors),
            megabytes=round(path.stat().st_size / 1e6, 2))
