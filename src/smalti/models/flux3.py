"""FLUX.3-image (Black Forest Labs 2026), a flow transformer of three streams.

The tokens of the text, of the image and of pictures that are read each go through blocks of their
own, in which they see no others; then all are one sequence, of which each stream is modulated by
vectors of its own. Attention and gated MLP work side by side (Dehghani et al. 2023,
arXiv:2302.05442). Names are those of the original checkpoint
(`content_mode_blocks.image.0.q_proj.weight`, ...).

What blocks add up to is read by norms only, and kept in `STREAM_UNIT`, as in Krea 2, so that large
sums fit f16: a power of two, which changes no bit of a result in f32 or bf16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph import Graph, Value
from smalti.models.flux import (
    PREFIX,
    TIME_FEATURES,
    Sizes,
    check_axes,
    reference_inputs,
    rows,
    side_by_side,
    tokens_of,
)
from smalti.models.newer_transformer_config import Flux3Config
from smalti.nn import (
    from_tokens,
    grid_angles,
    hidden_scores,
    linear,
    modulated_norm,
    modulation,
    normalised_and_turned,
    silu,
    timestep_embedding,
    to_tokens,
)

STREAM_UNIT = 2.0**-5
"""Of the tokens between blocks: those of two million fit f16."""
TARGET = "target"
"""The input that says which time a step leads to."""

Angles = tuple[Value, Value]
"""Cosines and sines [1, t, d / 2] of the turns of tokens."""


@dataclass(frozen=True)
class TokenStream:
    """Tokens [n, t, c] in `STREAM_UNIT`; shift, scale and gate [n, c] of blocks of their own, and
    of those of all; their angles. `hidden` is added to scores, where some are not seen."""

    tokens: Value
    early: Sequence[Value]
    late: Sequence[Value]
    angles: Angles
    hidden: Sequence[Value] = ()


def flux3_graph(config: Flux3Config, batch: int, height: int, width: int, length: int, *,
                referenced: Sizes = ()) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    for a `config.flow_map` also target f32[batch], the time that the step leads to, context
    f32[batch, length, context_dim] of the text encoder, mask f32[batch, length], 1 for the tokens
    of a text that are seen -> prediction f32[batch, out_channels, height, width], the velocity from
    picture to noise. The latents of other pictures, of the sizes `referenced`, are inputs
    `reference.0`, ..., which become tokens of their own. Raises InputError for axes that do not
    make up a head.

    >>> from smalti.models import FLUX3_KLEIN
    >>> g = flux3_graph(FLUX3_KLEIN, batch=1, height=64, width=48, length=80)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'target', 'context', 'mask'], (1, 128, 64, 48))
    """
    check_axes(config.axes, config.head_dim)
    g = Graph("flux3")
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    target = g.input(TARGET, (batch,)) if config.flow_map else None
    context = g.input("context", (batch, length, config.context_dim))
    mask = g.input("mask", (batch, length))
    with g.scope(PREFIX):
        leads = None if target is None else _embedded(target, "ref_time_in", config)
        vec, still = (_embedded(time, "time_in", config) for time in (
            timesteps, g.constant(np.zeros(batch, np.float32))))
        if leads is not None:
            vec, still = vec + leads, still + leads
        others = reference_inputs(g, config, batch, referenced)
        streams = {"txt": _stream(g, "txt", linear(context, "txt_in", config.hidden_size,
                                                   bias=False), still,
                                  grid_angles(g, (length,), 0, config.axes, config.rotary_base),
                                  [hidden_scores(mask)]),
                   "image": _image(g, "image", [latent], vec, 0, config)}
        if others:
            streams["image_cond"] = _image(g, "image_cond", others, still, -1, config)
        streams = {name: _alone(stream, name, config) for name, stream in streams.items()}
        seen = hidden_scores(mask, height * width + tokens_of(referenced, 1))
        x = _together(list(streams.values()), seen, config)
        with g.scope("final_layer.image"):
            shift, scale = modulation(vec, "adaLN_modulation.1", 2, bias=False)
            own = rows(x, length, length + height * width)
            y = modulated_norm(own, shift, scale, config.eps * STREAM_UNIT**2)
            y = linear(y, "linear", config.out_channels, bias=False)
        g.output("prediction", from_tokens(y, height, width))
    return g


def _embedded(time: Value, name: str, config: Flux3Config) -> Value:
    """What stands for a time [n, c]."""
    x = timestep_embedding(time, TIME_FEATURES)
    with time.graph.scope(name):
        x = silu(linear(x, "in_layer", config.hidden_size, bias=False))
        return linear(x, "out_layer", config.hidden_size, bias=False)


def _stream(g: Graph, name: str, tokens: Value, vec: Value, angles: Angles,
            hidden: Sequence[Value] = ()) -> TokenStream:
    """A stream of tokens that `vec` [n, c] modulates."""
    early, late = (modulation(vec, f"{kind}_stream_modulations.{name}.lin", 3, bias=False)
                   for kind in ("early", "single"))
    return TokenStream(tokens * STREAM_UNIT, early, late, angles, hidden)


def _image(g: Graph, name: str, latents: Sequence[Value], vec: Value, place: int,
           config: Flux3Config) -> TokenStream:
    """The stream of latents, which stand at (0, row, column, place), (0, row, column, place - 1),
    ..., rows and columns `config.spacing` apart."""
    tokens = linear(side_by_side([to_tokens(each) for each in latents]), f"emb_in.{name}",
                    config.hidden_size, bias=False)
    apart = (1, config.spacing, config.spacing, 1)
    angles = [grid_angles(g, (1, *each.shape[2:], 1), 0, config.axes, config.rotary_base,
                          starts=(0, 0, 0, place - number), spacing=apart)
              for number, each in enumerate(latents)]
    cos, sin = map(side_by_side, zip(*angles, strict=True))
    return _stream(g, name, tokens, vec, (cos, sin))


BLOCKS: Mapping[str, str] = {"txt": "txt_mode_blocks", "image": "content_mode_blocks.image",
                             "image_cond": "content_mode_blocks.image_cond"}
"""What the blocks of a stream are called."""


def _alone(stream: TokenStream, name: str, config: Flux3Config) -> TokenStream:
    """The stream after blocks in which its tokens see each other."""
    x, (shift, scale, gate) = stream.tokens, stream.early
    for i in range(config.stream_blocks):
        with x.graph.scope(f"{BLOCKS[name]}.{i}"):
            y = modulated_norm(x, shift, scale, config.eps * STREAM_UNIT**2)
            x = _added(x, _block(y, stream.angles, stream.hidden, config), gate)
    return TokenStream(x, stream.early, stream.late, stream.angles)


def _together(streams: Sequence[TokenStream], hidden: Value, config: Flux3Config) -> Value:
    """All tokens [n, t, c] after blocks in which they see each other, stream behind stream."""
    parts = [stream.tokens for stream in streams]
    ends = np.cumsum([part.shape[1] for part in parts]).tolist()
    cos, sin = map(side_by_side, zip(*(stream.angles for stream in streams), strict=True))
    for i in range(config.blocks):
        with hidden.graph.scope(f"single_blocks.{i}"):
            y = side_by_side([
                modulated_norm(x, stream.late[0], stream.late[1], config.eps * STREAM_UNIT**2)
                for x, stream in zip(parts, streams, strict=True)])
            y = _block(y, (cos, sin), [hidden], config)
            parts = [_added(x, rows(y, end - x.shape[1], end), stream.late[2])
                     for x, end, stream in zip(parts, ends, streams, strict=True)]
    return side_by_side(parts)


def _added(x: Value, y: Value, gate: Value) -> Value:
    """x [n, t, c] with what a block gave, both in `STREAM_UNIT`, times its gate [n, c]."""
    n, _, width = x.shape
    return x + y * gate.reshape(n, 1, width)


def _block(y: Value, angles: Angles, hidden: Sequence[Value], config: Flux3Config) -> Value:
    """What attention and the gated MLP make of the same tokens y [n, t, c], in `STREAM_UNIT`: a sum
    that is stored before a gate makes it smaller."""
    g, width = y.graph, config.hidden_size
    q, k = (normalised_and_turned(linear(y, f"{kind[0]}_proj", width, bias=False),
                                  f"norm.{kind}_norm", *angles, config.heads, config.eps, "scale")
            for kind in ("query", "key"))
    v = linear(y, "v_proj", width, bias=False)
    mixed = linear(g.apply("attention", q, k, v, *hidden, num_heads=config.heads), "attn_out",
                   width, bias=False) * STREAM_UNIT
    both = linear(y, "mlp_in", 2 * config.mlp_size, bias=False)
    gate, inner = (g.apply("slice", both, axis=2, start=start, end=start + config.mlp_size)
                   for start in (0, config.mlp_size))
    return mixed + linear(silu(gate) * inner, "mlp_out", width, bias=False) * STREAM_UNIT
