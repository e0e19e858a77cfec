"""Parts of every family of models, with few channels and as they are published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from peers_models import TINY_UNET
from tiny_families import WORDLESS

from smalti.benchmark.tiny_cnn import tiny_cnn_graph
from smalti.families.parts import parts
from smalti.graph import Graph
from smalti.models import (
    CHROMA,
    CLIP_L,
    FLUX2_KLEIN_4B,
    FLUX_DEV,
    FLUX_VAE,
    OPENCLIP_G,
    OPENCLIP_H,
    SD1_UNET,
    SD2_UNET,
    SD3_MEDIUM,
    SD3_VAE,
    SD35_LARGE,
    SD35_MEDIUM,
    SD_VAE,
    SDXL_REFINER_UNET,
    SDXL_UNET,
    SSD1B_UNET,
    T5_XXL,
    TAESD,
    VEGA_UNET,
    Z_IMAGE,
    ClipTextConfig,
    ControlNetConfig,
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    MobileNetV2Config,
    RrdbConfig,
    SrvggConfig,
    TaesdConfig,
    chroma_graph,
    clip_text_graph,
    controlnet_graph,
    flux2_graph,
    flux_controlnet_graph,
    flux_double_block_graph,
    flux_graph,
    flux_modulation_graph,
    mmdit_graph,
    mobilenet_v2_graph,
    sd3_controlnet_graph,
    t5_graph,
    taesd_decoder_graph,
    taesd_encoder_graph,
    unet_graph,
    upscaler_graph,
    vae_decoder_graph,
    vae_encoder_graph,
    z_image_block_graph,
    z_image_graph,
)

Graphs = dict[str, Callable[[], Graph]]

SHAPES = {"unet": (2, 8, 8, 77), "transformer": (1, 8, 8, 9), "modulation": (1,), "vae": (8, 8),
          "vae_encoder": (32, 32)}
"""Of the parts of tiny models, see `families.parts`."""
TOKENS = 16
"""Of each text that others than CLIP read."""
TINY_SD3 = WORDLESS["sd3"].denoiser
TINY_FLUX_MODEL = WORDLESS["flux"].denoiser
TINY_TAESD = TaesdConfig(z_channels=4, channels=16, decoder_blocks=(2, 1), encoder_blocks=(1, 2))
TINY_RRDB = RrdbConfig(channels=16, growth=8, blocks=1)
TINY_MOBILE = MobileNetV2Config(classes=10, multiplier=0.5, head_channels=200,
                                blocks=((1, 16, 1, 1), (6, 24, 2, 2), (6, 64, 2, 2)))


def tiny() -> Graphs:
    """Models of few channels: each part of each family, and what stands beside them."""
    found: Graphs = {}
    for family, config in WORDLESS.items():
        for name, part in parts(config).items():
            encoder = config.texts.get(list(config.texts)[("text", "text_2", "text_3").index(name)]
                                       ) if name.startswith("text") else None
            shape = (2, 1) if isinstance(encoder, ClipTextConfig) else (
                1, *[TOKENS] * (len(part.smallest) - 1))
            found[f"{family} {name}"] = partial(part.graph, *SHAPES.get(name, shape))
    found |= {
        "sd1 unet, controlled": partial(unet_graph, TINY_UNET, 1, 4, 6, 5, True),
        "sd1 vae, repeated": partial(parts(WORDLESS["sd1"])["vae"].graph, 4, 6, "xy"),
        "sd1 text, of rows": partial(parts(WORDLESS["sd1"])["text"].graph, 1, 2, True),
        "sd1 controlnet": partial(controlnet_graph, ControlNetConfig(TINY_UNET), 1, 4, 6, 5),
        "sdxl controlnet, union": partial(controlnet_graph, ControlNetConfig(
            replace(TINY_UNET, attention=(False, True), transformer_depth=(0, 2), head_dim=16,
                    vector_dim=40, linear_projection=True, res_blocks=1),
            types=6, type_sinusoids=8, pooled=True), 2, 6, 4, 5, hints=2),
        "flux controlnet": partial(flux_controlnet_graph, FluxControlNetConfig(
            **{**vars(TINY_FLUX_MODEL), "single_blocks": 1}), 1, 4, 6, 5),
        "sd3 controlnet": partial(sd3_controlnet_graph, MMDiTControlNetConfig(
            **{**vars(TINY_SD3), "blocks": 2}, hint_channels=4), 1, 4, 6, 5),
        "taesd decoder": partial(taesd_decoder_graph, TINY_TAESD, 1, 4, 6),
        "taesd encoder": partial(taesd_encoder_graph, TINY_TAESD, 1, 8, 12),
        "esrgan": partial(upscaler_graph, TINY_RRDB, 1, 6, 5),
        "esrgan x2": partial(upscaler_graph, replace(TINY_RRDB, unshuffle=2), 1, 6, 4),
        "srvgg": partial(upscaler_graph, SrvggConfig(16, convolutions=2), 1, 6, 5),
        "mobilenet": partial(mobilenet_v2_graph, TINY_MOBILE, 2, 37, 44),
        "tiny cnn": tiny_cnn_graph,
    }
    return found


def published() -> Graphs:
    """Models as they are published, at the sizes that pictures are made in."""
    return {
        "SD 1.5 UNet 512x512": partial(unet_graph, SD1_UNET, 2, 64, 64),
        "SD 1.5 UNet 512x768, batch 1": partial(unet_graph, SD1_UNET, 1, 64, 96),
        "SD 2 UNet 768x768": partial(unet_graph, SD2_UNET, 2, 96, 96),
        "SDXL UNet 1024x1024": partial(unet_graph, SDXL_UNET, 1, 128, 128),
        "SDXL refiner 1024x1024": partial(unet_graph, SDXL_REFINER_UNET, 1, 128, 128),
        "SSD-1B UNet 1024x1024": partial(unet_graph, SSD1B_UNET, 1, 128, 128),
        "Vega UNet 1024x1024": partial(unet_graph, VEGA_UNET, 1, 128, 128),
        "SD 1.5 ControlNet 512x512": partial(controlnet_graph, ControlNetConfig(SD1_UNET), 2, 64,
                                             64),
        "CLIP-L": partial(clip_text_graph, CLIP_L, 2),
        "OpenCLIP-H": partial(clip_text_graph, OPENCLIP_H, 2),
        "OpenCLIP-G": partial(clip_text_graph, OPENCLIP_G, 2),
        "T5 XXL, 256 tokens": partial(t5_graph, T5_XXL, 1, 256),
        "SD decoder 512x512": partial(vae_decoder_graph, SD_VAE, 1, 64, 64),
        "SD decoder 1024x1024": partial(vae_decoder_graph, SD_VAE, 1, 128, 128),
        "SD encoder 512x512": partial(vae_encoder_graph, SD_VAE, 1, 512, 512),
        "SD 3 decoder 1024x1024": partial(vae_decoder_graph, SD3_VAE, 1, 128, 128),
        "FLUX decoder 512x512": partial(vae_decoder_graph, FLUX_VAE, 1, 64, 64),
        "SD 3 medium 1024x1024": partial(mmdit_graph, SD3_MEDIUM, 1, 128, 128, 154),
        "SD 3.5 medium 1024x1024": partial(mmdit_graph, SD35_MEDIUM, 1, 128, 128, 154),
        "SD 3.5 large 512x512": partial(mmdit_graph, SD35_LARGE, 1, 64, 64, 333),
        "FLUX.1 1024x1024": partial(flux_graph, FLUX_DEV, 1, 128, 128, 512, modulated=True),
        "FLUX.1 modulation": partial(flux_modulation_graph, FLUX_DEV, 1),
        "FLUX.1 double block": partial(flux_double_block_graph, FLUX_DEV, 1024, 256),
        "Chroma 512x512": partial(chroma_graph, CHROMA, 1, 64, 64, 256, masked=True),
        "FLUX.2 klein 1024x1024": partial(flux2_graph, FLUX2_KLEIN_4B, 1, 64, 64, 512),
        "Z-Image 1024x1024": partial(z_image_graph, Z_IMAGE, 2, 128, 128, 64),
        "Z-Image block": partial(z_image_block_graph, Z_IMAGE, 1024),
        "TAESD decoder 512x512": partial(taesd_decoder_graph, TAESD, 1, 64, 64),
        "TAESD encoder 512x512": partial(taesd_encoder_graph, TAESD, 1, 512, 512),
        "ESRGAN tile": partial(upscaler_graph, RrdbConfig(), 1, 128, 128),
        "SRVGG tile": partial(upscaler_graph, SrvggConfig(), 1, 192, 192),
        "MobileNetV2 224x224": partial(mobilenet_v2_graph, MobileNetV2Config(), 1, 224, 224),
    }
