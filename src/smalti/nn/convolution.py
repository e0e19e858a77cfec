"""Convolution of images [n, c, h, w], and what makes them larger and smaller."""

from __future__ import annotations

from smalti.graph import Value


def conv2d(x: Value, name: str, channels: int, kernel: int, *, stride: int = 1,
           pads: tuple[int, int, int, int] | None = None, groups: int = 1,
           bias: bool = True) -> Value:
    """Cross-correlation plus bias: x [n, c, h, w] -> [n, channels, h', w'].

    `pads` is (top, left, bottom, right) in pixels, zeros; None pads kernel // 2 on every side,
    which keeps the size at stride 1 and halves it at stride 2 and an even size. Of `groups` equal
    groups of channels each is computed from one of the input's. Reads `name.weight`
    [channels, c / groups, kernel, kernel] and, with `bias`, `name.bias` [channels]. Raises
    InputError when the kernel is larger than the padded image, or `groups` does not divide the
    channels.

    >>> from smalti.graph import Graph
    >>> x = Graph().input("x", (1, 4, 64, 48))
    >>> conv2d(x, "conv_in", 320, 3), conv2d(x, "op", 4, 3, stride=2)
    (<result of conv f32[1, 320, 64, 48]>, <result of conv f32[1, 4, 32, 24]>)
    """
    g = x.graph
    with g.scope(name):
        weight = g.parameter("weight", (channels, x.shape[1] // groups, kernel, kernel))
        offset = [g.parameter("bias", (channels,))] if bias else []
        return g.apply("conv", x, weight, *offset, strides=(stride, stride), group=groups,
                       pads=(kernel // 2,) * 4 if pads is None else pads)


def upsample_nearest(x: Value, factor: int = 2) -> Value:
    """Every pixel `factor` times in both directions: x [n, c, h, w] -> [n, c, f h, f w].

    >>> from smalti.graph import Graph
    >>> upsample_nearest(Graph().input("x", (1, 4, 8, 6)))
    <result of resize f32[1, 4, 16, 12]>
    """
    return x.graph.apply("resize", x, scales=(1, 1, factor, factor))


def pixel_shuffle(x: Value, factor: int) -> Value:
    """Channels as pixels, (c, dy, dx) in their order: x [n, c f f, h, w] -> [n, c, f h, f w].

    Raises InputError when f f does not divide the channels. Shi et al. 2016, arXiv:1609.05158.

    >>> from smalti.graph import Graph
    >>> pixel_shuffle(Graph().input("x", (1, 48, 8, 6)), 4)
    <result of reshape f32[1, 3, 32, 24]>
    """
    n, channels, height, width = x.shape
    parts = x.reshape(n, channels // factor**2, factor, factor, height, width)
    return parts.transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, factor * height, factor * width)


def pixel_unshuffle(x: Value, factor: int) -> Value:
    """What `pixel_shuffle` undoes: x [n, c, f h, f w] -> [n, c f f, h, w].

    Raises InputError when f does not divide the size.

    >>> from smalti.graph import Graph
    >>> pixel_unshuffle(Graph().input("x", (1, 3, 32, 24)), 4)
    <result of reshape f32[1, 48, 8, 6]>
    """
    n, channels, height, width = x.shape
    parts = x.reshape(n, channels, height // factor, factor, width // factor, factor)
    return parts.transpose(0, 1, 3, 5, 2, 4).reshape(
        n, channels * factor**2, height // factor, width // factor)
