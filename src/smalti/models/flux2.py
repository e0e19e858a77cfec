"""FLUX.2 (Black Forest Labs 2025): the blocks of Flux.1 with gated MLPs and without biases, all
modulated by the same vectors.

Names are those of the original checkpoint (`double_stream_modulation_img.lin.weight`, ...).
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.flux import (
    GUIDANCE_UNIT,
    PREFIX,
    TIME_FEATURES,
    Sizes,
    check_axes,
    double_block,
    reference_inputs,
    rows,
    side_by_side,
    single_block,
)
from smalti.models.transformer_config import Flux2Config
from smalti.nn import (
    from_tokens,
    grid_angles,
    linear,
    modulated_norm,
    modulation,
    silu,
    timestep_embedding,
    to_tokens,
)

REFERENCE_STEP = 10
"""How far pictures that are read stand from each other, and from the latent, on the first axis."""


def flux2_graph(config: Flux2Config, batch: int, height: int, width: int, length: int, *,
                referenced: Sizes = ()) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], context f32[batch, length, context_dim] of the
    text encoder, timesteps f32[batch] from 0 to 1000 (noise), and with `config.guidance` also
    guidance f32[batch] (such as 4) -> prediction f32[batch, out_channels, height, width], the
    velocity from picture to noise. All tokens of the text are seen. The latents of other pictures,
    of the sizes `referenced`, are inputs `reference.0`, ..., which become tokens of their own.
    Raises InputError for axes that do not make up a head.

    >>> from smalti.models import FLUX2_KLEIN_4B
    >>> g = flux2_graph(FLUX2_KLEIN_4B, batch=1, height=64, width=48, length=512)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'context', 'timesteps'], (1, 128, 64, 48))
    """
    check_axes(config.axes, config.head_dim)
    g = Graph("flux2")
    latent = g.input("latent", (batch, config.in_channels, height, width))
    context = g.input("context", (batch, length, config.context_dim))
    timesteps = g.input("timesteps", (batch,))
    guidance = g.input("guidance", (batch,)) if config.guidance else None
    with g.scope(PREFIX):
        vec = _embedded(timesteps, "time_in", config)
        if guidance is not None:
            vec = vec + _embedded(guidance * GUIDANCE_UNIT, "guidance_in", config)
        double = {stream: modulation(vec, f"double_stream_modulation_{stream}.lin", 6, bias=False)
                  for stream in ("img", "txt")}
        single = modulation(vec, "single_stream_modulation.lin", 3, bias=False)
        seen = (latent, *reference_inputs(g, config, batch, referenced))
        img = linear(side_by_side([to_tokens(picture) for picture in seen]), "img_in",
                     config.hidden_size, bias=False) * config.unit                 # [n, i, c]
        txt = linear(context, "txt_in", config.hidden_size, bias=False) * config.unit  # [n, t, c]
        cos, sin = _angles(g, length, ((height, width), *referenced), config)
        for i in range(config.double_blocks):
            with g.scope(f"double_blocks.{i}"):
                img, txt = double_block(img, txt, double, cos, sin, config)
        x = g.apply("concat", txt, img, axis=1)
        for i in range(config.single_blocks):
            with g.scope(f"single_blocks.{i}"):
                x = single_block(x, single, cos, sin, config)
        with g.scope("final_layer"):
            shift, scale = modulation(vec, "adaLN_modulation.1", 2, bias=False)
            own = rows(x, length, length + height * width)
            x = modulated_norm(own, shift, scale, config.stream_eps)
            x = linear(x, "linear", config.out_channels, bias=False)
            g.output("prediction", from_tokens(x, height, width))
    return g


def flux2_single_block_graph(config: Flux2Config, tokens: int, batch: int = 1) -> Graph:
    """x [n, tokens, c], and shift, scale and gate [n, c] that all blocks share -> x.

    c is the hidden size, tokens are in `config.unit`; `cos` and `sin` [1, tokens, head_dim / 2]
    hold one angle a pair of channels.

    >>> from smalti.models import FLUX2_KLEIN_4B
    >>> g = flux2_single_block_graph(FLUX2_KLEIN_4B, tokens=1536)
    >>> g.outputs["x"].shape, g.parameters["single_blocks.0.linear1.weight"].shape
    ((1, 1536, 3072), (27648, 3072))
    """
    g, width = Graph("flux2_single_block"), config.hidden_size
    x = g.input("x", (batch, tokens, width))
    modulations = [g.input(name, (batch, width)) for name in ("shift", "scale", "gate")]
    cos, sin = (g.input(name, (1, tokens, config.head_dim // 2)) for name in ("cos", "sin"))
    with g.scope("single_blocks.0"):
        g.output("x", single_block(x, modulations, cos, sin, config))
    return g


def _embedded(number: Value, name: str, config: Flux2Config) -> Value:
    """What stands for a time, or for the strength of guidance in thousandths [n, c]."""
    x = timestep_embedding(number, TIME_FEATURES)
    with number.graph.scope(name):
        x = silu(linear(x, "in_layer", config.hidden_size, bias=False))
        return linear(x, "out_layer", config.hidden_size, bias=False)


def _angles(g: Graph, length: int, sizes: Sizes, config: Flux2Config) -> tuple[Value, Value]:
    """Of the tokens of the text, at (0, 0, 0, place), then of those of the image, at (0, row,
    column, 0), and of the k-th picture that is read, at (REFERENCE_STEP * k, row, column, 0)."""
    parts = [grid_angles(g, (length,), 0, config.axes, config.rotary_base)]
    parts += [grid_angles(g, (1, *size, 1), 0, config.axes, config.rotary_base,
                          starts=(REFERENCE_STEP * k, 0, 0, 0)) for k, size in enumerate(sizes)]
    cos, sin = map(side_by_side, zip(*parts, strict=True))
    return cos, sin
