"""Every kind of file that users have is called by its name."""

import numpy as np
import pytest
from checkpoint.samples import TINY
from safetensors.numpy import save_file
from unread_files import UNREAD

from smalti.checkpoint import inspect, load
from smalti.checkpoint.file_kind import detect, kinds
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families import families
from smalti.families.expected import expected_tensors
from smalti.models.config import SD15

UNET = "model.diffusion_model."
FIRST = {UNET + "input_blocks.0.0.weight": (320, 4, 3, 3)}
VAE = {"first_stage_model.decoder.conv_in.weight": (512, 4, 3, 3)}
CLIP = "cond_stage_model.transformer.text_model."
CROSS = UNET + "input_blocks.{}.1.transformer_blocks.0.attn2.to_k.weight"
DOUBLE = "double_blocks.0.img_attn.norm.key_norm.scale"
BIG_G = "model.transformer.resblocks.9.mlp.c_proj.bias"

# what public files of each family hold: the names that matter, with their shapes
FILES = {
    "sd1": [
        expected_tensors(SD15),
        expected_tensors(TINY),
        {**FIRST, **VAE, CLIP + "final_layer_norm.bias": (768,), CROSS.format(1): (320, 768)},
    ],
    "sd2": [
        {**FIRST, **VAE, "cond_stage_model.model.transformer.resblocks.0.ln_1.bias": (1024,)},
        {**FIRST, **VAE, CROSS.format(1): (320, 1024)},
    ],
    "sdxl": [
        {**FIRST, **VAE, f"conditioner.embedders.1.{BIG_G}": (1280,)},
        {**FIRST, UNET + "label_emb.0.0.weight": (1280, 2816)},
        {
            "conv_in.weight": (320, 4, 3, 3),
            "down_blocks.0.resnets.0.conv1.bias": (320,),
            "add_embedding.linear_1.weight": (1280, 2816),
        },
    ],
    "sdxl-refiner": [
        {
            UNET + "input_blocks.0.0.weight": (384, 4, 3, 3),
            **VAE,
            UNET + "label_emb.0.0.weight": (1536, 2560),
            f"conditioner.embedders.0.{BIG_G}": (1280,),
        },
    ],
    "sd1-inpaint": [
        {UNET + "input_blocks.0.0.weight": (320, 9, 3, 3), **VAE, CLIP + "x.bias": (768,)},
    ],
    "sd1-pix2pix": [{UNET + "input_blocks.0.0.weight": (320, 8, 3, 3), **VAE}],
    "svd": [
        {**FIRST, UNET + "input_blocks.1.0.time_stack.in_layers.0.bias": (320,),
         CROSS.format(1): (320, 1024)},
        {**FIRST, UNET + "input_blocks.1.0.time_stack.in_layers.0.bias": (320,),
         UNET + "label_emb.0.0.weight": (1280, 768), "conditioner.embedders.0.open_clip.x": (1,)},
    ],
    "upscaler": [
        {UNET + "input_blocks.0.0.weight": (256, 7, 3, 3), **VAE, CROSS.format(1): (256, 1024)}
    ],
    "sd3": [
        {UNET + "joint_blocks.0.context_block.attn.qkv.weight": (4608, 1536), **VAE},
        {"transformer_blocks.0.attn.add_q_proj.weight": (1, 1), "pos_embed.pos_embed": (1, 2, 3)},
    ],
    "flux-dev": [
        {DOUBLE: (128,), "guidance_in.in_layer.weight": (3072, 256), "img_in.weight": (3072, 64)},
        {UNET + DOUBLE: (128,), UNET + "guidance_in.in_layer.bias": (3072,)},
        {DOUBLE: (128,), "guidance_in.in_layer.weight": (3072, 256),
         "double_blocks.0.img_mod.lin.weight": (9, 9), "txt_in.weight": (8, 4096)},
    ],
    "flux-schnell": [
        {DOUBLE: (128,), "img_in.weight": (3072, 64)},
        {"single_transformer_blocks.0.proj_out.bias": (3072,)},
    ],
    "flux2": [
        {"double_stream_modulation_img.lin.weight": (6, 6), DOUBLE: (128,)},
        {UNET + "single_stream_modulation.lin.weight": (9, 9), UNET + DOUBLE: (128,)},
        {"single_stream_modulation.linear.weight": (9, 9), "single_transformer_blocks.0.x": (9,)},
    ],
    "flux2-dev": [
        {"single_stream_modulation.lin.weight": (9, 9), "guidance_in.in_layer.weight": (9, 9)},
        {"single_stream_modulation.linear.weight": (9, 9),
         "time_guidance_embed.guidance_embedder.linear_1.weight": (9, 9)},
    ],
    "flux3": [
        {"early_stream_modulations.image.lin.weight": (9, 3),
         "single_blocks.0.q_proj.weight": (3, 3)},
        {UNET + "early_stream_modulations.image.lin.weight": (9, 3)},
        {"early_stream_modulations.image.linear.weight": (9, 3),
         "single_transformer_blocks.0.attn.to_q.weight": (3, 3)},
    ],
    "z-image": [
        {"cap_pad_token": (1, 3840), "noise_refiner.0.attention.k_norm.weight": (128,)},
        {UNET + "cap_pad_token": (1, 3840), UNET + "noise_refiner.0.attention.qkv.weight": (3, 3)},
        {"cap_pad_token": (1, 3840), "noise_refiner.0.attention.norm_k.weight": (128,)},
    ],
    "anima": [
        {"net.blocks.0.adaln_modulation_self_attn.1.weight": (256, 2048),
         "net.llm_adapter.blocks.0.cross_attn.q_proj.weight": (9, 9)},
        {UNET + "blocks.0.adaln_modulation_self_attn.1.weight": (256, 2048),
         UNET + "llm_adapter.blocks.0.cross_attn.q_proj.weight": (9, 9)},
    ],
    "krea2": [
        {"txtfusion.projector.weight": (1, 12)}, {UNET + "txtfusion.projector.weight": (1, 12)},
        {"text_fusion.projector.weight": (1, 12)},
    ],
    "qwen-image": [
        {"transformer_blocks.0.img_mod.1.weight": (9, 9), "txt_norm.weight": (3584,)},
        {UNET + "transformer_blocks.0.img_mod.1.bias": (9,), UNET + "txt_norm.weight": (3584,)},
    ],
    "qwen-image-edit-2511": [
        {"transformer_blocks.0.img_mod.1.weight": (48, 8), "txt_norm.weight": (3584,),
         "__index_timestep_zero__": (1,)}],
    "z-image-omni": [{"siglip_embedder.0.weight": (9,), "cap_pad_token": (1, 9),
                      "noise_refiner.0.attention.k_norm.weight": (128,)}],
    "z-image-pixels": [{"dec_net.cond_embed.weight": (9, 9), "cap_pad_token": (1, 9),
                        "noise_refiner.0.attention.k_norm.weight": (128,)}],
    "ming-image": [{"cap_embedder.1.weight": (3840, 9), "noise_refiner.0.ffn_norm1.weight": (9,)}],
    "ovis-image": [
        {"double_blocks.0.img_mlp.gate_proj.weight": (32, 8),
         "double_blocks.0.img_attn.qkv.weight": (24, 8)},
        {UNET + "double_blocks.0.img_mlp.gate_proj.weight": (32, 8), UNET + DOUBLE: (128,)},
        {"context_embedder_norm.weight": (2048,), "single_transformer_blocks.0.x": (9,)},
    ],
    "longcat-image": [
        {"double_blocks.0.img_mod.lin.weight": (9, 9), "txt_in.weight": (8, 3584), DOUBLE: (128,)},
        {"single_transformer_blocks.0.proj_out.bias": (9,),
         "time_embed.timestep_embedder.linear_1.weight": (9, 256)},
    ],
    "ernie-image": [
        {"layers.0.adaLN_sa_ln.weight": (4096,)}, {UNET + "layers.0.adaLN_sa_ln.weight": (4096,)},
    ],
    "qwen-image21": [
        {"txt_in.text_norm.weight": (4096,), "modulation.1.weight": (48, 8)},
        {UNET + "txt_in.text_norm.weight": (4096,),
         UNET + "transformer_blocks.0.img_mlp.gate_up.weight": (48, 8)},
    ],
    "lumina2": [
        {"cap_embedder.1.weight": (2304, 2304), "noise_refiner.0.ffn_norm1.weight": (2304,)},
        {"time_caption_embed.caption_embedder.0.weight": (2304,),
         "noise_refiner.0.attn.to_q.weight": (2304, 2304)},
    ],
    "newbie": [{"cap_embedder.1.weight": (2304, 2560), "clip_text_pooled_proj.0.weight": (9,),
                "noise_refiner.0.ffn_norm1.weight": (2304,)}],
    "lumina-next": [{"time_caption_embed.caption_embedder.0.weight": (2048,),
                     "layers.0.attn1.to_q.weight": (2304, 2304)}],
    "chroma-radiance": [
        {"distilled_guidance_layer.in_proj.bias": (5120,), "nerf_blocks.0.norm.scale": (64,)},
    ],
    "chroma": [{DOUBLE: (128,), "distilled_guidance_layer.in_proj.bias": (5120,)}],
    "lora": [
        {"lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight": (4, 320)},
        {"transformer.single_transformer_blocks.0.proj_out.lora_A.weight": (16, 3072)},
        {"unet.down_blocks.0.attentions.0.proj_in.lora.up.weight": (4, 320)},
        {"lora_unet_mid_block_attentions_0_proj_in.hada_w1_a": (320, 4)},
    ],
    "controlnet": [
        {"control_model.input_blocks.0.0.weight": (320, 4, 3, 3)},
        {
            "conv_in.weight": (320, 4, 3, 3),
            "down_blocks.0.resnets.0.conv1.bias": (320,),
            "controlnet_cond_embedding.conv_in.weight": (16, 3, 3, 3),
        },
        {"control_all_x_embedder.2-1.weight": (3840, 132),
         "control_layers.0.after_proj.weight": (9, 9)},
        {"controlnet_blocks.0.y_rms.weight": (3072,), "img_in.weight": (3072, 64)},
    ],
    "t2i-adapter": [{"adapter.body.0.in_conv.weight": (320, 192, 1, 1)}],
    "embedding": [
        {"emb_params": (4, 768)},
        {"<cat-toy>": (768,)},
        {"clip_l": (2, 768), "clip_g": (2, 1280)},
    ],
    "vae": [
        VAE,
        {"decoder.conv_in.weight": (512, 4, 3, 3), "encoder.down.0.block.0.conv1.bias": (128,)},
        {"decoder.conv_in.weight": (512, 4, 3, 3), "encoder.down_blocks.0.resnets.0.bias": (128,)},
    ],
    "taesd": [
        {"decoder.layers.1.weight": (64, 4, 3, 3)},
        {"1.weight": (1,), "3.conv.0.weight": (1,)},
    ],
    "esrgan": [
        {"conv_first.weight": (64, 3, 3, 3), "body.0.rdb1.conv1.weight": (32, 64, 3, 3)},
        {"model.0.weight": (64, 3, 3, 3), "model.1.sub.0.RDB1.conv1.0.weight": (32, 64, 3, 3)},
    ],
    "unet": [
        {"conv_in.weight": (320, 4, 3, 3), "down_blocks.0.resnets.0.conv1.bias": (320,)},
        FIRST,
    ],
    "text-encoder": [
        {
            "text_model.embeddings.token_embedding.weight": (49408, 768),
            "text_model.x.bias": (768,),
            "text_model.y.bias": (768,),
        },
    ],
}


FILES |= UNREAD


@pytest.mark.parametrize(
    ("family", "shapes"), [(f, s) for f, samples in FILES.items() for s in samples]
)
def test_family(family, shapes):
    assert detect(shapes).id == family


NAMED = {"qwen-image-edit", "qwen-image-edit-2509"}
"""Families that no tensor tells, but a name."""


def test_every_rule_has_a_file():
    assert {kind.id for kind in kinds()} == {*FILES, *NAMED}
    assert NAMED < {name for family in families().values() for name in family.named.values()}


MODELS = {kind.id: kind.family for kind in kinds()}


def test_families_that_are_read():
    assert {family: model for family, model in MODELS.items() if model} == {
        "sd1": "sd1", "sd1-inpaint": "sd1", "sd1-pix2pix": "sd1", "unet": "sd1", "sd2": "sd2",
        "sdxl": "sdxl", "sdxl-refiner": "sdxl-refiner", "sd3": "sd3", "flux-dev": "flux",
        "flux-schnell": "flux", "chroma": "chroma", "z-image": "z-image",
        "flux2": "flux2", "flux2-dev": "flux2-dev", "flux3": "flux3",
        "anima": "anima", "qwen-image": "qwen-image",
        "krea2": "krea2", "lumina2": "lumina2", "ernie-image": "ernie-image",
        "ovis-image": "ovis-image", "longcat-image": "longcat-image",
        "qwen-image21": "qwen-image21",
        **{name: name for name in (*NAMED, "qwen-image-edit-2511")}}


@pytest.mark.parametrize("family", [f for f in FILES if MODELS[f] and f != "sd1"])
def test_a_few_tensors_of_a_model_that_is_read_are_no_model(tmp_path, family):
    path = tmp_path / "part.safetensors"
    save_file({name: np.broadcast_to(np.float16(0), shape).copy()
               for name, shape in FILES[family][0].items()}, path)
    with pytest.raises(CheckpointError, match="incomplete"):
        load(path)


@pytest.mark.parametrize("family", [f for f in FILES if not MODELS[f]])
def test_foreign_files_are_named_when_loaded(tmp_path, family):
    path = tmp_path / "other.safetensors"
    shapes = FILES[family][0]
    save_file(
        {name: np.broadcast_to(np.float16(0), shape).copy() for name, shape in shapes.items()}, path
    )
    with pytest.raises(UnknownFamilyError, match="Smalti reads checkpoints of Anima,") as caught:
        load(path)
    words = next(kind.words for kind in kinds() if kind.id == family)
    assert words in str(caught.value)
    report = inspect(path)
    assert report.kind.id == family and not report.loadable and report.prediction is None
    assert words in str(report)


@pytest.mark.parametrize("shapes", [{}, {"a": (3,)}, {"": ()}, {"weight": (768, 768, 3)}])
def test_unknown_files(tmp_path, shapes):
    path = tmp_path / "other.safetensors"
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path)
    with pytest.raises(UnknownFamilyError, match="no known model family"):
        load(path)
    assert "unknown" in str(inspect(path))
