"""Chroma (Lodestone Rock 2025): the blocks of Flux.1, modulated by one small network.

What modulates all blocks depends on time alone, so it is a graph of its own, which runs once for
each step of a schedule and not once for each evaluation. Names are those of the original
checkpoint (`distilled_guidance_layer.in_proj.weight`, ...).
"""

from __future__ import annotations

import math

import numpy as np

from smalti.graph import Graph
from smalti.models.flux import PREFIX, flux_graph
from smalti.models.transformer_config import ChromaConfig
from smalti.nn import linear, rms_norm, silu, timestep_embedding

INDEX_UNIT = 1000.0
"""What the number of a vector is multiplied by before it becomes sinusoids, as times are."""
PERIOD_MAX = 10000.0
"""Of these sinusoids, as of those of times."""


def chroma_graph(config: ChromaConfig, batch: int, height: int, width: int, length: int, *,
                 masked: bool = False) -> Graph:
    """`flux_graph` with `modulated`: latent, context, modulation, and with `masked` mask.

    The model was trained to see the tokens of the prompt, its end, and one filling token: these are
    1 in the mask. The others may as well be left out, as text stands at no place.

    >>> from smalti.models import CHROMA
    >>> g = chroma_graph(CHROMA, batch=1, height=128, width=96, length=64)
    >>> list(g.inputs), g.inputs["modulation"].shape
    (['latent', 'context', 'modulation'], (1, 344, 3072))
    """
    return flux_graph(config, batch, height, width, length, modulated=True, masked=masked)


def chroma_modulation_graph(config: ChromaConfig, batch: int = 1) -> Graph:
    """timesteps f32[batch] from 0 to 1000 -> modulation f32[batch, modulations, hidden_size].

    Vectors are in the order of `flux_modulation_graph`.

    >>> from smalti.models import CHROMA
    >>> g = chroma_modulation_graph(CHROMA)
    >>> g.outputs["modulation"].shape, len(g.parameters)
    ((1, 344, 3072), 29)
    """
    g = Graph("chroma_modulation")
    count, features = config.modulations, config.approximator_features
    time = timestep_embedding(g.input("timesteps", (batch,)), features // 4)
    guidance = timestep_embedding(g.constant(np.zeros(batch, np.float32)), features // 4)
    both = g.apply("concat", time, guidance, axis=1).reshape(batch, 1, features // 2)
    index = g.constant(_index_embedding(count, features // 2))
    x = g.apply("concat", g.apply("expand", both, shape=(batch, count, features // 2)),
                g.apply("expand", index, shape=(batch, *index.shape)), axis=2)
    with g.scope(f"{PREFIX}.distilled_guidance_layer"):
        x = linear(x, "in_proj", config.approximator_size)
        for i in range(config.approximator_layers):
            y = rms_norm(x, f"norms.{i}", config.eps, weight="scale")
            with g.scope(f"layers.{i}"):
                y = silu(linear(y, "in_layer", config.approximator_size))
                x = x + linear(y, "out_layer", config.approximator_size)
        g.output("modulation", linear(x, "out_proj", config.hidden_size))
    return g


def _index_embedding(count: int, features: int) -> np.ndarray:
    """Cosines and sines of 1000 times the number of each vector f32[count, features].

    Angles of 10^5 radians keep two digits in f32; they are rounded as the model met them when it
    was trained.
    """
    half = features // 2
    exponents = np.float32(-math.log(PERIOD_MAX)) * np.arange(half, dtype=np.float32)
    angles = (np.arange(count, dtype=np.float32)[:, None] * np.float32(INDEX_UNIT)
              * np.exp(exponents / np.float32(half)))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
