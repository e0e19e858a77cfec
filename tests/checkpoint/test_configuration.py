"""Published models come back from the shapes of their tensors, at full size."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_families import unread

from smalti.checkpoint.configuration import derive_config
from smalti.checkpoint.file_kind import detect
from smalti.families import families
from smalti.families.expected import expected_tensors
from smalti.families.hints import Hints
from smalti.models.config import (
    CLIP_L,
    FLUX2_VAE,
    FLUX_VAE,
    OPENCLIP_G,
    OPENCLIP_H,
    QWEN_IMAGE21_VAE,
    SD1_UNET,
    SD2_UNET,
    SD3_VAE,
    SD_VAE,
    SDXL_REFINER_UNET,
    SDXL_UNET,
    SDXL_VAE,
    SSD1B_UNET,
    VEGA_UNET,
    WAN_VAE,
    ModelConfig,
)
from smalti.models.language_config import (
    GEMMA2_2B,
    MINISTRAL_3B,
    QWEN3_4B,
    QWEN3_VL_4B,
    QWEN25_7B,
)
from smalti.models.newer_transformer_config import (
    ERNIE_IMAGE,
    FLUX3_KLEIN,
    FLUX3_KLEIN_BASE,
    LONGCAT_IMAGE,
    OVIS_IMAGE,
    QWEN_IMAGE21,
)
from smalti.models.transformer_config import (
    ANIMA,
    CHROMA,
    FLUX2_KLEIN_4B,
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
)

FIRST_23 = replace(OPENCLIP_H, layers=23)
SDXL_TEXTS = {"clip_l": CLIP_L, "clip_g": OPENCLIP_G}
SD3_TEXTS = {"clip_l": replace(CLIP_L, projection=768), "clip_g": OPENCLIP_G, "t5xxl": T5_XXL}
FLUX_TEXTS = {"clip_l": CLIP_L, "t5xxl": T5_XXL}
FLOW = {"prediction": "flow", "default_width": 1024, "default_height": 1024,
        "default_sampler": "euler"}
SD3 = {**FLOW, "flow_shift": 3.0, "default_steps": 28, "default_guidance": 4.5,
       "default_noise": "simple"}
FLUX = {**FLOW, "default_guidance": 1.0, "default_noise": "trailing"}
LARGE = {"default_width": 1024, "default_height": 1024}

QWEN3_SMALL = replace(QWEN3_4B, hidden_size=1024, mlp_size=3072, layers=28, heads=16)
"""That of 0.6 billion parameters."""
QWEN3_OVIS = replace(QWEN3_4B, hidden_size=2048, mlp_size=6144, layers=28, heads=16)
"""That of 1.7 billion parameters."""
PUBLISHED = {  # configuration, and parameters of the denoiser (with learned positions)
    "SD 1.5": (ModelConfig("sd1", {"clip_l": CLIP_L}, SD1_UNET, SD_VAE), 859_520_964),
    "SD 1.5 inpainting": (ModelConfig(
        "sd1", {"clip_l": CLIP_L}, replace(SD1_UNET, in_channels=9), SD_VAE), 859_535_364),
    "SD 2.1": (ModelConfig("sd2", {"clip_h": FIRST_23}, SD2_UNET, SD_VAE), 865_910_724),
    "SDXL": (ModelConfig("sdxl", SDXL_TEXTS, SDXL_UNET, SDXL_VAE, **LARGE), 2_567_463_684),
    "SDXL refiner": (ModelConfig("sdxl-refiner", {"clip_g": OPENCLIP_G}, SDXL_REFINER_UNET,
                                 SDXL_VAE, **LARGE), 2_260_000_000),
    "SSD-1B": (ModelConfig("sdxl", SDXL_TEXTS, SSD1B_UNET, SDXL_VAE, **LARGE), 1_331_000_000),
    "Vega": (ModelConfig("sdxl", SDXL_TEXTS, replace(VEGA_UNET, output_depth=()), SDXL_VAE,
                         **LARGE), 745_000_000),
    "SD 3 medium": (ModelConfig("sd3", SD3_TEXTS, SD3_MEDIUM, SD3_VAE, **SD3), 2_085_000_000),
    "SD 3.5 medium": (ModelConfig("sd3", SD3_TEXTS, SD35_MEDIUM, SD3_VAE, **SD3), 2_470_000_000),
    "SD 3.5 large": (ModelConfig("sd3", SD3_TEXTS, SD35_LARGE, SD3_VAE, **SD3), 8_146_000_000),
    "FLUX.1 dev": (ModelConfig("flux", FLUX_TEXTS, FLUX_DEV, FLUX_VAE, flow_shift=None, **FLUX),
                   11_901_408_320),
    "FLUX.1 schnell": (ModelConfig("flux", FLUX_TEXTS, FLUX_SCHNELL, FLUX_VAE, default_steps=4,
                                   **FLUX), 11_891_178_560),
    "FLUX.1 Fill": (ModelConfig("flux", FLUX_TEXTS, replace(FLUX_DEV, in_channels=96), FLUX_VAE,
                                flow_shift=None, default_distilled_guidance=30.0, **FLUX),
                    11_902_000_000),
    "Chroma": (ModelConfig("chroma", {"t5xxl": T5_XXL}, CHROMA, FLUX_VAE, **{
        **FLUX, "default_steps": 26, "default_guidance": 4.0}), 8_900_000_000),
    "Z-Image": (ModelConfig("z-image", {"qwen3": QWEN3_4B}, Z_IMAGE, FLUX_VAE, **{
        **FLUX, "default_steps": 30, "default_guidance": 4.0, "flow_shift": 6.0}), 6_154_908_736),
    "FLUX.2 klein 4B": (ModelConfig("flux2", {"qwen3": QWEN3_4B}, FLUX2_KLEIN_4B, FLUX2_VAE, **{
        **FLUX, "default_steps": 4, "flow_shift": None}), 3_876_000_000),
    "FLUX.3 klein": (ModelConfig("flux3", {"qwen3vl": QWEN3_VL_4B}, FLUX3_KLEIN, FLUX2_VAE, **{
        **FLUX, "default_steps": 16, "flow_shift": 6.93}), 5_546_000_000),
    "FLUX.3 klein base": (ModelConfig(
        "flux3", {"qwen3vl": QWEN3_VL_4B}, FLUX3_KLEIN_BASE, FLUX2_VAE, **{
            **FLUX, "default_steps": 50, "default_guidance": 3.5, "flow_shift": 6.93}),
        5_536_000_000),
    "Anima": (ModelConfig("anima", {"qwen3": QWEN3_SMALL}, ANIMA, WAN_VAE, **{
        **FLUX, "default_steps": 30, "default_guidance": 4.0, "flow_shift": 3.0}), 2_091_000_000),
    "Krea 2": (ModelConfig("krea2", {"qwen3vl": QWEN3_VL_4B}, KREA2, WAN_VAE, **{
        **FLUX, "default_steps": 28, "default_guidance": 5.5, "flow_shift": None}), 12_820_000_000),
    "ERNIE-Image": (ModelConfig(
        "ernie-image", {"ministral": MINISTRAL_3B}, ERNIE_IMAGE,
        replace(FLUX2_VAE, statistics_eps=1e-5), **{
            **FLUX, "default_steps": 50, "default_guidance": 4.0, "flow_shift": 4.0}),
        8_030_000_000),
    "Ovis-Image": (ModelConfig("ovis-image", {"qwen3": QWEN3_OVIS}, OVIS_IMAGE, FLUX_VAE, **{
        **FLUX, "default_steps": 50, "default_guidance": 5.0, "flow_shift": None}),
        7_370_000_000),
    "LongCat-Image": (ModelConfig("longcat-image", {"qwen25": QWEN25_7B}, LONGCAT_IMAGE, FLUX_VAE,
        **{**FLUX, "default_steps": 50, "default_guidance": 4.5, "flow_shift": None}),
        6_270_000_000),
    "Qwen-Image-2.1": (ModelConfig(
        "qwen-image21", {"qwen3vl": replace(QWEN3_VL_4B, hidden_size=4096, mlp_size=12288)},
        QWEN_IMAGE21, QWEN_IMAGE21_VAE, **{
            **FLUX, "default_steps": 40, "flow_shift": None, "flow_terminal": 0.02}),
        7_115_124_736),
    "Lumina-Image 2": (ModelConfig("lumina2", {"gemma2": GEMMA2_2B}, LUMINA2, FLUX_VAE, **{
        **FLUX, "default_steps": 30, "default_guidance": 4.0, "flow_shift": 6.0}), 2_610_000_000),
    "Qwen-Image": (ModelConfig("qwen-image", {"qwen25": QWEN25_7B}, QWEN_IMAGE, WAN_VAE, **{
        **FLUX, "default_steps": 50, "default_guidance": 4.0, "flow_shift": None,
        "flow_terminal": 0.02, "default_width": 1328, "default_height": 1328}), 20_430_401_088),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model(name: str) -> None:
    config, parameters = PUBLISHED[name]
    shapes = {**unread(config), **expected_tensors(config)}
    kind = detect(shapes)
    assert kind is not None and kind.family == config.family
    found = derive_config(name, families()[kind.family], shapes, Hints(), lambda text: 0,
                          lambda tensor: np.zeros(shapes[tensor], np.float32))
    assert found == config
    inside = "model.diffusion_model."
    counted = sum(math.prod(shape) for tensor, shape in shapes.items() if tensor.startswith(inside))
    rounded = parameters % 1_000_000 == 0
    assert counted == pytest.approx(parameters, rel=0.001) if rounded else counted == parameters


def test_openclip_h_has_a_layer_that_is_not_read() -> None:
    config = PUBLISHED["SD 2.1"][0]
    whole = replace(config, texts={"clip_h": OPENCLIP_H})
    shapes = expected_tensors(whole)
    found = derive_config("x", families()["sd2"], shapes, Hints(), lambda text: 0,
                          lambda tensor: np.zeros(shapes[tensor], np.float32))
    assert found.texts == config.texts
