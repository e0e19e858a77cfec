"""Images as sequences of tokens, one a pixel in rows, and back.

Channels-last both forms are the same memory, so neither function costs anything there.
"""

from __future__ import annotations

from smalti.graph import Value


def to_tokens(x: Value) -> Value:
    """[n, c, h, w] -> [n, h * w, c].

    >>> from smalti.graph import Graph
    >>> to_tokens(Graph().input("x", (2, 64, 8, 6)))
    <result transpose f32[2, 48, 64]>
    """
    n, channels, height, width = x.shape
    return x.reshape(n, channels, height * width).transpose(0, 2, 1)


def from_tokens(x: Value, height: int, width: int) -> Value:
    """[n, h * w, c] -> [n, c, h, w]. Raises InputError when h * w is not the number of tokens.

    >>> from smalti.graph import Graph
    >>> from_tokens(Graph().input("x", (2, 48, 64)), 8, 6)
    <result reshape f32[2, 64, 8, 6]>
    """
    n, _, channels = x.shape
    return x.transpose(0, 2, 1).reshape(n, channels, height, width)
