"""Small models of each kind, as configurations; `smalti.benchmark.peers` makes modules of them."""

from __future__ import annotations

from dataclasses import replace

from smalti.models.config import ClipTextConfig, ModelConfig, UNetConfig, VaeConfig
from smalti.models.transformer_config import FluxConfig

TINY_TEXT = ClipTextConfig(vocab_size=96, hidden_size=48, intermediate_size=96, layers=2, heads=4,
                           positions=77)
TINY_UNET = UNetConfig(in_channels=4, out_channels=4, block_channels=(32, 64), res_blocks=2,
                       attention=(True, False), heads=4, head_dim=None, transformer_depth=(1, 0),
                       context_dim=48, norm_groups=8)
TINY_VAE = VaeConfig(channels=16, block_channels=(16, 32, 32, 32), res_blocks=1, z_channels=4,
                     norm_groups=8)
TINY_FLUX = FluxConfig(hidden_size=96, heads=3, mlp_size=384, axes=(8, 12, 12))
TINY_SD1 = ModelConfig("sd1", {"clip_l": TINY_TEXT}, TINY_UNET, TINY_VAE)
"""A whole model of the SD 1.x family; for real prompts give its text encoder `CLIP_VOCABULARY`."""

CLIP_VOCABULARY = 49408


def with_clip_vocabulary(config: ModelConfig) -> ModelConfig:
    """The same model with a text encoder that reads all tokens of CLIP."""
    texts = {name: replace(text, vocab_size=CLIP_VOCABULARY) for name, text in config.texts.items()}
    return replace(config, texts=texts)
