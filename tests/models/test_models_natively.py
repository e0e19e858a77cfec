"""Tiny models of every kind as native code, against the interpreter: programs, or kernel by kernel
where kernels are emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import emulated
import pytest
from built_modules import built
from native_regions import LEVELS, arrays_for, check_graph, relative_error
from peers_models import TINY_TEXT, TINY_UNET, TINY_VAE

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.graph import Graph, evaluate
from smalti.models import (
    CausalVaeConfig,
    ControlNetConfig,
    RrdbConfig,
    SrvggConfig,
    TaesdConfig,
    causal_decoder_graph,
    causal_encoder_graph,
    clip_text_graph,
    controlnet_graph,
    taesd_decoder_graph,
    taesd_encoder_graph,
    unet_graph,
    upscaler_graph,
    vae_decoder_graph,
    vae_encoder_graph,
)
from smalti.runtime.cpu.program import NativeProgram

TINY_SDXL_UNET = replace(
    TINY_UNET, attention=(False, True), transformer_depth=(0, 2), head_dim=16, vector_dim=40,
    linear_projection=True, res_blocks=1)
TINY_UNION = ControlNetConfig(TINY_SDXL_UNET, types=6, type_sinusoids=8, pooled=True)
TINY_OPENCLIP = replace(TINY_TEXT, activation="gelu", projection=40)
TINY_SD3_VAE = replace(TINY_VAE, block_channels=(16, 32), z_channels=16, quant_conv=False)
TINY_WAN_VAE = CausalVaeConfig(channels=16, block_channels=(16, 32), res_blocks=1, z_channels=4)
TINY_TAESD = TaesdConfig(z_channels=4, channels=16, decoder_blocks=(2, 1), encoder_blocks=(1, 2))
TINY_RRDB = RrdbConfig(channels=16, growth=8, blocks=1)
MODELS: dict[str, Callable[[], Graph]] = {
    "SDXL UNet": lambda: unet_graph(TINY_SDXL_UNET, 2, 6, 4, tokens=5),
    "controlled UNet": lambda: unet_graph(TINY_UNET, 1, 4, 6, tokens=5, control=True),
    "ControlNet": lambda: controlnet_graph(ControlNetConfig(TINY_UNET), 1, 4, 6, tokens=5),
    "union of ControlNets": lambda: controlnet_graph(TINY_UNION, 2, 6, 4, tokens=5, hints=2),
    "OpenCLIP": lambda: clip_text_graph(TINY_OPENCLIP, 2, 9, skip=2, final_norm=False,
                                        pooled=True, embedded=True),
    "16 channels to a picture": lambda: vae_decoder_graph(TINY_SD3_VAE, 1, 4, 6),
    "a picture to 16 channels": lambda: vae_encoder_graph(TINY_SD3_VAE, 1, 8, 12),
    "a frame of 4 channels to a picture": lambda: causal_decoder_graph(TINY_WAN_VAE, 1, 4, 6),
    "a picture to a frame": lambda: causal_encoder_graph(TINY_WAN_VAE, 1, 8, 12),
    "TAESD, decoding": lambda: taesd_decoder_graph(TINY_TAESD, 1, 4, 6),
    "TAESD, encoding": lambda: taesd_encoder_graph(TINY_TAESD, 1, 8, 12),
    "ESRGAN": lambda: upscaler_graph(TINY_RRDB, 1, 6, 5),
    "Real-ESRGAN x2": lambda: upscaler_graph(replace(TINY_RRDB, unshuffle=2), 1, 6, 4),
    "compact upscaler": lambda: upscaler_graph(SrvggConfig(16, convolutions=2), 1, 6, 5),
}


@pytest.mark.parametrize("model", MODELS)
def test_native_code_computes_the_same(model: str) -> None:
    graph = MODELS[model]()
    if emulated.asked:
        for name in LEVELS:
            check_graph(graph, name)
        return
    inputs, parameters = arrays_for(graph)
    expected = evaluate(graph, inputs, parameters)
    image = built(graph, level(LEVELS[-1]), limits(level(LEVELS[-1]), 1), "f32")
    program = NativeProgram(image, 1)
    program.bind(parameters.__getitem__)
    assert "host" not in program.explain(), "everything has a kernel"
    found = program.run(inputs)
    for name, array in expected.items():
        assert relative_error(found[name], array) < 1e-5, name
