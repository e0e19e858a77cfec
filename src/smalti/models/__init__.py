"""Models, each written like its paper, as functions from a configuration to a graph."""

from smalti.models.clip_text import clip_text_graph
from smalti.models.config import (
    FLUX1,
    SD15,
    ClipTextConfig,
    FluxConfig,
    MobileNetV2Config,
    Sd1Config,
    UNetConfig,
    VaeConfig,
)
from smalti.models.flux import flux_double_block_graph
from smalti.models.mobilenet_v2 import mobilenet_v2_graph
from smalti.models.unet import unet_graph
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph

__all__ = [
    "FLUX1", "SD15", "ClipTextConfig", "FluxConfig", "MobileNetV2Config", "Sd1Config",
    "UNetConfig", "VaeConfig", "clip_text_graph", "flux_double_block_graph", "mobilenet_v2_graph",
    "unet_graph", "vae_decoder_graph", "vae_encoder_graph",
]
