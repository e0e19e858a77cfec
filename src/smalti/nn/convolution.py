"""Convolution and nearest-neighbour upsampling of images [n, c, h, w]."""

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
    (<result conv f32[1, 320, 64, 48]>, <result conv f32[1, 4, 32, 24]>)
    """
    g = x.graph
    with g.scope(name):
        weight = g.parameter("weight", (channels, x.shape[1] // groups, kernel, kernel))
        offset = [g.parameter("bias", (channels,))] if bias else []
        return g.apply("conv", x, weight, *offset, strides=(stride, stride), group=groups,
                       pads=(kernel // 2,) * 4 if pads is None else pads)


def upsample_nearest(x: Value) -> Value:
    """Every pixel twice in both directions: x [n, c, h, w] -> [n, c, 2 h, 2 w].

    >>> from smalti.graph import Graph
    >>> upsample_nearest(Graph().input("x", (1, 4, 8, 6)))
    <result resize f32[1, 4, 16, 12]>
    """
    return x.graph.apply("resize", x, scales=(1, 1, 2, 2))
