"""Graphs that MLIR export is tried on: every operation alone, and tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tiny_model import TINY

from smalti.benchmark.tiny_cnn import tiny_cnn_graph
from smalti.graph import Graph
from smalti.graph.operation import DTYPES, FLOATS
from smalti.models import (
    FluxConfig,
    MobileNetV2Config,
    clip_text_graph,
    flux_double_block_graph,
    mobilenet_v2_graph,
    unet_graph,
    vae_decoder_graph,
    vae_encoder_graph,
)

UNARY = ("neg", "abs", "exp", "sin", "cos", "tanh", "erf", "sqrt", "reciprocal", "sigmoid", "relu",
         "silu", "quick_gelu", "gelu", "gelu_tanh")
BINARY = ("add", "sub", "mul", "div", "max", "min")


def alone(operation: str, *shapes: tuple[int, ...], dtype: str = "f32",
          **attributes: Any) -> Callable[[], Graph]:
    """A graph of one operation on inputs of `shapes`."""
    def build() -> Graph:
        g = Graph(operation)
        inputs = [g.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
        g.output("y", g.apply(operation, *inputs, **attributes))
        return g
    return build


def _gather() -> Graph:
    g = Graph("gather")
    g.output("y", g.apply("gather", g.input("x0", (5, 3)), g.input("rows", (2, 4), "i32")))
    return g


IMAGE, WEIGHT = (2, 6, 7, 5), (4, 6, 3, 3)
OPERATIONS_ALONE: Mapping[str, Callable[[], Graph]] = {
    **{name: alone(name, (2, 3)) for name in UNARY},
    **{name: alone(name, (2, 1, 3), (4, 1)) for name in BINARY},
    **{f"{name} of integers": alone(name, (2, 3), (3,), dtype="i32")
       for name in ("add", "sub", "mul", "max", "min")},
    **{f"cast {given} to {to}": alone("cast", (2, 3), dtype=given, to=to)
       for given, to in (("f32", "f16"), ("f16", "bf16"), ("f32", "i32"), ("i32", "f32"),
                         ("bool", "f32"), ("f32", "bool"), ("i64", "i32"), ("i32", "i64"),
                         ("f32", "f32"))},
    "reshape": alone("reshape", (2, 3, 4), shape=(3, 8)),
    "reshape to ones": alone("reshape", (6,), shape=(1, 2, 1, 3, 1)),
    "reshape of one": alone("reshape", (1, 1), shape=()),
    "reshape to one": alone("reshape", (), shape=(1, 1)),
    "transpose": alone("transpose", (2, 3, 4), perm=(2, 0, 1)),
    "expand": alone("expand", (3, 1), shape=(2, 3, 4)),
    "concat": alone("concat", (2, 3), (2, 1), axis=-1),
    "slice": alone("slice", (4, 5), axis=1, start=1, end=4),
    "resize": alone("resize", (1, 2, 3, 3), scales=(1, 1, 2, 2)),
    "gather": _gather,
    "mat_mul": alone("mat_mul", (2, 3, 4), (4, 5)),
    "mat_mul of batches": alone("mat_mul", (2, 1, 3, 4), (6, 4, 5)),
    "conv": alone("conv", IMAGE, WEIGHT, pads=(1, 1, 1, 1)),
    "conv with steps": alone("conv", IMAGE, WEIGHT, (4,), pads=(0, 1, 2, 1), strides=(2, 1)),
    "conv with holes": alone("conv", IMAGE, WEIGHT, dilations=(2, 1)),
    "conv in groups": alone("conv", IMAGE, (4, 3, 3, 3), (4,), group=2),
    "depthwise conv": alone("conv", IMAGE, (6, 1, 3, 3), group=6),
    "reduce_sum": alone("reduce_sum", (2, 3, 4), axes=(0, 2), keepdims=1),
    "reduce_mean": alone("reduce_mean", (2, 3, 4), axes=(1,), keepdims=0),
    "reduce_max": alone("reduce_max", (2, 3), axes=(0, 1), keepdims=0),
    "softmax": alone("softmax", (2, 5), axis=-1),
    "layer_normalization": alone("layer_normalization", (2, 4), (4,), (4,)),
    "rms_normalization": alone("rms_normalization", (2, 4), (4,)),
    "group_normalization": alone("group_normalization", (2, 4, 3, 3), (4,), (4,), num_groups=2),
    "attention": alone("attention", (2, 3, 8), (2, 5, 8), (2, 5, 8), num_heads=2),
    "causal attention": alone("attention", (1, 4, 8), (1, 4, 8), (1, 4, 8), num_heads=2,
                              is_causal=1),
    "rotary_embedding": alone("rotary_embedding", (1, 3, 8), (1, 3, 2), (1, 3, 2), num_heads=2),
}
"""A graph for each operation, and for each way in which one is written differently."""


def tiny_models() -> list[Callable[[], Graph]]:
    """Builders of models of a few channels."""
    def mobilenet_v2() -> Graph:
        few = MobileNetV2Config(blocks=((1, 16, 1, 1), (6, 24, 2, 2)))
        return mobilenet_v2_graph(few, 1, 32, 32)

    def clip_text() -> Graph:
        return clip_text_graph(TINY.texts["clip_l"], 1)

    def decoder() -> Graph:
        return vae_decoder_graph(TINY.vae, 1, 8, 8)

    def encoder() -> Graph:
        return vae_encoder_graph(TINY.vae, 1, 16, 16)

    def unet() -> Graph:
        return unet_graph(TINY.denoiser, 2, 8, 8)

    def flux_block() -> Graph:
        return flux_double_block_graph(FluxConfig(64, 4, 128), 16, 8)

    return [tiny_cnn_graph, mobilenet_v2, clip_text, decoder, encoder, unet, flux_block]


def arrays(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs and parameters: positive, so that roots and variances are those of numbers."""
    random = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, value in {**graph.inputs, **graph.parameters}.items():
        if value.dtype in FLOATS:
            fan = max(1, int(np.prod(value.shape[1:])))
            numbers = 4 * np.abs(random.standard_normal(value.shape)) / fan ** 0.5 + 0.1
        else:
            numbers = random.integers(0, 2 if value.dtype == "bool" else 5, value.shape)
        found[name] = np.asarray(numbers, DTYPES[value.dtype])
    return found
