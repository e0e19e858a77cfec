"""Models, each written like its paper, as functions from a configuration to a graph."""

from smalti.models.clip_text import clip_text_graph
from smalti.models.config import (
    CLIP_L,
    FLUX_VAE,
    OPENCLIP_G,
    OPENCLIP_H,
    SD1_UNET,
    SD2_UNET,
    SD3_VAE,
    SD15,
    SD_VAE,
    SDXL_REFINER_UNET,
    SDXL_UNET,
    SDXL_VAE,
    SSD1B_UNET,
    VEGA_UNET,
    ClipTextConfig,
    ControlNetConfig,
    MobileNetV2Config,
    ModelConfig,
    UNetConfig,
    VaeConfig,
)
from smalti.models.controlnet import controlnet_graph
from smalti.models.flux import flux_double_block_graph, flux_graph
from smalti.models.mobilenet_v2 import mobilenet_v2_graph
from smalti.models.t5 import t5_graph
from smalti.models.transformer_config import (
    FLUX_DEV,
    FLUX_SCHNELL,
    T5_XXL,
    FluxConfig,
    T5Config,
)
from smalti.models.unet import unet_graph
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph

__all__ = [
    "CLIP_L", "FLUX_DEV", "FLUX_SCHNELL", "FLUX_VAE", "OPENCLIP_G", "OPENCLIP_H", "SD15",
    "SD1_UNET", "SD2_UNET", "SD3_VAE", "SDXL_REFINER_UNET", "SDXL_UNET", "SDXL_VAE", "SD_VAE",
    "SSD1B_UNET", "T5_XXL", "VEGA_UNET", "ClipTextConfig", "ControlNetConfig", "FluxConfig",
    "MobileNetV2Config", "ModelConfig", "T5Config", "UNetConfig", "VaeConfig", "clip_text_graph",
    "controlnet_graph", "flux_double_block_graph", "flux_graph", "mobilenet_v2_graph", "t5_graph",
    "unet_graph", "vae_decoder_graph", "vae_encoder_graph",
]
