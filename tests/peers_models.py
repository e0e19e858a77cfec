"""The same small models twice: as diffusers or transformers modules, and as our parameters.

Only tests marked `peers` call this. PyTorch is imported inside the functions, so that test files
which name them can be collected where it is not installed.

    peer = peer_unet(TINY_UNET)
    peer.module(...)          # what diffusers computes
    peer.weights              # numpy arrays under the names of our graphs and of single files
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smalti.checkpoint.names import (
    internal_shape,
    is_ignored,
    text_encoder_name,
    unet_renaming,
    vae_renaming,
)
from smalti.models.config import (
    ClipTextConfig,
    FluxConfig,
    MobileNetV2Config,
    Sd1Config,
    UNetConfig,
    VaeConfig,
)

TINY_TEXT = ClipTextConfig(vocab_size=96, hidden_size=48, intermediate_size=96, layers=2, heads=4,
                           positions=77)
TINY_UNET = UNetConfig(in_channels=4, out_channels=4, block_channels=(32, 64), res_blocks=2,
                       attention=(True, False), heads=4, head_dim=None, transformer_depth=(1, 0),
                       context_dim=48, norm_groups=8)
TINY_VAE = VaeConfig(channels=16, block_channels=(16, 32, 32, 32), res_blocks=1, z_channels=4,
                     norm_groups=8)
TINY_FLUX = FluxConfig(hidden_size=96, heads=3, mlp_size=384)
TINY_SD1 = Sd1Config(TINY_TEXT, TINY_UNET, TINY_VAE)
"""A whole model of the SD 1.x family; for real prompts give its text encoder `CLIP_VOCABULARY`."""

CLIP_VOCABULARY = 49408


@dataclass(frozen=True)
class Peer:
    """A module in evaluation mode with seeded weights, and those weights under our names."""

    module: Any
    weights: Mapping[str, np.ndarray]


def with_clip_vocabulary(config: Sd1Config) -> Sd1Config:
    """The same model with a text encoder that reads all tokens of CLIP."""
    return replace(config, text=replace(config.text, vocab_size=CLIP_VOCABULARY))


def peer_unet(config: UNetConfig, seed: int = 0) -> Peer:
    """diffusers' UNet2DConditionModel of this configuration."""
    from diffusers import UNet2DConditionModel

    attention = config.attention
    module = UNet2DConditionModel(
        in_channels=config.in_channels,
        out_channels=config.out_channels,
        block_out_channels=config.block_channels,
        layers_per_block=config.res_blocks,
        down_block_types=tuple("CrossAttnDownBlock2D" if a else "DownBlock2D" for a in attention),
        up_block_types=tuple("CrossAttnUpBlock2D" if a else "UpBlock2D" for a in attention[::-1]),
        # a number of heads, in spite of its name; and the last depth is also that of the middle
        attention_head_dim=tuple(config.heads_at(c) for c in config.block_channels),
        transformer_layers_per_block=tuple(d or config.middle_depth
                                           for d in config.transformer_depth),
        cross_attention_dim=config.context_dim,
        norm_num_groups=config.norm_groups,
        norm_eps=config.eps,
        use_linear_projection=config.linear_projection,
    )
    return _peer(module, unet_renaming(module.state_dict()), seed)


def peer_vae(config: VaeConfig, seed: int = 0) -> Peer:
    """diffusers' AutoencoderKL of this configuration."""
    from diffusers import AutoencoderKL

    levels = len(config.block_channels)
    module = AutoencoderKL(
        in_channels=config.image_channels,
        out_channels=config.image_channels,
        latent_channels=config.z_channels,
        block_out_channels=config.block_channels,
        layers_per_block=config.res_blocks,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        norm_num_groups=config.norm_groups,
        scaling_factor=config.scaling_factor,
    )
    return _peer(module, vae_renaming(module.state_dict()), seed)


def peer_clip_text(config: ClipTextConfig, seed: int = 0) -> Peer:
    """transformers' CLIPTextModel of this configuration."""
    from transformers import CLIPTextConfig, CLIPTextModel

    module = CLIPTextModel(CLIPTextConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        max_position_embeddings=config.positions,
        hidden_act=config.activation,
        layer_norm_eps=config.eps,
        bos_token_id=config.vocab_size - 2,
        eos_token_id=config.vocab_size - 1,
    ))
    return _peer(module, text_encoder_name, seed)


def peer_mobilenet_v2(config: MobileNetV2Config, seed: int = 0) -> Peer:
    """transformers' MobileNetV2ForImageClassification of this configuration.

    Its batch normalisations get means and variances that differ from 0 and 1.
    """
    import torch
    from transformers import MobileNetV2Config as PeerConfig
    from transformers import MobileNetV2ForImageClassification

    module = MobileNetV2ForImageClassification(PeerConfig(
        num_labels=config.classes, depth_multiplier=config.multiplier,
        layer_norm_eps=config.eps, tf_padding=config.same_padding))
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.named_buffers():
        if tensor.ndim:
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(torch.exp(0.2 * noise) if name.endswith("var") else 0.1 * noise)
    peer = _peer(module, str, seed)
    counts = [name for name in peer.weights if name.endswith("num_batches_tracked")]
    return replace(peer, weights={name: array for name, array in peer.weights.items()
                                  if name not in counts})


def peer_sd1(config: Sd1Config, seed: int = 0) -> tuple[Peer, Peer, Peer]:
    """Text encoder, UNet and autoencoder of a whole model; merge their weights for a file."""
    return (peer_clip_text(config.text, seed), peer_unet(config.unet, seed + 1),
            peer_vae(config.vae, seed + 2))


def peer_flux_double_block(config: FluxConfig, seed: int = 0) -> Peer:
    """diffusers' FluxTransformerBlock of this configuration, whose MLP is 4 times as wide."""
    from diffusers.models.transformers.transformer_flux import FluxTransformerBlock

    module = FluxTransformerBlock(config.hidden_size, config.heads, config.head_dim,
                                  eps=config.eps)
    separate = _peer(module, lambda name: name, seed)
    weights = {}
    for name, stream, added in (("img", "", "to_{}"), ("txt", "_context", "add_{}_proj")):
        parts = {f"{name}_mod.lin": [f"norm1{stream}.linear"],
                 f"{name}_attn.qkv": ["attn." + added.format(part) for part in "qkv"],
                 f"{name}_attn.proj": ["attn.to_add_out" if stream else "attn.to_out.0"],
                 f"{name}_mlp.0": [f"ff{stream}.net.0.proj"],
                 f"{name}_mlp.2": [f"ff{stream}.net.2"]}
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                weights[f"double_blocks.0.{ours}.{kind}"] = np.concatenate(
                    [separate.weights[f"{part}.{kind}"] for part in theirs])
        for ours, theirs in (("query_norm", "q"), ("key_norm", "k")):
            norm = f"attn.norm_{'added_' if stream else ''}{theirs}.weight"
            weights[f"double_blocks.0.{name}_attn.norm.{ours}.scale"] = separate.weights[norm]
    return Peer(module, weights)


def _peer(module: Any, rename: Callable[[str], str], seed: int) -> Peer:
    """Fill the module with numbers that keep signals at a size of one, and read them back."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim == 1:
                tensor.copy_(0.1 * noise + name.endswith("weight"))
            else:
                tensor.copy_(noise / tensor[0].numel() ** 0.5)
    weights = {}
    for name, tensor in module.state_dict().items():
        ours = rename(name)
        if not is_ignored(ours):
            array = tensor.numpy()
            weights[ours] = array.reshape(internal_shape(ours, array.shape))
    return Peer(module.eval(), weights)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the Euclidean norm."""
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    difference = np.linalg.norm((found.astype(np.float64) - expected).ravel())
    return float(difference / np.linalg.norm(expected.astype(np.float64).ravel()))
