"""Z-Image (Alibaba's Z-Image team 2025, arXiv:2511.22699), a flow transformer of one stream, and
Lumina-Image 2 (Qin et al. 2025, arXiv:2503.21758), which it was made from: `Lumina2Config` says
what is otherwise there.

Image and text tokens are first refined apart, then one sequence for all other blocks. Each half of
a block has a norm before and one behind ("sandwich"); time scales and gates it, and shifts nothing.
Names are those of the original checkpoint (`layers.0.attention.qkv.weight`, ...).

The numbers of published weights do not fit f16 everywhere: what the feed-forward layers give, and
what is multiplied in them, exceeds 65504, and pictures are black. Every such value is read by a
norm, which does not mind a factor when its epsilon has the square of it. So they are computed in
the units below, powers of two, which change no bit of a result in f32 or bf16.
"""

from __future__ import annotations

from smalti.dataclass import dataclass
from smalti.graph import Graph, Value
from smalti.models.flux import (
    PATCH,
    PREFIX,
    TIME_FEATURES,
    Places,
    check_latent,
    control_inputs,
    rows,
)
from smalti.models.newer_transformer_config import ErnieImageConfig
from smalti.models.transformer_config import ZImageConfig
from smalti.nn import (
    from_patches,
    grid_angles,
    hidden_scores,
    linear,
    modulated_norm,
    normalised_and_turned,
    patches,
    rms_norm,
    silu,
    timestep_embedding,
)

ROUND = ZImageConfig.run
NOISE_TIME = 1000.0
"""The time of pure noise here; in the model it is that of the picture."""
STREAM_UNIT = 2.0**-5
"""Of the tokens between blocks: those of two million fit f16."""
BRANCH_UNIT = 2.0**-7
"""Of what a half of a block adds to them, before the norm behind it: eight millions fit f16."""
FINAL_EPS = 1e-6
"""Of the last norm, whatever that of the others is."""

Angles = tuple[Value, Value]
"""Cosines and sines [n or 1, t, d / 2] of the turns of tokens."""


@dataclass(frozen=True)
class Embedded:
    """What blocks work on, and what they read besides: tokens of the text, which are refined, and
    of the image [n, t, c], which are not yet, each filled up; the vector of time [n, v]; the angles
    of the image and of all tokens, text first; what is added to the scores of all."""

    txt: Value
    img: Value
    vec: Value
    image_angles: Angles
    angles: Angles
    hidden: Value | None


def z_image_graph(config: ZImageConfig, batch: int, height: int, width: int, length: int, *,
                  control: Places = ()) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, context_dim] of the text encoder, mask f32[batch, length], 1 for the
    tokens of a text and 0 behind them -> prediction f32[batch, out_channels, height, width], the
    velocity from picture to noise. `control` holds for each block behind the refiners the number of
    the input `control.0`, ... f32[batch, tokens of text and image, hidden_size], in `STREAM_UNIT`
    (see `token_counts`), that is added to all tokens behind it, -1 for none. Raises InputError for
    an odd size, for axes that do not make up a head, or for other numbers of blocks.

    >>> from smalti.models import Z_IMAGE
    >>> g = z_image_graph(Z_IMAGE, batch=1, height=128, width=96, length=64)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'context', 'mask'], (1, 16, 128, 96))
    """
    g = Graph(config.graph_name)
    read = embedded(g, config, batch, height, width, length)
    counts = token_counts(config, height, width, length)
    controls = control_inputs(g, "control.", control, config.blocks,
                              (batch, sum(counts), config.hidden_size))
    with g.scope(PREFIX):
        img = read.img
        for i in range(config.refiners):
            with g.scope(f"noise_refiner.{i}"):
                img = block(img, read.image_angles, config, read.vec)
        x = g.apply("concat", read.txt, img, axis=1)                     # [n, t, c]
        for i in range(config.blocks):
            with g.scope(f"layers.{i}"):
                x = block(x, read.angles, config, read.vec, read.hidden)
            steering = controls[i]
            if steering is not None:
                x = x + steering
        tokens = height // PATCH * (width // PATCH)
        with g.scope("final_layer"):
            x = rows(x, x.shape[1] - tokens, x.shape[1])
            g.output("prediction", _final_layer(x, read.vec, height, width, config))
    return g


def embedded(g: Graph, config: ZImageConfig, batch: int, height: int, width: int,
             length: int) -> Embedded:
    """The inputs of `z_image_graph` as tokens."""
    check_latent(height, width, config.axes, config.head_dim)
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    context = g.input("context", (batch, length, config.context_dim))
    mask = _filled(g.input("mask", (batch, length)), 0.0, config)
    with g.scope(PREFIX):
        vec = _time(timesteps, config)
        begun = _begun(mask, config)
        text_angles, image_angles = text_and_image_angles(begun, height // PATCH, width // PATCH,
                                                          config)
        txt = _refined_text(context, mask, begun, text_angles, config)
        img = linear(patches(latent, PATCH, pixels_first=True), "x_embedder", config.hidden_size)
        img = filled_image(img, config)                                  # [n, i, c]
        return Embedded(txt, img, vec, image_angles, joined_angles(text_angles, image_angles),
                        _hidden(begun, img.shape[1], config))


def token_counts(config: ZImageConfig, height: int, width: int, length: int) -> tuple[int, int]:
    """The tokens of a text of this length, and of a latent of this size, each filled up.

    >>> from smalti.models import Z_IMAGE
    >>> token_counts(Z_IMAGE, 10, 10, 40)
    (64, 32)
    """
    image = height // PATCH * (width // PATCH)
    return length + -length % config.run, image + -image % config.run


def z_image_block_graph(config: ZImageConfig, tokens: int, batch: int = 1) -> Graph:
    """x [n, tokens, c], vec [n, config.vector_size] -> x of the same shape, in `STREAM_UNIT`.

    c is the hidden size; `cos` and `sin` [1, tokens, head_dim / 2] hold one angle a pair of
    channels.

    >>> from smalti.models import Z_IMAGE
    >>> g = z_image_block_graph(Z_IMAGE, tokens=1024)
    >>> g.outputs["x"].shape, g.parameters["layers.0.feed_forward.w1.weight"].shape
    ((1, 1024, 3840), (10240, 3840))
    """
    g = Graph("z_image_block")
    x = g.input("x", (batch, tokens, config.hidden_size))
    vec = g.input("vec", (batch, config.vector_size))
    cos, sin = (g.input(name, (1, tokens, config.head_dim // 2)) for name in ("cos", "sin"))
    with g.scope("layers.0"):
        g.output("x", block(x, (cos, sin), config, vec))
    return g


# ---------------------------------------------------------------------- tokens


def _time(timesteps: Value, config: ZImageConfig) -> Value:
    """What scales and gates all blocks [n, v]. Time runs from the noise to the picture."""
    step = config.picture_time / NOISE_TIME
    x = timestep_embedding(timesteps * -step + config.picture_time, TIME_FEATURES)
    with timesteps.graph.scope("t_embedder.mlp"):
        return linear(silu(linear(x, "0", config.time_size)), "2", config.vector_size)


def _refined_text(context: Value, mask: Value, begun: Value, angles: Angles,
                  config: ZImageConfig) -> Value:
    """The tokens of the text, filled up [n, t, c]."""
    g = context.graph
    with g.scope("cap_embedder"):
        txt = linear(rms_norm(context, "0", config.eps), "1", config.hidden_size) * STREAM_UNIT
    if config.run > 1:
        real = mask.reshape(*mask.shape, 1)
        pad = g.parameter("cap_pad_token", (1, config.hidden_size)) * STREAM_UNIT
        txt = _filled(txt, 0.0, config) * real + pad * (real * -1.0 + 1.0)
    hidden = _hidden(begun, 0, config)
    for i in range(config.refiners):
        with g.scope(f"context_refiner.{i}"):
            txt = block(txt, angles, config, hidden=hidden)
    return txt


def filled_image(img: Value, config: ZImageConfig) -> Value:
    """Tokens that fill up, then those of an image [n, i, c], in `STREAM_UNIT`."""
    g, batch = img.graph, img.shape[0]
    if config.run == 1:
        return img * STREAM_UNIT
    pad = g.parameter("x_pad_token", (1, config.hidden_size))
    if missing := -img.shape[1] % config.run:
        filling = g.apply("expand", pad, shape=(batch, missing, config.hidden_size))
        img = g.apply("concat", filling, img, axis=1)
    return img * STREAM_UNIT


def _filled(x: Value, value: float, config: ZImageConfig) -> Value:
    """x [n, t, ...] with rows of a `value` behind, up to a multiple of `config.run` tokens."""
    (batch, tokens, *rest), g = x.shape, x.graph
    if not (missing := -tokens % config.run):
        return x
    more = g.apply("expand", g.constant(value), shape=(batch, missing, *rest))
    return g.apply("concat", x, more, axis=1)


# ---------------------------------------------------------------------- who is where, and is seen


def _begun(mask: Value, config: ZImageConfig) -> Value:
    """1 for each run of `config.run` tokens of a text [n, runs] that holds one of its own: a
    shorter text of a batch is filled up as if it were alone, and behind that nothing is seen."""
    (batch, length), run = mask.shape, config.run
    if run == 1:
        return mask
    runs = mask.reshape(batch, length // run, run)
    return mask.graph.apply("slice", runs, axis=2, start=0, end=1).reshape(batch, length // run)


def _hidden(begun: Value, tokens: int, config: ZImageConfig) -> Value | None:
    """What is added to the scores of a text and of `tokens` behind it; None where all are seen."""
    g, (batch, runs), run = begun.graph, begun.shape, config.run
    if runs == 1:
        return None
    if run == 1:
        return hidden_scores(begun, tokens)
    seen = g.apply("expand", begun.reshape(batch, runs, 1), shape=(batch, runs, run))
    return hidden_scores(seen.reshape(batch, runs * run), tokens)


def text_and_image_angles(begun: Value, height: int, width: int,
                          config: ZImageConfig | ErnieImageConfig) -> tuple[Angles, Angles]:
    """Of the tokens of a text, one behind the other on the first axis, and of those of an image of
    `height` x `width` tokens, one further there than its text with what fills it up; what fills up
    the image is at 0."""
    g, (batch, runs), run, first = begun.graph, begun.shape, config.run, config.first_place
    length, tokens = runs * run, height * width
    missing, turning = -tokens % run, config.axes[0] // 2
    line = grid_angles(g, (length + run + first, 1, 1), 0, config.axes, config.rotary_base)
    plane = grid_angles(g, (height, width), 0, config.axes[1:], config.rotary_base)
    still = grid_angles(g, (1, 1, 1), 0, config.axes, config.rotary_base)
    ends, texts, images = last(begun), [], []
    for along, across, pad in zip(line, plane, still):
        texts.append(rows(along, first, length + first))
        behind = rows(along, run + first, length + run + first).reshape(runs, run, -1)
        behind = g.apply("slice", behind, axis=1, start=0, end=1).reshape(runs, -1)
        behind = g.apply("slice", behind, axis=1, start=0, end=turning)   # [runs, d / 2]
        ahead = g.apply("mat_mul", ends, behind).reshape(batch, 1, turning)
        image = g.apply("concat", g.apply("expand", ahead, shape=(batch, tokens, turning)),
                        g.apply("expand", across, shape=(batch, tokens, across.shape[2])), axis=2)
        if missing:
            filling = g.apply("expand", pad, shape=(batch, missing, pad.shape[2]))
            image = g.apply("concat", filling, image, axis=1)
        images.append(image)
    return (texts[0], texts[1]), (images[0], images[1])


def last(begun: Value) -> Value:
    """1 for the last of those tokens, or runs, of each text [n, t] that are 1, 0 for others."""
    g, (batch, count) = begun.graph, begun.shape
    if count == 1:
        return begun
    after = g.apply("slice", begun, axis=1, start=1, end=count)
    after = g.apply("concat", after, g.apply("expand", g.constant(0.0), shape=(batch, 1)), axis=1)
    return begun - after


def joined_angles(text: Angles, image: Angles) -> Angles:
    """Those of the text, then those of the image."""
    batch = image[0].shape[0]
    cos, sin = (first.graph.apply(
        "concat", first.graph.apply("expand", first, shape=(batch, *first.shape[1:])), second,
        axis=1) for first, second in zip(text, image))
    return cos, sin


# ---------------------------------------------------------------------- blocks


def block(x: Value, angles: Angles, config: ZImageConfig, vec: Value | None = None,
          hidden: Value | None = None) -> Value:
    """x [n, t, c] after attention and the feed-forward layer, each between two norms.

    Where there is a `vec` [n, v], it scales what enters each of them and gates what leaves it.
    `hidden` [n, 1, 1, t] is added to all scores of attention.
    """
    scales, gates = _modulations(vec, config)
    for name, part, scale, gate in zip(("attention", "ffn"), (_attention, _feed_forward),
                                       scales, gates):
        y = rms_norm(x, f"{name}_norm1", config.eps * STREAM_UNIT**2)
        y = part(y if scale is None else y * (scale + 1.0), angles, hidden, config)
        y = rms_norm(y, f"{name}_norm2", config.eps * BRANCH_UNIT**2)
        x = x + y * (STREAM_UNIT if gate is None else gate * STREAM_UNIT)
    return x


Modulations = tuple[Value | None, Value | None]


def _modulations(vec: Value | None, config: ZImageConfig) -> tuple[Modulations, Modulations]:
    """The scales of attention and feed-forward layer [n, 1, c], and their gates from -1 to 1."""
    if vec is None:
        return (None, None), (None, None)
    g, batch, size = vec.graph, vec.shape[0], config.hidden_size
    both = linear(silu(vec) if config.activated else vec, config.modulation, 4 * size)
    scale, gate, ffn_scale, ffn_gate = (
        g.apply("slice", both, axis=1, start=i * size, end=(i + 1) * size).reshape(batch, 1, size)
        for i in range(4))
    return (scale, ffn_scale), (g.apply("tanh", gate), g.apply("tanh", ffn_gate))


def _attention(x: Value, angles: Angles, hidden: Value | None, config: ZImageConfig) -> Value:
    """In `BRANCH_UNIT`: sums are f32, and multiplied before they are stored."""
    g, size, shared = x.graph, config.hidden_size, config.kv_heads * config.head_dim
    with g.scope("attention"):
        qkv = linear(x, "qkv", size + 2 * shared, bias=False)            # [n, t, c + 2 k]
        q = g.apply("slice", qkv, axis=2, start=0, end=size)
        q = normalised_and_turned(q, "q_norm", *angles, config.heads, config.eps)
        k = g.apply("slice", qkv, axis=2, start=size, end=size + shared)
        k = normalised_and_turned(k, "k_norm", *angles, config.kv_heads, config.eps)
        v = g.apply("slice", qkv, axis=2, start=size + shared, end=size + 2 * shared)
        addend = [] if hidden is None else [hidden]
        mixed = g.apply("attention", q, k, v, *addend, num_heads=config.heads)
        return linear(mixed, "out", size, bias=False) * BRANCH_UNIT


def _feed_forward(x: Value, angles: Angles, hidden: Value | None, config: ZImageConfig) -> Value:
    """(silu(x @ W1) * (x @ W3)) @ W2 in `BRANCH_UNIT` (Shazeer 2020, arXiv:2002.05202)."""
    with x.graph.scope("feed_forward"):
        gate = silu(linear(x, "w1", config.mlp_size, bias=False))
        inner = linear(x, "w3", config.mlp_size, bias=False) * BRANCH_UNIT
        return linear(gate * inner, "w2", config.hidden_size, bias=False)


def _final_layer(x: Value, vec: Value, height: int, width: int, config: ZImageConfig) -> Value:
    """Image tokens x [n, t, c] -> [n, out_channels, height, width]; the model gives the velocity
    from noise to picture."""
    scale = linear(silu(vec), "adaLN_modulation.1", config.hidden_size)
    y = modulated_norm(x, None, scale, FINAL_EPS * STREAM_UNIT**2)
    y = linear(y, "linear", PATCH * PATCH * config.out_channels)
    return from_patches(y, PATCH, height, width, pixels_first=True) * -1.0
