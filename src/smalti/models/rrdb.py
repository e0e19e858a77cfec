"""ESRGAN (Wang et al. 2018, arXiv:1809.00219), whose generator is made of residual dense blocks.

Real-ESRGAN (arXiv:2107.10833) is the same network, for a scale of less than 4 behind a
rearrangement of pixels. Names are those of its code (BasicSR `rrdbnet_arch.py`).
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.config import RrdbConfig
from smalti.nn import conv2d, leaky_relu, pixel_unshuffle, upsample_nearest

SLOPE = 0.2
RESIDUAL = 0.2
"""What a block adds is made smaller, which keeps deep networks stable (section 3.1)."""


def rrdb_graph(config: RrdbConfig, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] in [0, 1] -> image f32[batch, 3, s height, s width].

    s is `config.scale`; what is made may lie outside [0, 1]. Raises InputError when
    `config.unshuffle` does not divide the size.

    >>> from smalti.models.config import RrdbConfig
    >>> g = rrdb_graph(RrdbConfig(), batch=1, height=64, width=48)
    >>> g.outputs["image"].shape, len(g.parameters)
    ((1, 3, 256, 192), 702)
    """
    factor = config.unshuffle
    if height % factor or width % factor or min(height, width) < 1:
        raise InputError(f"an image of {height} x {width} pixels (height x width) is given; this "
                         f"upscaler needs positive multiples of {factor}")
    g = Graph("rrdb")
    x = g.input("image", (batch, config.image_channels, height, width))
    if factor > 1:
        x = pixel_unshuffle(x, factor)
    first = y = conv2d(x, "conv_first", config.channels, 3)                # [n, c, h, w]
    for i in range(config.blocks):
        with g.scope(f"body.{i}"):
            y = _block(y, config)
    x = first + conv2d(y, "conv_body", config.channels, 3)
    for i in range(config.doublings):
        x = leaky_relu(conv2d(upsample_nearest(x), f"conv_up{i + 1}", config.channels, 3), SLOPE)
    x = leaky_relu(conv2d(x, "conv_hr", config.channels, 3), SLOPE)
    g.output("image", conv2d(x, "conv_last", config.image_channels, 3))
    return g


def _block(x: Value, config: RrdbConfig) -> Value:
    """Three dense blocks in a residual one (figure 4); x [n, c, h, w]."""
    y = x
    for name in ("rdb1", "rdb2", "rdb3"):
        with x.graph.scope(name):
            y = _dense(y, config)
    return x + y * RESIDUAL


def _dense(x: Value, config: RrdbConfig) -> Value:
    """Each convolution reads what all before it made; x [n, c, h, w]."""
    g, known = x.graph, x
    for i in range(1, 5):
        y = leaky_relu(conv2d(known, f"conv{i}", config.growth, 3), SLOPE)
        known = g.apply("concat", known, y, axis=1)                        # [n, c + i growth, h, w]
    return x + conv2d(known, "conv5", config.channels, 3) * RESIDUAL
