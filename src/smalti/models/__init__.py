"""Models, each written like its paper, as functions from a configuration to a graph."""

from smalti.models.anima import anima_graph, anima_text_graph
from smalti.models.causal_vae import causal_decoder_graph, causal_encoder_graph
from smalti.models.chroma import chroma_graph, chroma_modulation_graph
from smalti.models.clip_text import clip_text_graph
from smalti.models.config import (
    CLIP_L,
    FLUX_VAE,
    OPENCLIP_G,
    OPENCLIP_H,
    QWEN_IMAGE21_VAE,
    SD1_UNET,
    SD2_UNET,
    SD3_VAE,
    SD15,
    SD_VAE,
    SDXL_REFINER_UNET,
    SDXL_UNET,
    SDXL_VAE,
    SSD1B_UNET,
    TAESD,
    TAESD3,
    VEGA_UNET,
    WAN_VAE,
    CausalVaeConfig,
    ClipTextConfig,
    ControlNetConfig,
    MobileNetV2Config,
    ModelConfig,
    ResidualVaeConfig,
    RrdbConfig,
    SrvggConfig,
    TaesdConfig,
    UNetConfig,
    VaeConfig,
)
from smalti.models.controlnet import controlnet_graph
from smalti.models.ernie_image import ernie_image_graph
from smalti.models.flux import (
    flux_double_block_graph,
    flux_graph,
    flux_modulation_graph,
)
from smalti.models.flux2 import flux2_graph, flux2_single_block_graph
from smalti.models.flux3 import flux3_graph
from smalti.models.flux_controlnet import flux_control_places, flux_controlnet_graph
from smalti.models.krea2 import krea2_graph, krea2_text_graph
from smalti.models.language import language_graph, picture_angles
from smalti.models.language_config import (
    GEMMA2_2B,
    QWEN3_4B,
    QWEN25_7B,
    QWEN25_VISION,
    REDUX,
    LanguageConfig,
    ReduxConfig,
    VisionConfig,
)
from smalti.models.mmdit import mmdit_graph
from smalti.models.mmdit_controlnet import sd3_control_places, sd3_controlnet_graph
from smalti.models.mobilenet_v2 import mobilenet_v2_graph
from smalti.models.newer_transformer_config import (
    ERNIE_IMAGE,
    FLUX3_KLEIN,
    FLUX3_KLEIN_BASE,
    LONGCAT_IMAGE,
    OVIS_IMAGE,
    QWEN_IMAGE21,
    ErnieImageConfig,
    Flux3Config,
    LongCatImageConfig,
    OvisImageConfig,
    QwenImage21Config,
)
from smalti.models.qwen_image import (
    qwen_image_block_graph,
    qwen_image_graph,
    qwen_image_modulation_graph,
)
from smalti.models.qwen_image21 import qwen_image21_graph
from smalti.models.qwen_image_controlnet import (
    qwen_image_control_places,
    qwen_image_controlnet_graph,
)
from smalti.models.qwen_vision import qwen_vision_graph
from smalti.models.redux import redux_graph
from smalti.models.residual_vae import residual_decoder_graph, residual_encoder_graph
from smalti.models.rrdb import rrdb_graph
from smalti.models.srvgg import srvgg_graph
from smalti.models.t5 import t5_graph
from smalti.models.taesd import taesd_decoder_graph, taesd_encoder_graph
from smalti.models.tileable import tileable
from smalti.models.transformer_config import (
    ANIMA,
    CHROMA,
    FLUX2_DEV,
    FLUX2_KLEIN_4B,
    FLUX2_KLEIN_9B,
    FLUX_DEV,
    FLUX_SCHNELL,
    KREA2,
    LUMINA2,
    QWEN_IMAGE,
    SD3_MEDIUM,
    SD35_LARGE,
    SD35_MEDIUM,
    T5_XXL,
    Z_IMAGE,
    AnimaConfig,
    ChromaConfig,
    Flux2Config,
    FluxConfig,
    FluxControlNetConfig,
    Krea2Config,
    Lumina2Config,
    MMDiTConfig,
    MMDiTControlNetConfig,
    QwenImageConfig,
    QwenImageControlNetConfig,
    T5Config,
    ZImageConfig,
    ZImageControlNetConfig,
)
from smalti.models.unet import unet_graph
from smalti.models.upscaler import upscaler_graph
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph
from smalti.models.z_image import z_image_block_graph, z_image_graph
from smalti.models.z_image_controlnet import z_image_control_places, z_image_controlnet_graph

__all__ = [
    "ANIMA", "CHROMA", "CLIP_L", "ERNIE_IMAGE", "FLUX2_DEV", "FLUX2_KLEIN_4B", "FLUX2_KLEIN_9B",
    "FLUX3_KLEIN", "FLUX3_KLEIN_BASE", "FLUX_DEV", "FLUX_SCHNELL", "FLUX_VAE", "GEMMA2_2B", "KREA2",
    "LONGCAT_IMAGE", "LUMINA2", "OPENCLIP_G", "OPENCLIP_H", "OVIS_IMAGE", "QWEN25_7B",
    "QWEN25_VISION", "QWEN3_4B", "QWEN_IMAGE", "QWEN_IMAGE21", "QWEN_IMAGE21_VAE", "REDUX", "SD15",
    "SD1_UNET", "SD2_UNET", "SD35_LARGE", "SD35_MEDIUM", "SD3_MEDIUM", "SD3_VAE",
    "SDXL_REFINER_UNET", "SDXL_UNET", "SDXL_VAE", "SD_VAE", "SSD1B_UNET", "T5_XXL", "TAESD",
    "TAESD3", "VEGA_UNET", "WAN_VAE", "Z_IMAGE", "AnimaConfig", "CausalVaeConfig", "ChromaConfig",
    "ClipTextConfig", "ControlNetConfig", "ErnieImageConfig", "Flux2Config", "Flux3Config",
    "FluxConfig", "FluxControlNetConfig", "Krea2Config", "LanguageConfig", "LongCatImageConfig",
    "Lumina2Config", "MMDiTConfig", "MMDiTControlNetConfig", "MobileNetV2Config", "ModelConfig",
    "OvisImageConfig", "QwenImage21Config", "QwenImageConfig", "QwenImageControlNetConfig",
    "ReduxConfig", "ResidualVaeConfig", "RrdbConfig", "SrvggConfig", "T5Config", "TaesdConfig",
    "UNetConfig", "VaeConfig", "VisionConfig", "ZImageConfig", "ZImageControlNetConfig",
    "anima_graph", "anima_text_graph", "causal_decoder_graph", "causal_encoder_graph",
    "chroma_graph", "chroma_modulation_graph", "clip_text_graph", "controlnet_graph",
    "ernie_image_graph", "flux2_graph", "flux2_single_block_graph", "flux3_graph",
    "flux_control_places", "flux_controlnet_graph", "flux_double_block_graph", "flux_graph",
    "flux_modulation_graph", "krea2_graph", "krea2_text_graph", "language_graph", "mmdit_graph",
    "mobilenet_v2_graph", "picture_angles", "qwen_image21_graph", "qwen_image_block_graph",
    "qwen_image_control_places", "qwen_image_controlnet_graph", "qwen_image_graph",
    "qwen_image_modulation_graph", "qwen_vision_graph", "redux_graph", "residual_decoder_graph",
    "residual_encoder_graph", "rrdb_graph", "sd3_control_places", "sd3_controlnet_graph",
    "srvgg_graph", "t5_graph", "taesd_decoder_graph", "taesd_encoder_graph", "tileable",
    "unet_graph", "upscaler_graph", "vae_decoder_graph", "vae_encoder_graph", "z_image_block_graph",
    "z_image_control_places", "z_image_controlnet_graph", "z_image_graph",
]
