"""Chroma (Lodestone Rock 2025): the blocks of Flux.1, modulated by one small network.

What modulates all blocks depends on time alone, so it is a graph of its own, which runs once for
each step of a schedule and not once for each evaluation. Names are those of the original
checkpoint (`distilled_guidance_layer.in_proj.weight`, ...).
"""

from __future__ import annotations

import math

import numpy as np

from smalti.graph import Graph, Value
from smalti.models.flux import (
    PATCH,
    PREFIX,
    control_inputs,
    controlled,
    double_block,
    embedded,
    final_layer,
    rows,
    single_block,
)
from smalti.models.transformer_config import ChromaConfig
from smalti.nn import linear, rms_norm, silu, timestep_embedding

UNSEEN = 1e38
"""What is taken off the score of a masked token: attention reads it as minus infinity."""
INDEX_UNIT = 1000.0
PERIOD_MAX = 10000.0


def chroma_graph(config: ChromaConfig, batch: int, height: int, width: int, length: int, *,
                 masked: bool = False, control: tuple[int, int] = (0, 0),
                 control_in_turn: bool = False) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], context f32[batch, length, context_dim],
    modulation f32[batch, config.modulations, hidden_size] of `chroma_modulation_graph` ->
    prediction f32[batch, out_channels, height, width], the velocity from picture to noise. With
    `masked` an input `mask` f32[batch, length] is 1 for tokens of the text that others see: those
    of the prompt, its end, and one filling token. `control` is that of `flux_graph`. Raises
    InputError for an odd size.

    >>> from smalti.models import CHROMA
    >>> g = chroma_graph(CHROMA, batch=1, height=128, width=96, length=64)
    >>> g.inputs["modulation"].shape, g.outputs["prediction"].shape
    ((1, 344, 3072), (1, 16, 128, 96))
    """
    g, tokens = Graph("chroma"), height // PATCH * (width // PATCH)
    latent = g.input("latent", (batch, config.in_channels, height, width))
    context = g.input("context", (batch, length, config.context_dim))
    vectors = g.input("modulation", (batch, config.modulations, config.hidden_size))
    mask = None
    if masked:
        seen = g.apply("concat", g.input("mask", (batch, length)), g.apply(
            "expand", g.constant(1.0), shape=(batch, tokens)), axis=1)
        mask = (seen.reshape(batch, 1, 1, length + tokens) - 1.0) * UNSEEN
    controls = control_inputs(g, (batch, tokens, config.hidden_size), control)
    images = 3 * config.single_blocks
    texts = images + 6 * config.double_blocks
    with g.scope(PREFIX):
        img, txt, cos, sin = embedded(latent, context, config)
        for i in range(config.double_blocks):
            with g.scope(f"double_blocks.{i}"):
                parts = {"img": _vectors(vectors, images + 6 * i, 6),
                         "txt": _vectors(vectors, texts + 6 * i, 6)}
                img, txt = double_block(img, txt, parts, cos, sin, config, mask)
            img = controlled(img, controls[0], i, config.double_blocks, control_in_turn)
        x = g.apply("concat", txt, img, axis=1)                          # [n, t, c]
        for i in range(config.single_blocks):
            with g.scope(f"single_blocks.{i}"):
                x = single_block(x, _vectors(vectors, 3 * i, 3), cos, sin, config, mask)
            x = controlled(x, controls[1], i, config.single_blocks, control_in_turn)
        with g.scope("final_layer"):
            shift, scale = _vectors(vectors, config.modulations - 2, 2)
            g.output("prediction", final_layer(rows(x, length, x.shape[1]), shift, scale, height,
                                               width, config))
    return g


def chroma_modulation_graph(config: ChromaConfig, batch: int = 1) -> Graph:
    """timesteps f32[batch] from 0 to 1000 -> modulation f32[batch, modulations, hidden_size].

    The vectors of all single blocks come first, then those of the image in double blocks, those of
    the text, and those of the last layer; of each block in the order shift, scale, gate.

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


def _vectors(x: Value, start: int, count: int) -> list[Value]:
    """Vectors `start` to `start + count` of x [n, v, c], each [n, c]."""
    n, _, width = x.shape
    return [rows(x, start + i, start + i + 1).reshape(n, width) for i in range(count)]
