"""A tiny SD 1.x checkpoint, as a single file and as a diffusers folder, made from the table."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.families.expected import expected_tensors
from smalti.models.config import ClipTextConfig, ModelConfig, UNetConfig, VaeConfig

TINY = ModelConfig(
    "sd1",
    texts={"clip_l": ClipTextConfig(50, 64, 96, layers=2, heads=1, positions=77)},
    denoiser=UNetConfig(
        in_channels=4,
        out_channels=4,
        block_channels=(32, 64),
        res_blocks=1,
        attention=(False, True),
        heads=8,
        head_dim=None,
        transformer_depth=(0, 1),
        context_dim=64,
    ),
    vae=VaeConfig(32, (32, 64), res_blocks=1, z_channels=4),
)


def random_weights(config: ModelConfig, dtype=np.float16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    table = expected_tensors(config)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in table.items()}


# what the tiny model is called in a diffusers folder, written out by hand: prefix -> prefix
FOLDER_NAMES = {
    "unet": {
        "model.diffusion_model.time_embed.0.": "time_embedding.linear_1.",
        "model.diffusion_model.time_embed.2.": "time_embedding.linear_2.",
        "model.diffusion_model.input_blocks.0.0.": "conv_in.",
        "model.diffusion_model.input_blocks.1.0.": "down_blocks.0.resnets.0.",
        "model.diffusion_model.input_blocks.2.0.op.": "down_blocks.0.downsamplers.0.conv.",
        "model.diffusion_model.input_blocks.3.0.": "down_blocks.1.resnets.0.",
        "model.diffusion_model.input_blocks.3.1.": "down_blocks.1.attentions.0.",
        "model.diffusion_model.middle_block.0.": "mid_block.resnets.0.",
        "model.diffusion_model.middle_block.1.": "mid_block.attentions.0.",
        "model.diffusion_model.middle_block.2.": "mid_block.resnets.1.",
        "model.diffusion_model.output_blocks.0.0.": "up_blocks.0.resnets.0.",
        "model.diffusion_model.output_blocks.0.1.": "up_blocks.0.attentions.0.",
        "model.diffusion_model.output_blocks.1.0.": "up_blocks.0.resnets.1.",
        "model.diffusion_model.output_blocks.1.1.": "up_blocks.0.attentions.1.",
        "model.diffusion_model.output_blocks.1.2.conv.": "up_blocks.0.upsamplers.0.conv.",
        "model.diffusion_model.output_blocks.2.0.": "up_blocks.1.resnets.0.",
        "model.diffusion_model.output_blocks.3.0.": "up_blocks.1.resnets.1.",
        "model.diffusion_model.out.0.": "conv_norm_out.",
        "model.diffusion_model.out.2.": "conv_out.",
        "in_layers.0.": "norm1.",
        "in_layers.2.": "conv1.",
        "emb_layers.1.": "time_emb_proj.",
        "out_layers.0.": "norm2.",
        "out_layers.3.": "conv2.",
        "skip_connection.": "conv_shortcut.",
    },
    "vae": {
        "first_stage_model.": "",
        "encoder.down.0.block.0.": "encoder.down_blocks.0.resnets.0.",
        "encoder.down.0.downsample.conv.": "encoder.down_blocks.0.downsamplers.0.conv.",
        "encoder.down.1.block.0.": "encoder.down_blocks.1.resnets.0.",
        "decoder.up.1.block.0.": "decoder.up_blocks.0.resnets.0.",
        "decoder.up.1.block.1.": "decoder.up_blocks.0.resnets.1.",
        "decoder.up.1.upsample.conv.": "decoder.up_blocks.0.upsamplers.0.conv.",
        "decoder.up.0.block.0.": "decoder.up_blocks.1.resnets.0.",
        "decoder.up.0.block.1.": "decoder.up_blocks.1.resnets.1.",
        "mid.block_1.": "mid_block.resnets.0.",
        "mid.block_2.": "mid_block.resnets.1.",
        "nin_shortcut.": "conv_shortcut.",
        "norm_out.": "conv_norm_out.",
        "mid.attn_1.norm.": "mid_block.attentions.0.group_norm.",
        "mid.attn_1.q.": "mid_block.attentions.0.to_q.",
        "mid.attn_1.k.": "mid_block.attentions.0.to_k.",
        "mid.attn_1.v.": "mid_block.attentions.0.to_v.",
        "mid.attn_1.proj_out.": "mid_block.attentions.0.to_out.0.",
    },
    "text_encoder": {"cond_stage_model.transformer.": ""},
}
PREFIXES = {"unet": "model.", "vae": "first_stage_model.", "text_encoder": "cond_stage_model."}
CONFIGS = {
    "unet": {"attention_head_dim": 8, "norm_num_groups": 32, "sample_size": 16},
    "vae": {"norm_num_groups": 32, "scaling_factor": 0.2},
    "text_encoder": {"num_attention_heads": 4, "hidden_act": "quick_gelu"},
}
SCHEDULER = {"prediction_type": "v_prediction", "beta_schedule": "scaled_linear"}


def folder_weights(weights: dict[str, np.ndarray], component: str) -> dict[str, np.ndarray]:
    """The tensors of one component under their diffusers names."""
    renamed = {}
    for name, value in weights.items():
        if not name.startswith(PREFIXES[component]):
            continue
        for inside, outside in FOLDER_NAMES[component].items():
            name = name.replace(inside, outside)
        if component == "vae" and ".attentions." in name and value.ndim == 4:
            value = value[:, :, 0, 0]
        renamed[name] = np.ascontiguousarray(value)
    return renamed


def write_folder(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    """The tiny model as a folder of diffusers."""
    for component, config in CONFIGS.items():
        (folder / component).mkdir(parents=True)
        stem = "model" if component == "text_encoder" else "diffusion_pytorch_model"
        suffix = ".fp16" if component == "unet" else ""
        path = folder / component / f"{stem}{suffix}.safetensors"
        save_file(folder_weights(weights, component), path)
        (folder / component / "config.json").write_text(json.dumps(config))
    for place in ("scheduler", "tokenizer"):
        (folder / place).mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    index = {"_class_name": "StableDiffusionPipeline"}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder
