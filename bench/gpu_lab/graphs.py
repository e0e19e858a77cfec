"""The graphs that are compiled, by name; numbers follow it between colons, as in mm:4096,
conv:320:64 or attention:4096:8:40."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smalti import Graph, checkpoint
from smalti.diffusion.pipeline import SHIPPED_MODEL
from smalti.errors import InputError
from smalti.graph import Value
from smalti.models import (
    FLUX_DEV,
    SD15,
    flux_double_block_graph,
    unet_graph,
    vae_decoder_graph,
)
from smalti.models.config import SDXL_UNET
from smalti.nn import conv2d, cross_attention, group_norm, linear, silu


def product(rows: int = 4096, inner: int = 0, columns: int = 0) -> Graph:
    """[rows, inner] times [inner, columns], which are `rows` unless given."""
    g = Graph("mm")
    x = g.input("x", (1, rows, inner or rows))
    g.output("y", linear(x, "w", columns or rows))
    return g


def convolution(channels: int = 320, size: int = 64, batch: int = 2) -> Graph:
    """3x3, twice, with SiLU in between."""
    g = Graph("conv")
    x = g.input("x", (batch, channels, size, size))
    g.output("y", conv2d(silu(conv2d(x, "a", channels, 3)), "b", channels, 3))
    return g


def _bytes_behind(g: Graph, sums: Value, scale: Sequence[int]) -> None:
    """Make the output of `g` of sums: scales per channel, a bias, SiLU."""
    y = g.apply("cast", sums, to="f32") * g.parameter("scale", scale)
    g.output("y", silu(y + g.parameter("bias", scale)))


def byte_product(rows: int = 4096, inner: int = 0, columns: int = 0) -> Graph:
    """The same of bytes, as quantised models have it, with a zero point of 3; behind it a scale and
    a bias for each channel, and SiLU."""
    g, inner, columns = Graph("mm8"), inner or rows, columns or rows
    a, b = g.input("a", (rows, inner), "u8"), g.parameter("b", (inner, columns), "i8")
    _bytes_behind(g, g.apply("mat_mul_integer", a, b, g.constant(3, "u8"), g.constant(0, "i8")),
                  (columns,))
    return g


def byte_convolution(channels: int = 320, size: int = 64, batch: int = 2, window: int = 3) -> Graph:
    """A convolution of bytes, with what is behind a `byte_product`."""
    g = Graph("conv8")
    x = g.input("x", (batch, channels, size, size), "u8")
    w = g.parameter("w", (channels, channels, window, window), "i8")
    sums = g.apply("conv_integer", x, w, g.constant(3, "u8"), g.constant(0, "i8"),
                   pads=(window // 2,) * 4, strides=(1, 1), dilations=(1, 1), group=1)
    _bytes_behind(g, sums, (channels, 1, 1))
    return g


def ends(channels: int = 320, size: int = 64, latent: int = 4, batch: int = 2) -> Graph:
    """The first and the last 3x3 of a UNet: from the few channels of a latent, and to them."""
    g = Graph("ends")
    x = g.input("x", (batch, latent, size, size))
    first = conv2d(x, "first", channels, 3)
    g.output("y", conv2d(silu(group_norm(first, "norm", 32, 1e-5)), "last", latent, 3))
    return g


def attention(tokens: int = 4096, heads: int = 8, width: int = 40, batch: int = 2,
              keys: int = 0) -> Graph:
    """Attention with its four products: of tokens to themselves, or to so many `keys`."""
    g = Graph("attention")
    x = g.input("x", (batch, tokens, heads * width))
    context = g.input("context", (batch, keys, heads * width)) if keys else x
    g.output("y", cross_attention(x, context, heads))
    return g


def shipped(part: str) -> Graph:
    """A part of the model that smalti ships, for pictures of its own size."""
    config = checkpoint.load(SHIPPED_MODEL).config
    if part == "unet":
        return unet_graph(config.denoiser, 2, 16, 16)
    return vae_decoder_graph(config.vae, 1, 16, 16)


KINDS: dict[str, Callable[..., Graph]] = {
    "mm": product, "conv": convolution, "ends": ends, "attention": attention,
    "mm8": byte_product, "conv8": byte_convolution,
    "unet": lambda size=64, batch=2: unet_graph(SD15.denoiser, batch, size, size),
    "decoder": lambda size=64: vae_decoder_graph(SD15.vae, 1, size, size),
    "flux": lambda image=1024, text=256: flux_double_block_graph(FLUX_DEV, image, text),
    "sdxl": lambda size=128, batch=2: unet_graph(SDXL_UNET, batch, size, size),
    "shipped-unet": lambda: shipped("unet"), "shipped-decoder": lambda: shipped("decoder"),
}
TABLE = ("mm:4096", "conv", "attention", "unet", "decoder", "decoder:128", "flux", "sdxl",
         "shipped-unet", "shipped-decoder")
"""Graphs of the table: SD 1.5 at 512x512 (and its decoder at 1024x1024), a double block of FLUX.1
with 1024 + 256 tokens, SDXL's UNet at 1024x1024."""


def graph_of(name: str) -> Graph:
    """The graph that `name` stands for. Raises InputError for an unknown one."""
    what, *numbers = name.split(":")
    if what not in KINDS or not all(number.isdecimal() for number in numbers):
        raise InputError(f"no graph is called {name!r}; known, with numbers behind a colon: "
                         f"{', '.join(KINDS)}")
    return KINDS[what](*map(int, numbers))
