"""Tiny models of every kind that programs are made of, and numbers for them."""

from __future__ import annotations

import numpy as np
from native_regions import arrays_for
from peers_models import TINY_TEXT, TINY_UNET, TINY_VAE

from smalti.graph import Graph
from smalti.models import (
    MobileNetV2Config,
    clip_text_graph,
    mobilenet_v2_graph,
    unet_graph,
    vae_decoder_graph,
    vae_encoder_graph,
)

MODELS = {
    "text": lambda: clip_text_graph(TINY_TEXT, 2),
    "unet": lambda: unet_graph(TINY_UNET, 2, 8, 6, tokens=5),
    "decoder": lambda: vae_decoder_graph(TINY_VAE, 1, 4, 4),
    "encoder": lambda: vae_encoder_graph(TINY_VAE, 1, 16, 16),
    "mobile": lambda: mobilenet_v2_graph(TINY_MOBILE, 2, 37, 44),
}
TINY_MOBILE = MobileNetV2Config(classes=10, multiplier=0.5, head_channels=200,
                                blocks=((1, 16, 1, 1), (6, 24, 2, 2), (6, 64, 2, 2)))


def arrays(graph: Graph) -> tuple[dict, dict]:
    """Inputs and parameters; scales of normalisations are around 1, variances positive."""
    inputs, parameters = arrays_for(graph)
    for name in parameters:
        if parameters[name].ndim == 1 and name.endswith("weight"):
            parameters[name] += 1
        if name.endswith("running_var"):
            parameters[name] = np.exp(parameters[name])
    return inputs, parameters
