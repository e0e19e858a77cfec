"""Every trainer's spelling of a layer leads to the rows that it means."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoint.adapters.samples import Weights, merged, off, opened, random_arrays
from checkpoint.samples import FOLDER_NAMES, TINY

from smalti.checkpoint.adapters import Adapted, WeightedAdapter
from smalti.checkpoint.adapters.spelling import Spellings
from smalti.families.expected import expected_tensors
from smalti.families.prefixes import TEXT, UNET
from smalti.families.spelling import Rows

CLIP_H = "text_encoders.clip_h.transformer.text_model."
CLIP_G = "text_encoders.clip_g.transformer.text_model."
T5 = "text_encoders.t5xxl.transformer."
QWEN3 = "text_encoders.qwen3.transformer."
ATTENTION = "1.transformer_blocks.0.attn2.to_k"
W = 16


def clip_layer(prefix: str, number: int) -> dict[str, tuple[int, ...]]:
    name = f"{prefix}encoder.layers.{number}."
    return {f"{name}{path}.weight": shape for path, shape in {
        "self_attn.q_proj": (W, W), "self_attn.k_proj": (W, W), "self_attn.v_proj": (W, W),
        "self_attn.out_proj": (W, W), "mlp.fc1": (2 * W, W), "mlp.fc2": (W, 2 * W)}.items()}


def named(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}{path}.weight": shape for path, shape in shapes.items()}


SD2 = {**expected_tensors(TINY), **clip_layer(CLIP_H, 3)}
SD2 = {name: shape for name, shape in SD2.items() if not name.startswith(TEXT)}
SDXL = {
    **named(UNET, {"input_blocks.0.0": (W, 4, 3, 3), "input_blocks.3.0.op": (W, W, 3, 3),
                   "input_blocks.4.1.transformer_blocks.1.attn2.to_k": (W, 48),
                   "input_blocks.4.0.emb_layers.1": (W, W), "label_emb.0.2": (W, W),
                   "middle_block.1.transformer_blocks.9.ff.net.0.proj": (8 * W, W),
                   "middle_block.2.out_layers.3": (W, W, 3, 3),
                   "output_blocks.5.2.conv": (W, W, 3, 3), "output_blocks.2.1.proj_in": (W, W)}),
    **clip_layer(TEXT, 2), **clip_layer(CLIP_G, 1),
    **named("text_encoders.clip_g.transformer.", {"text_projection": (W, W)})}
FLUX = {
    **named(UNET, {"img_in": (W, 64), "time_in.out_layer": (W, W), "vector_in.in_layer": (W, 8),
                   "guidance_in.in_layer": (W, 8), "final_layer.linear": (64, W),
                   "final_layer.adaLN_modulation.1": (2 * W, W)}),
    **named(UNET + "double_blocks.0.", {
        "img_mod.lin": (6 * W, W), "txt_mod.lin": (6 * W, W), "img_attn.qkv": (3 * W, W),
        "txt_attn.qkv": (3 * W, W), "img_attn.proj": (W, W), "txt_attn.proj": (W, W),
        "img_mlp.0": (4 * W, W), "txt_mlp.2": (W, 4 * W)}),
    UNET + "double_blocks.0.img_attn.norm.key_norm.scale": (8,),
    **named(UNET + "single_blocks.7.", {"linear1": (7 * W, W), "linear2": (W, 5 * W),
                                        "modulation.lin": (3 * W, W)}),
    **clip_layer(TEXT, 0),
    **named(T5 + "encoder.block.1.layer.", {"0.SelfAttention.q": (W, W),
                                            "1.DenseReluDense.wi_0": (W, W)})}
SD3 = {
    **named(UNET, {"x_embedder.proj": (W, 16, 2, 2), "t_embedder.mlp.2": (W, W),
                   "final_layer.adaLN_modulation.1": (2 * W, W)}),
    **named(UNET + "joint_blocks.0.", {
        "x_block.attn.qkv": (3 * W, W), "context_block.attn.qkv": (3 * W, W),
        "x_block.attn2.qkv": (3 * W, W), "x_block.attn.proj": (W, W), "x_block.mlp.fc1": (W, W),
        "context_block.attn.proj": (W, W), "context_block.mlp.fc2": (W, W),
        "x_block.adaLN_modulation.1": (9 * W, W), "context_block.adaLN_modulation.1": (6 * W, W)}),
    **named(UNET + "joint_blocks.1.", {
        "x_block.attn.qkv": (3 * W, W), "context_block.attn.qkv": (3 * W, W),
        "context_block.adaLN_modulation.1": (2 * W, W)}),
    **clip_layer(TEXT, 0), **clip_layer(CLIP_G, 0),
    **named(T5 + "encoder.block.1.layer.", {"0.SelfAttention.q": (W, W)})}

Part = tuple[str, int, int]
KEY = "input_blocks.4.1.transformer_blocks.1.attn2.to_k"
Z_IMAGE = {
    UNET + "cap_pad_token": (1, W),
    **named(UNET, {
        "layers.7.attention.qkv": (3 * W, W), "layers.7.attention.out": (W, W),
        "context_refiner.0.feed_forward.w2": (W, 3 * W), "x_embedder": (W, 64),
        "noise_refiner.0.adaLN_modulation.0": (4 * W, W), "cap_embedder.1": (W, 8),
        "final_layer.linear": (64, W)}),
}
ANIMA = {
    **named(UNET, {"t_embedder.1.linear_1": (W, W), "final_layer.linear": (64, W)}),
    **named(UNET + "blocks.7.", {
        "self_attn.q_proj": (W, W), "cross_attn.output_proj": (W, W), "mlp.layer1": (4 * W, W),
        "adaln_modulation_mlp.2": (3 * W, 8)}),
    **named(UNET + "llm_adapter.blocks.0.", {"cross_attn.k_proj": (W, W)}),
    **named(QWEN3 + "layers.3.", {"self_attn.q_proj": (2 * W, W)})}
QWEN_IMAGE = {
    UNET + "txt_norm.weight": (8,),
    **named(UNET, {
        "transformer_blocks.7.attn.to_q": (W, W), "transformer_blocks.7.attn.add_k_proj": (W, W),
        "transformer_blocks.7.img_mod.1": (6 * W, W), "proj_out": (64, W),
        "transformer_blocks.7.txt_mlp.net.0.proj": (4 * W, W)}),
}
ERNIE_IMAGE = {
    **named(UNET, {"adaLN_modulation.1": (6 * W, W), "final_linear": (64, W)}),
    **named(UNET + "layers.7.", {
        "adaLN_sa_ln": (W, W), "self_attention.to_q": (W, W), "self_attention.to_out.0": (W, W),
        "mlp.gate_proj": (3 * W, W), "mlp.linear_fc2": (W, 3 * W)}),
}
FLUX2 = {
    UNET + "single_stream_modulation.lin.weight": (3 * W, W),
    **named(UNET, {"img_in": (W, 128), "time_in.out_layer": (W, W), "final_layer.linear": (128, W),
                   "final_layer.adaLN_modulation.1": (2 * W, W)}),
    **named(UNET + "double_blocks.0.", {
        "img_attn.qkv": (3 * W, W), "txt_attn.qkv": (3 * W, W), "img_attn.proj": (W, W),
        "txt_attn.proj": (W, W), "img_mlp.0": (6 * W, W), "txt_mlp.2": (W, 3 * W)}),
    **named(UNET + "single_blocks.7.", {"linear1": (9 * W, W), "linear2": (W, 4 * W)})}
FLUX3 = {
    UNET + "early_stream_modulations.image.lin.weight": (3 * W, W),
    **named(UNET, {"emb_in.image": (W, 128), "ref_time_in.out_layer": (W, W),
                   "final_layer.image.linear": (128, W),
                   "final_layer.image.adaLN_modulation.1": (2 * W, W)}),
    **named(UNET + "content_mode_blocks.image_cond.0.", {"q_proj": (W, W), "mlp_in": (6 * W, W)}),
    **named(UNET + "txt_mode_blocks.3.", {"v_proj": (W, W)}),
    **named(UNET + "single_blocks.7.", {"attn_out": (W, W), "mlp_out": (W, 3 * W)})}
KREA2 = {
    **named(UNET, {"first": (W, 64), "tproj.1": (6 * W, W), "last.linear": (64, W),
                   "txtfusion.projector": (1, 12)}),
    **named(UNET + "blocks.7.", {
        "attn.wq": (W, W), "attn.gate": (W, W), "attn.wo": (W, W), "mlp.gate": (4 * W, W)}),
    **named(UNET + "txtfusion.refiner_blocks.1.", {"attn.wk": (W, W)}),
}
SPELLED: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, list[Part]]]] = {
    "sd2": (SD2, {
        "lora_te_text_model_encoder_layers_3_mlp_fc1": [
            (f"{CLIP_H}encoder.layers.3.mlp.fc1", 0, 2 * W)],
        "text_encoder.text_model.encoder.layers.3.self_attn.to_out": [
            (f"{CLIP_H}encoder.layers.3.self_attn.out_proj", 0, W)],
        "lora_te_transformer_resblocks_3_attn_in_proj": [
            (f"{CLIP_H}encoder.layers.3.self_attn.{p}_proj", 0, W) for p in "qkv"],
    }),
    "sdxl": (SDXL, {
        **{prefix + KEY.replace(".", "_"): [(UNET + KEY, 0, W)]
           for prefix in ("lora_unet_", "lycoris_")},
        **{prefix + "down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k": [
            (UNET + KEY, 0, W)] for prefix in ("unet.", "", "base_model.model.unet.",
                                              "base_model.model.")},
        "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.processor.to_k": [
            (UNET + KEY, 0, W)],
        f"diffusion_model.{KEY}": [(UNET + KEY, 0, W)],
        f"model.diffusion_model.{KEY}": [(UNET + KEY, 0, W)],
        "lora_unet_down_blocks_0_downsamplers_0_conv": [(UNET + "input_blocks.3.0.op", 0, W)],
        "lora_unet_input_blocks_3_0_op": [(UNET + "input_blocks.3.0.op", 0, W)],
        "lora_unet_down_blocks_1_resnets_0_time_emb_proj": [
            (UNET + "input_blocks.4.0.emb_layers.1", 0, W)],
        "lora_unet_add_embedding_linear_2": [(UNET + "label_emb.0.2", 0, W)],
        "lora_unet_conv_in": [(UNET + "input_blocks.0.0", 0, W)],
        "lora_unet_mid_block_attentions_0_transformer_blocks_9_ff_net_0_proj": [
            (UNET + "middle_block.1.transformer_blocks.9.ff.net.0.proj", 0, 8 * W)],
        "lora_unet_mid_block_resnets_1_conv2": [(UNET + "middle_block.2.out_layers.3", 0, W)],
        "lora_unet_up_blocks_1_upsamplers_0_conv": [(UNET + "output_blocks.5.2.conv", 0, W)],
        "lora_unet_up_blocks_0_attentions_2_proj_in": [(UNET + "output_blocks.2.1.proj_in", 0, W)],
        "lora_te1_text_model_encoder_layers_2_self_attn_q_proj": [
            (f"{TEXT}encoder.layers.2.self_attn.q_proj", 0, W)],
        "lora_te2_text_model_encoder_layers_1_self_attn_q_proj": [
            (f"{CLIP_G}encoder.layers.1.self_attn.q_proj", 0, W)],
        "text_encoder_2.text_model.encoder.layers.1.mlp.fc2": [
            (f"{CLIP_G}encoder.layers.1.mlp.fc2", 0, W)],
        "text_encoders.clip_g.transformer.text_model.encoder.layers.1.mlp.fc2": [
            (f"{CLIP_G}encoder.layers.1.mlp.fc2", 0, W)],
        "lora_te2_text_projection": [("text_encoders.clip_g.transformer.text_projection", 0, W)],
        "lora_te2_text_model_encoder_layers_2_mlp_fc2": [],
    }),
    "flux": (FLUX, {
        "lora_unet_double_blocks_0_img_attn_qkv": [
            (UNET + "double_blocks.0.img_attn.qkv", 0, 3 * W)],
        "lora_unet_single_blocks_7_linear1": [(UNET + "single_blocks.7.linear1", 0, 7 * W)],
        "diffusion_model.double_blocks.0.img_mlp.0": [
            (UNET + "double_blocks.0.img_mlp.0", 0, 4 * W)],
        "double_blocks.0.txt_attn.proj": [(UNET + "double_blocks.0.txt_attn.proj", 0, W)],
        "transformer.transformer_blocks.0.attn.to_k": [
            (UNET + "double_blocks.0.img_attn.qkv", W, W)],
        "lora_transformer_transformer_blocks_0_attn_add_v_proj": [
            (UNET + "double_blocks.0.txt_attn.qkv", 2 * W, W)],
        "lycoris_transformer_blocks_0_attn_to_q": [(UNET + "double_blocks.0.img_attn.qkv", 0, W)],
        "transformer.transformer_blocks.0.attn.to_out.0": [
            (UNET + "double_blocks.0.img_attn.proj", 0, W)],
        "transformer.transformer_blocks.0.ff_context.net.2": [
            (UNET + "double_blocks.0.txt_mlp.2", 0, W)],
        "transformer.transformer_blocks.0.norm1_context.linear": [
            (UNET + "double_blocks.0.txt_mod.lin", 0, 6 * W)],
        "transformer.single_transformer_blocks.7.attn.to_v": [
            (UNET + "single_blocks.7.linear1", 2 * W, W)],
        "transformer.single_transformer_blocks.7.proj_mlp": [
            (UNET + "single_blocks.7.linear1", 3 * W, 4 * W)],
        "transformer.single_transformer_blocks.7.proj_out": [
            (UNET + "single_blocks.7.linear2", 0, W)],
        "transformer.single_transformer_blocks.7.norm.linear": [
            (UNET + "single_blocks.7.modulation.lin", 0, 3 * W)],
        "transformer.norm_out.linear": [(UNET + "final_layer.adaLN_modulation.1", W, W),
                                        (UNET + "final_layer.adaLN_modulation.1", 0, W)],
        "transformer.proj_out": [(UNET + "final_layer.linear", 0, 64)],
        "transformer.x_embedder": [(UNET + "img_in", 0, W)],
        "transformer.time_text_embed.timestep_embedder.linear_2": [
            (UNET + "time_in.out_layer", 0, W)],
        "transformer.time_text_embed.guidance_embedder.linear_1": [
            (UNET + "guidance_in.in_layer", 0, W)],
        "double_blocks.0.qkv_lora1": [(UNET + "double_blocks.0.img_attn.qkv", 0, 3 * W)],
        "double_blocks.0.proj_lora2": [(UNET + "double_blocks.0.txt_attn.proj", 0, W)],
        "single_blocks.7.qkv_lora": [(UNET + "single_blocks.7.linear1", 0, 3 * W)],
        "double_blocks.0.img_attn.norm.key_norm": [
            (UNET + "double_blocks.0.img_attn.norm.key_norm", 0, 8)],
        "lora_te1_text_model_encoder_layers_0_mlp_fc2": [(f"{TEXT}encoder.layers.0.mlp.fc2", 0, W)],
        **{name: [(T5 + "encoder.block.1.layer.0.SelfAttention.q", 0, W)] for name in (
            "lora_te3_encoder_block_1_layer_0_SelfAttention_q",
            "lora_te2_encoder_block_1_layer_0_SelfAttention_q",
            "text_encoder_2.encoder.block.1.layer.0.SelfAttention.q",
            "text_encoders.t5xxl.transformer.encoder.block.1.layer.0.SelfAttention.q")},
    }),
    "sd3": (SD3, {
        "lora_unet_joint_blocks_0_x_block_attn_qkv": [
            (UNET + "joint_blocks.0.x_block.attn.qkv", 0, 3 * W)],
        "transformer.transformer_blocks.0.attn.to_q": [
            (UNET + "joint_blocks.0.x_block.attn.qkv", 0, W)],
        "transformer.transformer_blocks.0.attn2.to_v": [
            (UNET + "joint_blocks.0.x_block.attn2.qkv", 2 * W, W)],
        "transformer.transformer_blocks.1.attn.add_k_proj": [
            (UNET + "joint_blocks.1.context_block.attn.qkv", W, W)],
        "transformer.transformer_blocks.0.attn.to_add_out": [
            (UNET + "joint_blocks.0.context_block.attn.proj", 0, W)],
        "transformer.transformer_blocks.0.ff.net.0.proj": [
            (UNET + "joint_blocks.0.x_block.mlp.fc1", 0, W)],
        "transformer.transformer_blocks.0.norm1.linear": [
            (UNET + "joint_blocks.0.x_block.adaLN_modulation.1", 0, 9 * W)],
        "transformer.transformer_blocks.0.norm1_context.linear": [
            (UNET + "joint_blocks.0.context_block.adaLN_modulation.1", 0, 6 * W)],
        "transformer.transformer_blocks.1.norm1_context.linear": [
            (UNET + "joint_blocks.1.context_block.adaLN_modulation.1", W, W),
            (UNET + "joint_blocks.1.context_block.adaLN_modulation.1", 0, W)],
        "transformer.pos_embed.proj": [(UNET + "x_embedder.proj", 0, W)],
        "transformer.time_text_embed.timestep_embedder.linear_2": [
            (UNET + "t_embedder.mlp.2", 0, W)],
        "lora_te2_text_model_encoder_layers_0_mlp_fc1": [
            (f"{CLIP_G}encoder.layers.0.mlp.fc1", 0, 2 * W)],
        "text_encoder_3.encoder.block.1.layer.0.SelfAttention.q": [
            (T5 + "encoder.block.1.layer.0.SelfAttention.q", 0, W)],
    }),
    "z-image": (Z_IMAGE, {
        **{name: [(UNET + "layers.7.attention.qkv", 0, 3 * W)] for name in (
            "diffusion_model.layers.7.attention.qkv", "lora_unet_layers_7_attention_qkv",
            "base_model.model.layers.7.attention.qkv")},
        **{name: [(UNET + "layers.7.attention.qkv", W, W)] for name in (
            "diffusion_model.layers.7.attention.to_k", "transformer.layers.7.attention.to_k",
            "lora_unet_layers_7_attention_to_k", "lycoris_layers_7_attention_to_k",
            "diffusion_model.layers.7.attention.to.k")},
        **{name: [(UNET + "layers.7.attention.out", 0, W)] for name in (
            "diffusion_model.layers.7.attention.out", "lora_unet_layers_7_attention_to_out_0",
            "transformer.layers.7.attention.to_out.0")},
        "lora_unet_context_refiner_0_feed_forward_w2": [
            (UNET + "context_refiner.0.feed_forward.w2", 0, W)],
        "transformer.noise_refiner.0.adaLN_modulation.0": [
            (UNET + "noise_refiner.0.adaLN_modulation.0", 0, 4 * W)],
        **{name: [(UNET + "final_layer.linear", 0, 64)] for name in (
            "transformer.all_final_layer.2-1.linear", "diffusion_model.final_layer.linear")},
        "transformer.all_x_embedder.2-1": [(UNET + "x_embedder", 0, W)],
        "lora_unet_cap_embedder_1": [(UNET + "cap_embedder.1", 0, W)],
    }),
    "krea2": (KREA2, {
        **{name: [(UNET + "blocks.7.attn.wq", 0, W)] for name in (
            "diffusion_model.blocks.7.attn.wq", "base_model.model.blocks.7.attn.wq",
            "transformer.transformer_blocks.7.attn.to_q", "lora_unet_blocks_7_attn_wq",
            "transformer_blocks.7.attn.to_q")},
        **{name: [(UNET + "blocks.7.attn.gate", 0, W)] for name in (
            "diffusion_model.blocks.7.attn.gate", "transformer.transformer_blocks.7.attn.to_gate")},
        "transformer.transformer_blocks.7.ff.gate": [(UNET + "blocks.7.mlp.gate", 0, 4 * W)],
        "transformer.transformer_blocks.7.attn.to_out.0": [(UNET + "blocks.7.attn.wo", 0, W)],
        **{name: [(UNET + "txtfusion.refiner_blocks.1.attn.wk", 0, W)] for name in (
            "diffusion_model.txtfusion.refiner_blocks.1.attn.wk",
            "transformer.text_fusion.refiner_blocks.1.attn.to_k")},
        "transformer.time_mod_proj": [(UNET + "tproj.1", 0, 6 * W)],
        "base_model.model.first": [(UNET + "first", 0, W)],
        "transformer.final_layer.linear": [(UNET + "last.linear", 0, 64)],
    }),
    "qwen-image": (QWEN_IMAGE, {
        **{name: [(UNET + "transformer_blocks.7.attn.to_q", 0, W)] for name in (
            "transformer_blocks.7.attn.to_q", "transformer.transformer_blocks.7.attn.to_q",
            "diffusion_model.transformer_blocks.7.attn.to_q",
            "lora_unet_transformer_blocks_7_attn_to_q", "lycoris_transformer_blocks_7_attn_to_q",
            "base_model.model.transformer_blocks.7.attn.to_q")},
        "transformer_blocks.7.attn.add_k_proj": [
            (UNET + "transformer_blocks.7.attn.add_k_proj", 0, W)],
        **{name: [(UNET + "transformer_blocks.7.img_mod.1", 0, 6 * W)] for name in (
            "transformer_blocks.7.img_mod.1", "lora_unet_transformer_blocks_7_img_mod_1")},
        "lora_unet_transformer_blocks_7_txt_mlp_net_0_proj": [
            (UNET + "transformer_blocks.7.txt_mlp.net.0.proj", 0, 4 * W)],
        "transformer.proj_out": [(UNET + "proj_out", 0, 64)],
    }),
    "ernie-image": (ERNIE_IMAGE, {
        **{name: [(UNET + "layers.7.self_attention.to_q", 0, W)] for name in (
            "diffusion_model.layers.7.self_attention.to_q", "layers.7.self_attention.to_q",
            "transformer.layers.7.self_attention.to_q", "lora_unet_layers_7_self_attention_to_q",
            "base_model.model.layers.7.self_attention.to_q",
            "lycoris_layers_7_self_attention_to_q")},
        "transformer.layers.7.self_attention.to_out.0": [
            (UNET + "layers.7.self_attention.to_out.0", 0, W)],
        **{name: [(UNET + "layers.7.mlp.linear_fc2", 0, W)] for name in (
            "diffusion_model.layers.7.mlp.linear_fc2", "lora_unet_layers_7_mlp_linear_fc2")},
        "transformer.adaLN_modulation.1": [(UNET + "adaLN_modulation.1", 0, 6 * W)],
    }),
    "anima": (ANIMA, {
        **{name: [(UNET + "blocks.7.self_attn.q_proj", 0, W)] for name in (
            "diffusion_model.blocks.7.self_attn.q_proj", "lora_unet_blocks_7_self_attn_q_proj",
            "transformer.transformer_blocks.7.attn1.to_q",
            "base_model.model.blocks.7.self_attn.q_proj", "lycoris_blocks_7_self_attn_q_proj")},
        **{name: [(UNET + "blocks.7.cross_attn.output_proj", 0, W)] for name in (
            "diffusion_model.blocks.7.cross_attn.output_proj",
            "transformer.transformer_blocks.7.attn2.to_out.0")},
        **{name: [(UNET + "blocks.7.adaln_modulation_mlp.2", 0, 3 * W)] for name in (
            "lora_unet_blocks_7_adaln_modulation_mlp_2",
            "transformer.transformer_blocks.7.norm3.linear_2")},
        "transformer.transformer_blocks.7.ff.net.0.proj": [
            (UNET + "blocks.7.mlp.layer1", 0, 4 * W)],
        "transformer.proj_out": [(UNET + "final_layer.linear", 0, 64)],
        "transformer.time_embed.t_embedder.linear_1": [(UNET + "t_embedder.1.linear_1", 0, W)],
        **{name: [(UNET + "llm_adapter.blocks.0.cross_attn.k_proj", 0, W)] for name in (
            "diffusion_model.llm_adapter.blocks.0.cross_attn.k_proj",
            "lora_unet_llm_adapter_blocks_0_cross_attn_k_proj",
            "text_conditioner.blocks.0.cross_attn.k_proj")},
        "lora_te_layers_3_self_attn_q_proj": [(QWEN3 + "layers.3.self_attn.q_proj", 0, 2 * W)],
    }),
    "flux3": (FLUX3, {
        **{name: [(UNET + "content_mode_blocks.image_cond.0.q_proj", 0, W)] for name in (
            "diffusion_model.content_mode_blocks.image_cond.0.q_proj",
            "transformer.mode_blocks.image_cond.0.attn.to_q",
            "base_model.model.mode_blocks.image_cond.0.attn.to_q",
            "lora_unet_content_mode_blocks_image_cond_0_q_proj",
            "lycoris_content_mode_blocks_image_cond_0_q_proj")},
        "transformer.mode_blocks.image_cond.0.ff.linear_in": [
            (UNET + "content_mode_blocks.image_cond.0.mlp_in", 0, 6 * W)],
        **{name: [(UNET + "txt_mode_blocks.3.v_proj", 0, W)] for name in (
            "txt_mode_blocks.3.v_proj", "transformer.txt_mode_blocks.3.attn.to_v")},
        **{name: [(UNET + "single_blocks.7.attn_out", 0, W)] for name in (
            "diffusion_model.single_blocks.7.attn_out", "lora_unet_single_blocks_7_attn_out",
            "transformer.single_transformer_blocks.7.attn.to_out.0")},
        "transformer.single_transformer_blocks.7.ff.linear_out": [
            (UNET + "single_blocks.7.mlp_out", 0, W)],
        "transformer.early_stream_modulations.image.linear": [
            (UNET + "early_stream_modulations.image.lin", 0, 3 * W)],
        "transformer.target_timestep_embedder.linear_2": [
            (UNET + "ref_time_in.out_layer", 0, W)],
        "transformer.norm_out.linear": [
            (UNET + "final_layer.image.adaLN_modulation.1", W, W),
            (UNET + "final_layer.image.adaLN_modulation.1", 0, W)],
    }),
    "flux2": (FLUX2, {
        **{name: [(UNET + "double_blocks.0.img_attn.qkv", 0, 3 * W)] for name in (
            "diffusion_model.double_blocks.0.img_attn.qkv", "double_blocks.0.img_attn.qkv",
            "lora_unet_double_blocks_0_img_attn_qkv")},
        **{name: [(UNET + "double_blocks.0.txt_attn.qkv", W, W)] for name in (
            "transformer.transformer_blocks.0.attn.add_k_proj",
            "base_model.model.transformer_blocks.0.attn.add_k_proj",
            "lora_transformer_transformer_blocks_0_attn_add_k_proj",
            "lycoris_transformer_blocks_0_attn_add_k_proj", "sformer_blocks.0.attn.add_k_proj")},
        **{name: [(UNET + "single_blocks.7.linear1", 0, 9 * W)] for name in (
            "transformer.single_transformer_blocks.7.attn.to_qkv_mlp_proj",
            "lora_unet_single_blocks_7_linear1")},
        "transformer.single_transformer_blocks.7.attn.to_out": [
            (UNET + "single_blocks.7.linear2", 0, W)],
        "transformer.transformer_blocks.0.ff.linear_in": [
            (UNET + "double_blocks.0.img_mlp.0", 0, 6 * W)],
        "transformer.transformer_blocks.0.ff_context.linear_out": [
            (UNET + "double_blocks.0.txt_mlp.2", 0, W)],
        "transformer.norm_out.linear": [(UNET + "final_layer.adaLN_modulation.1", W, W),
                                        (UNET + "final_layer.adaLN_modulation.1", 0, W)],
        "transformer.time_guidance_embed.timestep_embedder.linear_2": [
            (UNET + "time_in.out_layer", 0, W)],
        "transformer.single_stream_modulation.linear": [
            (UNET + "single_stream_modulation.lin", 0, 3 * W)],
        "transformer.x_embedder": [(UNET + "img_in", 0, W)],
    }),
}


@pytest.mark.parametrize(("family", "module"), [
    (family, module) for family, (_, modules) in SPELLED.items() for module in modules])
def test_a_spelling_stands_for_these_rows(family: str, module: str) -> None:
    shapes, modules = SPELLED[family]
    found = Spellings(shapes).find(module)
    assert (found or ()) == tuple(Rows(*part) for part in modules[module])


def test_all_layers_of_a_unet_have_their_names_of_diffusers() -> None:
    table = expected_tensors(TINY)
    spellings = Spellings(table)
    for name in table:
        if not name.startswith(UNET) or not name.endswith(".weight"):
            continue
        outside = name
        for inside, other in FOLDER_NAMES["unet"].items():
            outside = outside.replace(inside, other)
        module = outside.removesuffix(".weight")
        whole = (Rows(name.removesuffix(".weight"), 0, table[name][0]),)
        assert spellings.find(f"unet.{module}") == whole
        assert spellings.find("lora_unet_" + module.replace(".", "_")) == whole
        own = name.removeprefix(UNET).removesuffix(".weight")
        assert spellings.find("lora_unet_" + own.replace(".", "_")) == whole


# ---------------------------------------------------------------------- fused and split

SPLITS = [(family, module, parts) for family, (_, modules) in SPELLED.items()
          for module, parts in modules.items()
          if len(parts) > 1 or any(start for _, start, _ in parts)]


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "module", "parts"), SPLITS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("kind", ["LoRA", "LoHa", "LoKr", "DoRA"])
def test_rows_of_a_fused_layer_are_changed_alone(tmp_path, family: str, module: str,
                                                 parts: list[Part], kind: str) -> None:
    base = Weights(random_arrays(SPELLED[family][0], 1))
    layers = [base.arrays[f"{layer}.weight"] for layer, _, _ in parts]
    own = [layer[start:start + count]
           for layer, (_, start, count) in zip(layers, parts, strict=True)]
    rows, width = sum(map(len, own)), layers[0][0].size
    shapes = {"LoHa": {"hada_w1_a": (rows, 4), "hada_w1_b": (4, width), "hada_w2_a": (rows, 4),
                       "hada_w2_b": (4, width)},
              "LoKr": {"lokr_w1": (4, 4), "lokr_w2_a": (rows // 4, 3), "lokr_w2_b": (3, width // 4)}
              }.get(kind, {"lora_down.weight": (4, width), "lora_up.weight": (rows, 4)})
    tensors = {**random_arrays(shapes), "alpha": random_arrays({"": ()})[""] ** 2}
    if kind == "DoRA":
        tensors["dora_scale"] = random_arrays({"": (rows, 1)})[""] ** 2
    adapter = opened(tmp_path, {f"{module}.{role}": value for role, value in tensors.items()})
    adapted = Adapted(base, [WeightedAdapter(adapter, 0.5)])
    assert not adapted.fits[0].unused
    assert adapted.changed == {f"{layer}.weight" for layer, _, _ in parts}
    after = merged(np.concatenate([w.reshape(len(w), -1) for w in own]), tensors, 0.5)
    expected, at = {name: base.read(name) for name in adapted.changed}, 0
    for layer, start, count in parts:
        weight = expected[f"{layer}.weight"]
        weight[start:start + count] = after[at:at + count].reshape(count, *weight.shape[1:])
        at += count
    for name, weight in expected.items():
        assert off(adapted.floats(name), weight) < 1e-6
