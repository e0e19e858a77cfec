"""A tiny version of every case of the suite, by the same functions."""

from __future__ import annotations

from peers_models import TINY_FLUX, TINY_TEXT, TINY_UNET, TINY_VAE
from transformer_peers import TINY_FLUX2, TINY_Z_IMAGE

from smalti.benchmark import suite
from smalti.models import LanguageConfig, MobileNetV2Config

TINY_LANGUAGE = LanguageConfig(96, hidden_size=40, mlp_size=56, layers=2, heads=4, kv_heads=2,
                               head_dim=16, qk_norm=True)
TINY_CASES = {case.name: case for case in (
    suite.tiny_cnn("tiny_cnn", "tiny", 8),
    suite.mobilenet_v2("mobilenet_v2", "mobilenet", MobileNetV2Config(multiplier=0.5), 32, 32),
    suite.clip_text("clip_l", "text", TINY_TEXT, 1, 77, bounds={"f32": 1e9}),
    suite.language_text("qwen3", "language", TINY_LANGUAGE, 20),
    suite.unet("unet", "unet", TINY_UNET, 2, 16, 16, 77),
    suite.vae_decode("decode", "decode", TINY_VAE, 4, 4),
    suite.vae_encode("encode", "encode", TINY_VAE, 32, 32),
    suite.flux_double_block("flux_block", "block", TINY_FLUX, 4, 5),
    suite.flux2_single_block("flux2_block", "block", TINY_FLUX2, 4, 5),
    suite.z_image_block("z_image_block", "block", TINY_Z_IMAGE, 4),
)}
