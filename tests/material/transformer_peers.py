"""Tiny modules of diffusers and transformers, and their weights by the keys of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.benchmark.weights import seeded
from smalti.families.keys import Table, assembled, expressions, shape_of
from smalti.models import (
    AnimaConfig,
    ChromaConfig,
    ErnieImageConfig,
    Flux2Config,
    Flux3Config,
    FluxConfig,
    FluxControlNetConfig,
    Krea2Config,
    LongCatImageConfig,
    Lumina2Config,
    MMDiTConfig,
    MMDiTControlNetConfig,
    OvisImageConfig,
    QwenImage21Config,
    QwenImageConfig,
    QwenImageControlNetConfig,
    ResidualVaeConfig,
    T5Config,
    ZImageConfig,
    ZImageControlNetConfig,
)

TINY_T5 = T5Config(96, hidden_size=40, mlp_size=64, layers=3, heads=4, head_dim=8)
TINY_FLUX = FluxConfig(hidden_size=64, heads=2, mlp_size=256, double_blocks=2, single_blocks=3,
                       in_channels=4, out_channels=4, context_dim=24, pooled_dim=20,
                       axes=(4, 12, 16))

TINY_CHROMA = ChromaConfig(hidden_size=64, heads=2, mlp_size=256, double_blocks=2, single_blocks=3,
                           in_channels=4, out_channels=4, context_dim=24, axes=(4, 12, 16),
                           approximator_size=40, approximator_layers=2)
TINY_MMDIT = MMDiTConfig(hidden_size=32, heads=2, blocks=3, positions=8, in_channels=4,
                         out_channels=4, context_dim=24, pooled_dim=20)

TINY_Z_IMAGE = ZImageConfig(hidden_size=64, heads=2, mlp_size=170, blocks=2, refiners=1,
                            in_channels=4, out_channels=4, context_dim=24, vector_size=64,
                            axes=(8, 12, 12))

TINY_LUMINA2 = Lumina2Config(72, heads=3, kv_heads=1, mlp_size=288, blocks=2, refiners=2,
                             in_channels=4, out_channels=4, context_dim=24, time_size=72,
                             vector_size=72, axes=(8, 8, 8))

TINY_QWEN_IMAGE = QwenImageConfig(hidden_size=64, heads=2, mlp_size=256, blocks=2, in_channels=4,
                                  out_channels=4, context_dim=24, axes=(8, 12, 12))

TINY_FLUX2 = Flux2Config(hidden_size=64, heads=2, mlp_size=192, double_blocks=2, single_blocks=3,
                         in_channels=16, out_channels=16, context_dim=24, axes=(8, 8, 8, 8))

TINY_ANIMA = AnimaConfig(hidden_size=48, heads=2, mlp_size=96, blocks=2, in_channels=4,
                         out_channels=4, context_dim=24, rank=8, text_dim=32, text_heads=2,
                         text_mlp_size=128, text_blocks=2, vocab_size=64)

TINY_KREA2 = Krea2Config(hidden_size=64, heads=4, kv_heads=2, mlp_size=96, blocks=2, in_channels=4,
                         out_channels=4, text_dim=24, taps=3, text_heads=2, text_kv_heads=1,
                         text_mlp_size=40, layer_blocks=1, text_blocks=1, axes=(4, 6, 6))


TINY_ERNIE_IMAGE = ErnieImageConfig(hidden_size=64, heads=2, mlp_size=96, blocks=2, in_channels=16,
                                    out_channels=16, context_dim=24, axes=(8, 12, 12))

TINY_FLUX3 = Flux3Config(hidden_size=64, heads=2, mlp_size=192, stream_blocks=2, blocks=3,
                         in_channels=16, out_channels=16, context_dim=24, axes=(8, 8, 8, 8),
                         flow_map=True)

TINY_QWEN_IMAGE21 = QwenImage21Config(hidden_size=64, heads=2, mlp_size=192, blocks=2,
                                      in_channels=16, out_channels=16, context_dim=24,
                                      axes=(4, 14, 14))

TINY_OVIS_IMAGE = OvisImageConfig(hidden_size=64, heads=2, mlp_size=256, double_blocks=2,
                                  single_blocks=3, in_channels=4, out_channels=4, context_dim=24,
                                  axes=(4, 12, 16))

TINY_LONGCAT_IMAGE = LongCatImageConfig(hidden_size=64, heads=2, mlp_size=256, double_blocks=2,
                                        single_blocks=3, in_channels=4, out_channels=4,
                                        context_dim=24, axes=(4, 12, 16))


def filled(module: Any) -> Any:
    """The module in evaluation mode with seeded weights."""
    import torch

    state = {name: torch.tensor(seeded(name, tuple(tensor.shape)))
             for name, tensor in module.state_dict().items()}
    module.load_state_dict(state)
    return module.eval()


def weights_of(module: Any, table: Table, prefix: str,
               unknown: set[str] = frozenset()) -> dict[str, np.ndarray]:
    """The module's weights under our names; the table speaks of all names but the `unknown`."""
    stored = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    return internal(stored, table, prefix, unknown)


def internal(stored: Mapping[str, np.ndarray], table: Table, prefix: str,
             unknown: set[str] = frozenset()) -> dict[str, np.ndarray]:
    """Stored arrays under our names; see `weights_of`."""
    found, left = expressions(stored, table)
    assert set(left) == set(unknown)
    weights = {}
    for name, expression in found.items():
        weights[f"{prefix}.{name}"] = assembled(expression, stored.__getitem__)
        shape = shape_of(expression, lambda part: stored[part].shape)
        assert weights[f"{prefix}.{name}"].shape == shape
    return weights


def t5_module(config: T5Config) -> Any:
    """transformers' T5EncoderModel."""
    from transformers import T5Config as PeerConfig
    from transformers import T5EncoderModel

    return T5EncoderModel(PeerConfig(
        vocab_size=config.vocab_size, d_model=config.hidden_size, d_kv=config.head_dim,
        d_ff=config.mlp_size, num_layers=config.layers, num_heads=config.heads,
        relative_attention_num_buckets=config.buckets,
        relative_attention_max_distance=config.distance_max, feed_forward_proj="gated-gelu",
        layer_norm_epsilon=config.eps))


def flux_module(config: FluxConfig) -> Any:
    """diffusers' FluxTransformer2DModel."""
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=config.packed_channels, out_channels=4 * config.out_channels,
        num_layers=config.double_blocks, num_single_layers=config.single_blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim, pooled_projection_dim=config.pooled_dim,
        guidance_embeds=config.guidance, axes_dims_rope=config.axes)


def chroma_module(config: ChromaConfig) -> Any:
    """diffusers' ChromaTransformer2DModel."""
    from diffusers import ChromaTransformer2DModel

    return ChromaTransformer2DModel(
        in_channels=config.packed_channels, out_channels=4 * config.out_channels,
        num_layers=config.double_blocks, num_single_layers=config.single_blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim, axes_dims_rope=config.axes,
        approximator_num_channels=config.approximator_features,
        approximator_hidden_dim=config.approximator_size,
        approximator_layers=config.approximator_layers)


def mmdit_module(config: MMDiTConfig) -> Any:
    """diffusers' SD3Transformer2DModel."""
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=2 * config.positions, patch_size=2, in_channels=config.in_channels,
        num_layers=config.blocks, attention_head_dim=config.head_dim,
        num_attention_heads=config.heads, joint_attention_dim=config.context_dim,
        caption_projection_dim=config.hidden_size, pooled_projection_dim=config.pooled_dim,
        out_channels=config.out_channels, pos_embed_max_size=config.positions,
        dual_attention_layers=tuple(range(config.dual_blocks)),
        qk_norm="rms_norm" if config.qk_norm else None)


def flux2_module(config: Flux2Config) -> Any:
    """diffusers' Flux2Transformer2DModel."""
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        in_channels=config.in_channels, num_layers=config.double_blocks,
        num_single_layers=config.single_blocks, attention_head_dim=config.head_dim,
        num_attention_heads=config.heads, joint_attention_dim=config.context_dim,
        axes_dims_rope=config.axes, guidance_embeds=config.guidance)


def z_image_module(config: ZImageConfig) -> Any:
    """diffusers' ZImageTransformer2DModel."""
    from diffusers import ZImageTransformer2DModel

    return ZImageTransformer2DModel(
        in_channels=config.in_channels, dim=config.hidden_size, n_layers=config.blocks,
        n_refiner_layers=config.refiners, n_heads=config.heads, n_kv_heads=config.heads,
        cap_feat_dim=config.context_dim, axes_dims=list(config.axes))


REFINED_BY = {"alone": None, "layers": "control_layers", "steering": "control_noise_refiner"}
"""How a ControlNet of Z-Image refines its picture -> what diffusers calls that."""


def z_image_controlnet_module(config: ZImageControlNetConfig, places: Sequence[int]) -> Any:
    """diffusers' ZImageControlNetModel, which adds something behind the blocks of these `places`.
    """
    from diffusers import ZImageControlNetModel

    refiners = config.refiners or 1
    return ZImageControlNetModel(
        control_layers_places=list(places), control_refiner_layers_places=list(range(refiners)),
        control_in_dim=config.hint_channels, add_control_noise_refiner=REFINED_BY[config.refining],
        dim=config.hidden_size, n_refiner_layers=refiners, n_heads=config.heads,
        n_kv_heads=config.heads)


def lumina2_module(config: Lumina2Config) -> Any:
    """diffusers' Lumina2Transformer2DModel."""
    from diffusers import Lumina2Transformer2DModel

    return Lumina2Transformer2DModel(
        in_channels=config.in_channels, hidden_size=config.hidden_size, num_layers=config.blocks,
        num_refiner_layers=config.refiners, num_attention_heads=config.heads,
        num_kv_heads=config.kv_heads, multiple_of=16, axes_dim_rope=config.axes,
        cap_feat_dim=config.context_dim)


def anima_module(config: AnimaConfig) -> Any:
    """diffusers' CosmosTransformer3DModel, whose mask of zeros is resized without torchvision."""
    from types import SimpleNamespace

    import torch
    from diffusers import CosmosTransformer3DModel
    from diffusers.models.transformers import transformer_cosmos

    if not hasattr(transformer_cosmos, "transforms"):
        transformer_cosmos.transforms = SimpleNamespace(
            InterpolationMode=SimpleNamespace(NEAREST=None), functional=SimpleNamespace(
                resize=lambda mask, size, interpolation: torch.zeros(*mask.shape[:2], *size)))
    return CosmosTransformer3DModel(
        in_channels=config.in_channels, out_channels=config.out_channels,
        num_attention_heads=config.heads, attention_head_dim=config.head_dim,
        num_layers=config.blocks, mlp_ratio=config.mlp_size / config.hidden_size,
        text_embed_dim=config.text_dim, adaln_lora_dim=config.rank, rope_scale=(1.0, 4.0, 4.0),
        concat_padding_mask=True, extra_pos_embed_type=None)


def anima_text_module(config: AnimaConfig) -> Any:
    """diffusers' AnimaTextConditioner."""
    from diffusers.models import AnimaTextConditioner

    return AnimaTextConditioner(
        source_dim=config.context_dim, target_dim=config.text_dim, model_dim=config.text_dim,
        num_layers=config.text_blocks, num_attention_heads=config.text_heads,
        mlp_ratio=config.text_mlp_size / config.text_dim, target_vocab_size=config.vocab_size)


def qwen_image_module(config: QwenImageConfig) -> Any:
    """diffusers' QwenImageTransformer2DModel."""
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        in_channels=4 * config.in_channels, out_channels=config.out_channels,
        num_layers=config.blocks, attention_head_dim=config.head_dim,
        num_attention_heads=config.heads, joint_attention_dim=config.context_dim,
        axes_dims_rope=config.axes, zero_cond_t=config.clean)


def krea2_module(config: Krea2Config) -> Any:
    """diffusers' Krea2Transformer2DModel."""
    from diffusers import Krea2Transformer2DModel

    return Krea2Transformer2DModel(
        in_channels=4 * config.in_channels, num_layers=config.blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads, intermediate_size=config.mlp_size,
        text_hidden_dim=config.text_dim, num_text_layers=config.taps,
        text_num_attention_heads=config.text_heads,
        text_num_key_value_heads=config.text_kv_heads, text_intermediate_size=config.text_mlp_size,
        num_layerwise_text_blocks=config.layer_blocks, num_refiner_text_blocks=config.text_blocks,
        axes_dims_rope=config.axes)


def ernie_image_module(config: ErnieImageConfig) -> Any:
    """diffusers' ErnieImageTransformer2DModel."""
    from diffusers import ErnieImageTransformer2DModel

    return ErnieImageTransformer2DModel(
        hidden_size=config.hidden_size, num_attention_heads=config.heads,
        num_layers=config.blocks, ffn_hidden_size=config.mlp_size, in_channels=config.in_channels,
        out_channels=config.out_channels, text_in_dim=config.context_dim,
        rope_axes_dim=config.axes)


def flux3_module(config: Flux3Config) -> Any:
    """diffusers' Flux3Transformer2DModel."""
    from diffusers import Flux3Transformer2DModel

    return Flux3Transformer2DModel(
        in_channels=config.in_channels, cond_in_channels=config.in_channels,
        num_layers=config.stream_blocks, num_single_layers=config.blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim, mlp_ratio=config.mlp_size / config.hidden_size,
        axes_dims_rope=config.axes, flow_map=config.flow_map)


def qwen_image21_module(config: QwenImage21Config) -> Any:
    """diffusers' QwenImage21Transformer2DModel."""
    from diffusers import QwenImage21Transformer2DModel

    return QwenImage21Transformer2DModel(
        in_channels=config.in_channels, out_channels=config.out_channels,
        num_layers=config.blocks, attention_head_dim=config.head_dim,
        num_attention_heads=config.heads, context_in_dim=config.context_dim,
        mlp_ratio=config.mlp_size // config.hidden_size, axes_dims_rope=config.axes)


def residual_autoencoder(config: ResidualVaeConfig) -> Any:
    """That of Qwen-Image-2.1, whose levels but the first one halve time, too."""
    from diffusers import AutoencoderKLQwenImage21

    levels = len(config.block_channels)
    return AutoencoderKLQwenImage21(
        base_dim=config.channels, decoder_base_dim=config.decoder_widths[0],
        z_dim=config.z_channels,
        dim_mult=[width // config.channels for width in config.block_channels],
        num_res_blocks=config.res_blocks, temperal_downsample=[i > 0 for i in range(levels - 1)],
        latents_mean=list(config.latents_mean), latents_std=list(config.latents_std),
        scale_factor_spatial=config.downscale)


def ovis_image_module(config: OvisImageConfig) -> Any:
    """diffusers' OvisImageTransformer2DModel."""
    from diffusers import OvisImageTransformer2DModel

    return OvisImageTransformer2DModel(
        in_channels=config.packed_channels, out_channels=4 * config.out_channels,
        num_layers=config.double_blocks, num_single_layers=config.single_blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim, axes_dims_rope=config.axes)


def longcat_image_module(config: LongCatImageConfig) -> Any:
    """diffusers' LongCatImageTransformer2DModel."""
    from diffusers import LongCatImageTransformer2DModel

    return LongCatImageTransformer2DModel(
        in_channels=config.packed_channels, num_layers=config.double_blocks,
        num_single_layers=config.single_blocks, attention_head_dim=config.head_dim,
        num_attention_heads=config.heads, joint_attention_dim=config.context_dim,
        pooled_projection_dim=config.context_dim, axes_dims_rope=list(config.axes))


def flux_controlnet_module(config: FluxControlNetConfig) -> Any:
    """diffusers' FluxControlNetModel."""
    from diffusers import FluxControlNetModel

    return FluxControlNetModel(
        patch_size=2 if config.hint_channels else 1, in_channels=config.packed_channels,
        num_layers=config.double_blocks, num_single_layers=config.single_blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim, pooled_projection_dim=config.pooled_dim,
        guidance_embeds=config.guidance, axes_dims_rope=list(config.axes),
        num_mode=config.modes or None,
        conditioning_embedding_channels=config.in_channels if config.hint_channels else None)


def qwen_image_controlnet_module(config: QwenImageControlNetConfig) -> Any:
    """diffusers' QwenImageControlNetModel."""
    from diffusers import QwenImageControlNetModel

    return QwenImageControlNetModel(
        in_channels=4 * config.in_channels, num_layers=config.blocks,
        attention_head_dim=config.head_dim, num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim, axes_dims_rope=config.axes,
        extra_condition_channels=4 * (config.hint_channels - config.in_channels))


def sd3_controlnet_module(config: MMDiTControlNetConfig) -> Any:
    """diffusers' SD3ControlNetModel."""
    from diffusers import SD3ControlNetModel

    return SD3ControlNetModel(
        sample_size=2 * config.positions, patch_size=2, in_channels=config.in_channels,
        num_layers=config.blocks, attention_head_dim=config.head_dim,
        num_attention_heads=config.heads,
        joint_attention_dim=config.context_dim if config.joint else None,
        caption_projection_dim=config.hidden_size, pooled_projection_dim=config.pooled_dim,
        out_channels=config.out_channels, pos_embed_max_size=config.positions,
        extra_conditioning_channels=config.hint_channels - config.in_channels,
        dual_attention_layers=tuple(range(config.dual_blocks)), use_pos_embed=config.joint,
        qk_norm="rms_norm" if config.qk_norm else None)


def packed(latent: np.ndarray) -> np.ndarray:
    """A latent as diffusers' pipelines pack it."""
    from diffusers import FluxPipeline

    return FluxPipeline._pack_latents(latent, *latent.shape)


def image_ids(height: int, width: int) -> Any:
    """(0, row, column) of each token."""
    import torch
    from diffusers import FluxPipeline

    return FluxPipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32)
