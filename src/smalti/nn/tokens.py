"""Images as sequences of tokens, one a pixel or a square of pixels, in rows, and back.

With one a pixel, both forms are the same memory channels-last, so that nothing is moved there.
"""

from __future__ import annotations

from smalti.graph import Value


def to_tokens(x: Value) -> Value:
    """[n, c, h, w] -> [n, h * w, c].

    >>> from smalti.graph import Graph
    >>> to_tokens(Graph().input("x", (2, 64, 8, 6)))
    <result of transpose f32[2, 48, 64]>
    """
    n, channels, height, width = x.shape
    return x.reshape(n, channels, height * width).transpose(0, 2, 1)


def from_tokens(x: Value, height: int, width: int) -> Value:
    """[n, h * w, c] -> [n, c, h, w]. Raises InputError when h * w is not the number of tokens.

    >>> from smalti.graph import Graph
    >>> from_tokens(Graph().input("x", (2, 48, 64)), 8, 6)
    <result of reshape f32[2, 64, 8, 6]>
    """
    n, _, channels = x.shape
    return x.transpose(0, 2, 1).reshape(n, channels, height, width)


def patches(x: Value, side: int, *, pixels_first: bool = False) -> Value:
    """Squares of `side` pixels as tokens: [n, c, h, w] -> [n, h / side * w / side, c * side^2].

    Channels of a token are those of x, for each of them the pixels in rows; with `pixels_first` the
    pixels in rows, for each of them the channels.

    >>> from smalti.graph import Graph
    >>> patches(Graph().input("x", (1, 16, 8, 6)), 2)
    <result of reshape f32[1, 12, 64]>
    """
    n, channels, height, width = x.shape
    y = x.reshape(n, channels, height // side, side, width // side, side)
    order = (0, 2, 4, 3, 5, 1) if pixels_first else (0, 2, 4, 1, 3, 5)
    return y.transpose(*order).reshape(n, -1, channels * side * side)


def from_patches(x: Value, side: int, height: int, width: int, *,
                 pixels_first: bool = False) -> Value:
    """The inverse of `patches`: [n, t, c * side^2] -> [n, c, height, width].

    >>> from smalti.graph import Graph
    >>> from_patches(Graph().input("x", (1, 12, 64)), 2, 8, 6)
    <result of reshape f32[1, 16, 8, 6]>
    """
    outer = (x.shape[0], height // side, width // side)
    if pixels_first:
        y = x.reshape(*outer, side, side, -1).transpose(0, 5, 1, 3, 2, 4)
    else:
        y = x.reshape(*outer, -1, side, side).transpose(0, 3, 1, 4, 2, 5)
    return y.reshape(outer[0], -1, height, width)
