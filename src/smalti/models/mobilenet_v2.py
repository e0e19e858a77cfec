"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381): inverted residuals, linear bottlenecks.

Names are those of transformers' `MobileNetV2ForImageClassification`, which counts the blocks from
the second on: the first belongs to the stem.
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.config import MobileNetV2Config
from smalti.nn import batch_norm, conv2d, linear, relu6

PREFIX = "mobilenet_v2"


def mobilenet_v2_graph(config: MobileNetV2Config, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] -> logits f32[batch, classes].

    Pixels are in [-1, 1], red, green, blue; any size is taken, 224 is the paper's. Raises
    InputError where padding is symmetric and the image smaller than a window.

    >>> from smalti.models.config import MobileNetV2Config
    >>> g = mobilenet_v2_graph(MobileNetV2Config(), batch=1, height=224, width=224)
    >>> g.outputs["logits"].shape, len(g.parameters), g.flops() // 10**6
    ((1, 1000), 262, 627)
    """
    g = Graph("mobilenet_v2")
    x = g.input("image", (batch, config.image_channels, height, width))
    with g.scope(PREFIX):
        with g.scope("conv_stem"):
            x = _layer(x, "first_conv", config.width(config.stem_channels), 3, config, stride=2)
            (_, channels, _, _), *blocks = config.blocks
            x = _bottleneck(x, config.width(channels), 1, 1, config)
        number = 0
        for expansion, channels, repetitions, stride in blocks:
            for i in range(repetitions):
                with g.scope(f"layer.{number}"):
                    x = _bottleneck(x, config.width(channels), expansion,
                                    stride if i == 0 else 1, config)
                number += 1
        head = config.head_channels  # never narrower than in the paper, section 6.1
        x = _layer(x, "conv_1x1", max(head, config.width(head)), 1, config)
    pooled = g.apply("reduce_mean", x, axes=(2, 3), keepdims=0)      # [n, c]
    g.output("logits", linear(pooled, "classifier", config.classes))
    return g


def _bottleneck(x: Value, channels: int, expansion: int, stride: int,
                config: MobileNetV2Config) -> Value:
    """Figure 4 (d): expand, filter each channel by itself, project: x [n, c, h, w]."""
    y = x
    if expansion > 1:
        y = _layer(y, "expand_1x1", expansion * x.shape[1], 1, config)
    y = _layer(y, "conv_3x3", y.shape[1], 3, config, stride=stride, groups=y.shape[1])
    y = _layer(y, "reduce_1x1", channels, 1, config, activation=False)
    return x + y if stride == 1 and x.shape[1] == channels and expansion > 1 else y


def _layer(x: Value, name: str, channels: int, kernel: int, config: MobileNetV2Config, *,
           stride: int = 1, groups: int = 1, activation: bool = True) -> Value:
    """Convolution, batch normalisation and, unless it is the linear bottleneck, ReLU6."""
    with x.graph.scope(name):
        pads = _same_pads(x.shape[2:], kernel, stride) if config.same_padding else None
        y = conv2d(x, "convolution", channels, kernel, stride=stride, pads=pads, groups=groups,
                   bias=False)
        y = batch_norm(y, "normalization", config.eps)
        return relu6(y) if activation else y


def _same_pads(size: tuple[int, ...], kernel: int, stride: int) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) so that every stride-th pixel has a window, the rest behind."""
    total = [max(kernel - (extent % stride or stride), 0) for extent in size]
    top, left = (pad // 2 for pad in total)
    return top, left, total[0] - top, total[1] - left
