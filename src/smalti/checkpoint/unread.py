"""Files that people have and Smalti does not read: what they are called, and how they show it.

Some of them look like what is read, and all would be refused with names of tensors alone, which say
nothing to those who downloaded them. A family that is read from some day on has a record instead.
"""

from __future__ import annotations

from smalti.families.autoencoder import NESTED
from smalti.families.keys.anima import BLOCKS
from smalti.families.keys.stored import KERNEL_OF_FILMS
from smalti.families.names import FileKind, Names

MAGE_FLOW_WIDTH = 2560
"""Of the states of Qwen3-VL 4B, which Mage-Flow reads with the layers of Qwen-Image."""
CHATGLM_WIDTH = 4096
"""Of the states of ChatGLM3, which Kolors reads."""
T5_WIDTH = 4096
"""Of the states of T5-XXL, which Bria reads with the layers of LongCat-Image."""


_UMT5 = ("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.", "enc.blk.1.attn_rel_b.",
         "blocks.0.pos_embedding.embedding.")
"""Tables of distances of a layer behind the first, which T5 has not, by their names in files of
transformers and ComfyUI, of llama.cpp, and of its authors."""


def _only_motion(names: Names) -> bool:
    return names.contains(".motion_modules.") and not names.has("input_blocks.0.", "conv_in.")


def _cosmos(names: Names) -> bool:
    return (names.has(*BLOCKS) and not names.has("llm_adapter.")
            and "text_conditioner" not in names.components)


def _bria(names: Names) -> bool:
    """FIBO reads all layers of a language model, through a projection each."""
    return (names.has("single_transformer_blocks.") and names.has("time_embed.timestep_embedder.")
            and (names.has("caption_projection.")
                 or names.size("context_embedder.weight", 1) == T5_WIDTH))


def _image_encoder(names: Names) -> bool:
    """That of SigLIP has no token of its own beside those of patches."""
    return names.has("vision_model.embeddings.class_embedding") and not names.has("text_model.")


def _still(names: Names) -> bool:
    """Whether the last kernel of an autoencoder is of one frame, as that of Qwen-Image-2.1 is."""
    return any(len(shape) == KERNEL_OF_FILMS and shape[2] == 1
               for name, shape in names.all.items() if name.endswith("decoder.head.2.weight"))


UNREAD: tuple[FileKind, ...] = (
    FileKind("wan", "a Wan checkpoint, which makes films",
             lambda n: n.has("head.modulation") and n.has("patch_embedding.")),
    FileKind("hunyuan", "a HunyuanVideo or HunyuanImage checkpoint",
             lambda n: n.has("txt_in.individual_token_refiner.",
                             "context_embedder.token_refiner.")),
    FileKind("hunyuan3d", "a Hunyuan3D checkpoint, which makes shapes",
             lambda n: n.has("double_blocks.") and n.has("latent_in.")),
    FileKind("bria", "a Bria checkpoint", _bria),
    FileKind("ltx", "an LTX-Video checkpoint, which makes films",
             lambda n: n.has("adaln_single.emb.timestep_embedder.") and not n.has("pos_embed.")),
    FileKind("pixart", "a PixArt checkpoint",
             lambda n: n.has("t_block.1.") and not n.has("attention_y_norm.")
             or n.has("adaln_single.emb.timestep_embedder.") and n.has("pos_embed.proj.")),
    FileKind("sana", "a SANA checkpoint", lambda n: n.has("attention_y_norm.")),
    FileKind("qwen-image-layered", "a Qwen-Image-Layered checkpoint, which takes pictures apart",
             lambda n: n.has("time_text_embed.addition_t_embedding.")),
    FileKind("mage-flow", "a Mage-Flow checkpoint",
             lambda n: n.has("transformer_blocks.0.img_mod.1.")
             and n.size("txt_norm.weight", 0) == MAGE_FLOW_WIDTH),
    FileKind("cosmos", "a Cosmos-Predict2 checkpoint", _cosmos,
             advice="Anima, which is built like it, has an llm_adapter besides (in a diffusers "
                    "folder a text_conditioner): give a file, or a folder, with it"),
    FileKind("ideogram", "an Ideogram checkpoint", lambda n: n.has("embed_image_indicator.")),
    FileKind("hidream", "a HiDream checkpoint",
             lambda n: n.has("caption_projection.0.linear.")),
    FileKind("auraflow", "an AuraFlow checkpoint", lambda n: n.has("double_layers.0.attn.w1q.")),
    FileKind("omnigen2", "an OmniGen2 checkpoint", lambda n: n.has("ref_image_patch_embedder.")),
    FileKind("kolors", "a Kolors checkpoint",
             lambda n: n.size("encoder_hid_proj.weight", 1) == CHATGLM_WIDTH),
    FileKind("cascade", "a Stable Cascade checkpoint", lambda n: n.has("clip_txt_mapper.")),
    FileKind("ip-adapter", "an IP-Adapter, which makes prompts of pictures",
             lambda n: n.has("ip_adapter.", "image_proj.")),
    FileKind("pulid", "a PuLID adapter, which makes prompts of faces",
             lambda n: n.has("pulid_ca.")),
    FileKind("motion", "a motion module of AnimateDiff, which makes films", _only_motion),
    FileKind("image-encoder", "an image encoder of CLIP alone", _image_encoder),
    FileKind("umt5", "UMT5, which reads prompts for films (Wan), and not T5-XXL",
             lambda n: n.has(*_UMT5) and not n.denoiser),
    FileKind("swinir", "an upscaler of transformers (SwinIR, HAT, DAT)",
             lambda n: n.has("conv_after_body.", "params.conv_after_body.")),
    FileKind("gfpgan", "a GFPGAN network, which mends faces",
             lambda n: n.has("stylegan_decoder.", "params_ema.stylegan_decoder.")),
    FileKind("codeformer", "a CodeFormer network, which mends faces",
             lambda n: n.has("ft_layers.0.", "params_ema.ft_layers.0.")),
    FileKind("depth", "a network that measures depth (Depth Anything, MiDaS)",
             lambda n: n.has("depth_head.", "pretrained.", "scratch.")),
    FileKind("sam", "a Segment Anything network, which finds things",
             lambda n: n.has("mask_decoder.")),
    FileKind("yolo", "a YOLO network, which finds things", lambda n: n.contains(".dfl.conv.")),
    FileKind("wan22-vae", "an autoencoder of Wan 2.2 5B, which makes films",
             lambda n: not n.denoiser and n.contains(NESTED[0]) and not _still(n)),
)
"""Asked before all models."""
