"""What reads pictures in Qwen2.5-VL (Bai et al. 2025, arXiv:2502.13923, section 2.1.1), for models
that change a picture as a prompt says.

Patches of 14 x 14 pixels see those in a window of 8 x 8 patches, in a few blocks all others; at the
end squares of 2 x 2 become one token of the language model. Names are those of transformers'
`Qwen2_5_VisionTransformerPretrainedModel`, but that the kernel over two frames of a film, which a
picture has both of the same, is a matrix for each.

Patches stand in the order of the squares that they end in, row by row, and in a square likewise.
transformers puts those of a window beside each other and back again; attention does not mind the
order, so here they stay, and scores of patches in other windows are hidden.
"""

from __future__ import annotations

import operator
from functools import reduce

import numpy as np

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.language_config import ReduxConfig, VisionConfig
from smalti.nn import gelu, linear, rms_norm, silu
from smalti.nn.attention import UNSEEN

PREFIX = "text_encoders.qwen25.transformer.visual"


def qwen_vision_graph(config: VisionConfig, batch: int, height: int, width: int, *,
                      prefix: str = PREFIX) -> Graph:
    """patches f32[batch, height * width, patch_size] -> tokens f32[batch, height * width / 4,
    out_size].

    `height` and `width` are those of the picture in patches, which come in the order of squares.
    The numbers of a patch are those of its channels, of each of them rows and columns (see
    `in_patches`). Raises InputError for sides that squares do not fill.

    >>> from smalti.models import QWEN25_VISION
    >>> g = qwen_vision_graph(QWEN25_VISION, 1, 28, 28)
    >>> g.outputs["tokens"].shape, len(g.parameters)
    ((1, 196, 3584), 391)
    """
    side = config.square
    if height % side or width % side or min(height, width) < 1:
        raise InputError(f"a picture of {height} x {width} patches (height x width) is given; "
                         f"{side} x {side} of them become a token, so both must be positive "
                         f"multiples of {side}")
    g, count = Graph("qwen_vision"), height * width
    x = g.input("patches", (batch, count, config.patch_size))
    rows, columns = (g.constant(each.astype(np.float32)) for each in _places(height, width, side))
    cos, sin = _angles(rows, columns, config)
    other = _other_windows(rows, columns, config)
    with g.scope(prefix):
        with g.scope("patch_embed.proj"):
            frames = [linear(x, str(i), config.hidden_size, bias=False)
                      for i in range(config.frames)]
            x = reduce(operator.add, frames)
        for i in range(config.blocks):
            with g.scope(f"blocks.{i}"):
                x = _block(x, cos, sin, None if i in config.seeing_all else other, config)
        with g.scope("merger"):
            x = rms_norm(x, "ln_q", config.eps)
            x = x.reshape(batch, count // side**2, side**2 * config.hidden_size)
            x = gelu(linear(x, "mlp.0", x.shape[2]))
            g.output("tokens", linear(x, "mlp.2", config.out_size))
    return g


def in_patches(pixels: np.ndarray, config: VisionConfig | ReduxConfig) -> np.ndarray:
    """Pixels [channels, height, width] as patches [count, patch_size], in the order of squares.

    >>> from smalti.models import QWEN25_VISION
    >>> in_patches(np.zeros((3, 56, 84)), QWEN25_VISION).shape
    (24, 588)
    """
    channels, height, width = pixels.shape
    side, patch = config.square, config.patch
    squares = pixels.reshape(channels, height // (side * patch), side, patch,
                             width // (side * patch), side, patch)
    return squares.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, config.patch_size)


def _places(height: int, width: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each patch, in the order of squares."""
    grid = np.indices((height, width)).reshape(2, height // side, side, width // side, side)
    rows, columns = grid.transpose(0, 1, 3, 2, 4).reshape(2, -1)
    return rows, columns


def _angles(rows: Value, columns: Value, config: VisionConfig) -> tuple[Value, Value]:
    """Cosines and sines [1, t, d / 2]: a quarter of a head turns with the row, one with the
    column, each against a quarter of the other half."""
    g, quarter = rows.graph, config.head_dim // 2
    steps = g.constant((config.rotary_base ** (-np.arange(0, quarter, 2) / quarter)).astype(
        np.float32))
    angles = g.apply("concat", rows.reshape(-1, 1) * steps, columns.reshape(-1, 1) * steps, axis=1)
    angles = angles.reshape(1, *angles.shape)
    return g.apply("cos", angles), g.apply("sin", angles)


def _other_windows(rows: Value, columns: Value, config: VisionConfig) -> Value:
    """What is added to scores [1, 1, t, t]: nothing within a window, what hides them elsewhere."""
    g, apart = rows.graph, []
    for places in (rows, columns):
        window = g.apply("floor", places * (1 / config.window))
        between = window.reshape(1, 1, -1, 1) - window.reshape(1, 1, 1, -1)
        apart.append(g.apply("abs", between))
    return g.apply("min", apart[0] + apart[1], g.constant(1.0)) * -UNSEEN


def _block(x: Value, cos: Value, sin: Value, hidden: Value | None, config: VisionConfig) -> Value:
    """x + attention(norm(x)), then x + mlp(norm(x)); x [n, t, c]."""
    g, width = x.graph, config.hidden_size
    qkv = linear(rms_norm(x, "norm1", config.eps), "attn.qkv", 3 * width)
    q, k, v = (g.apply("slice", qkv, axis=2, start=i * width, end=(i + 1) * width)
               for i in range(3))
    q, k = (g.apply("rotary_embedding", each, cos, sin, num_heads=config.heads) for each in (q, k))
    addend = [] if hidden is None else [hidden]
    mixed = g.apply("attention", q, k, v, *addend, num_heads=config.heads)
    x = x + linear(mixed, "attn.proj", width)
    y = rms_norm(x, "norm2", config.eps)
    with g.scope("mlp"):
        gate, y = (linear(y, name, config.mlp_size) for name in ("gate_proj", "up_proj"))
        return x + linear(silu(gate) * y, "down_proj", width)
