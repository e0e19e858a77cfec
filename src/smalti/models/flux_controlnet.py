"""ControlNets (Zhang et al. 2023, arXiv:2302.05543) for Flux.1.

Some of the model's blocks are repeated, read a picture besides, and what each of them made goes to
the model through a layer that was zero when training began. Names are those of Flux (see
`models/flux.py`) and, for what is new, of diffusers' `FluxControlNetModel`.
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.controlnet import PREFIX, hint_block
from smalti.models.flux import (
    PATCH,
    Places,
    computed,
    double_block,
    double_modulations,
    embedded,
    rows,
    single_block,
)
from smalti.models.transformer_config import FluxConfig, FluxControlNetConfig
from smalti.nn import embedding, linear, patches


def flux_controlnet_graph(config: FluxControlNetConfig, batch: int, height: int, width: int,
                          length: int) -> Graph:
    """What Flux's blocks are given more; `height` and `width` are those of the latent.

    latent, timesteps, context, pooled and guidance as of `flux_graph`, and hint: the latent of a
    picture f32[batch, in_channels, height, width], or where `config.hint_channels` are given its
    pixels f32[batch, 3, f * height, f * width] in [0, 1]. A union reads `mode` i32[batch], too, the
    kind of the picture. Outputs are `control.double.0`, ... and `control.single.0`, ...
    f32[batch, height / 2 * width / 2, hidden_size] in `config.unit`, one for each block. Raises
    InputError for an odd size.

    >>> from smalti.models import FluxControlNetConfig
    >>> canny = FluxControlNetConfig(3072, 24, 12288, double_blocks=5, single_blocks=10)
    >>> g = flux_controlnet_graph(canny, batch=1, height=128, width=96, length=512)
    >>> g.inputs["hint"].shape, len(g.outputs), g.outputs["control.double.4"].shape
    ((1, 16, 128, 96), 15, (1, 3072, 3072))
    """
    g = Graph("flux_controlnet")
    latent = g.input("latent", (batch, config.in_channels, height, width))
    context = g.input("context", (batch, length, config.context_dim))
    source = computed(g, config, batch, PREFIX)
    with g.scope(PREFIX):
        img, txt, cos, sin = embedded(latent, context, config, _mode(g, batch, config))
        hint = _hint(g, batch, height, width, config)
        img = img + config.unit * linear(patches(hint, PATCH), "controlnet_x_embedder",
                                         config.hidden_size)
        for i in range(config.double_blocks):
            with g.scope(f"double_blocks.{i}"):
                img, txt = double_block(img, txt, double_modulations(source, i, config), cos, sin,
                                        config)
            g.output(f"control.double.{i}", linear(img, f"controlnet_blocks.{i}",
                                                   config.hidden_size, unit=config.unit))
        x = g.apply("concat", txt, img, axis=1)                          # [n, t, c]
        for i in range(config.single_blocks):
            with g.scope(f"single_blocks.{i}"):
                x = single_block(x, source("modulation.lin", 3 * i, 3), cos, sin, config)
            g.output(f"control.single.{i}", linear(
                rows(x, txt.shape[1], x.shape[1]), f"controlnet_single_blocks.{i}",
                config.hidden_size, unit=config.unit))
    return g


def flux_control_places(config: FluxControlNetConfig, model: FluxConfig) -> tuple[Places, Places]:
    """Which control is added behind each double and each single block of the model.

    Each serves as many blocks in a row, but for the last, where they do not divide; those of XLabs
    take turns.

    >>> from smalti.models import FLUX_DEV
    >>> flux_control_places(FluxControlNetConfig(3072, 24, 12288, double_blocks=5,
    ...                                          single_blocks=0), FLUX_DEV)
    ((0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4), ())
    """
    found = []
    for count, blocks in ((config.double_blocks, model.double_blocks),
                          (config.single_blocks, model.single_blocks)):
        each = -(-blocks // count) if count else 1
        found.append(tuple(i % count if config.hint_channels else i // each
                           for i in range(blocks if count else 0)))
    return found[0], found[1]


def _mode(g: Graph, batch: int, config: FluxControlNetConfig) -> Value | None:
    """The token [n, 1, c] that says what kind of picture the hint is, in `config.unit`."""
    if not config.modes:
        return None
    mode = g.input("mode", (batch,), "i32").reshape(batch, 1)
    token = embedding(mode, "controlnet_mode_embedder", config.modes, config.hidden_size)
    return token * config.unit


def _hint(g: Graph, batch: int, height: int, width: int, config: FluxControlNetConfig) -> Value:
    """The picture as what becomes tokens [n, c, h, w]."""
    widths = config.hint_channels
    if not widths:
        return g.input("hint", (batch, config.in_channels, height, width))
    factor = 2 ** (len(widths) - 1)
    picture = g.input("hint", (batch, 3, factor * height, factor * width))
    return hint_block(picture * 2.0 - 1.0, widths, config.in_channels)
