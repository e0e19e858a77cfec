"""Kernels of attention, of any layout that a partition makes."""

from __future__ import annotations

from smalti.kernel import build
from smalti.kernel.form import Buffer, Kernel


def attention(tokens: int, keys: int, heads: int = 2, depth: int = 8, width: int = 0,
              batch: int = 1, causal: bool = False, mask: str = "", dtype: str = "f32",
              scale: float = 0.0, apart: int = 0, group: int = 1) -> Kernel:
    """Heads side by side in a token, and `apart` elements between tokens; the mask has the axes
    that are named, of n, h, s and t; a `group` of heads of queries shares one of keys."""
    width = width or depth

    def buffer(name: str, role: str, rows: int, channels: int) -> Buffer:
        count = heads // group if name in "kv" else heads
        token = count * channels + apart
        return Buffer(name, role, (batch, rows, count, channels),
                      (rows * token, token, channels, 1), dtype)

    extents = dict(zip("nhst", (batch, heads, keys, tokens)))
    strides, step = {}, 1
    for name in "tshn":
        strides[name] = step if name in mask else 0
        step *= extents[name] if name in mask else 1
    masked = Buffer("mask", "input", tuple(extents.values()),
                    tuple(strides[name] for name in "nhst"), "f32") if mask else None
    return build.attention(buffer("q", "input", tokens, depth), buffer("k", "input", keys, depth),
                           buffer("v", "input", keys, width),
                           buffer("out", "output", tokens, width),
                           scale or depth ** -0.5, causal, masked)
