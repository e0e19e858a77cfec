"""Qwen-Image (Qwen team 2025, arXiv:2508.02324), a flow transformer of two streams.

As in Stable Diffusion 3 image and text tokens have weights of their own in each block and attend to
all. A third of all weights make what modulates the blocks, of time alone; they are a graph of their
own. Names are those of the published checkpoint (`transformer_blocks.0.attn.to_q.weight`, ...).

The tokens of published weights outgrow f16 on their way through the blocks. Every layer that reads
them begins with a norm, which does not mind a factor when its epsilon has the square of it. So they
are computed in `STREAM_UNIT`, a power of two, which changes no bit of a result in f32 or bf16.
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.flux import (
    PATCH,
    PREFIX,
    TIME_FEATURES,
    Places,
    Sizes,
    Source,
    check_latent,
    control_inputs,
    given_modulations,
    reference_inputs,
    rows,
    side_by_side,
    tokens_of,
)
from smalti.models.transformer_config import QwenImageConfig
from smalti.nn import (
    diagonal_angles,
    from_patches,
    gelu_tanh,
    grid_angles,
    hidden_scores,
    linear,
    modulated_norm,
    modulation,
    normalised_and_turned,
    patches,
    rms_norm,
    silu,
    timestep_embedding,
)

STREAM_UNIT = 2.0**-6
"""Of the tokens between blocks, and of what each half of a block adds to them: those of four
millions fit f16."""
OF_BLOCK = 12
"""Vectors that modulate a block: six of the image, six of the text."""
PICTURES = ("img", "other")
"""The streams of the picture that is made and of those that are read, which share all weights."""
STREAMS = {"txt": ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added_q",
                   "norm_added_k"),
           **dict.fromkeys(PICTURES, ("to_q", "to_k", "to_v", "to_out.0", "norm_q", "norm_k"))}
"""Stream -> its layers of attention: queries, keys, values, output, norms of queries and keys."""

Angles = tuple[Value, Value]
"""Cosines and sines [1, t, d / 2] of the turns of tokens."""


def qwen_image_graph(config: QwenImageConfig, batch: int, height: int, width: int, length: int, *,
                     modulated: bool = False, referenced: Sizes = (),
                     control: Places = ()) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, context_dim] of the text encoder, mask f32[batch, length], 1 for the
    tokens of a text and 0 for others -> prediction f32[batch, out_channels, height, width], the
    velocity from picture to noise.

    With `modulated` an input `modulation` f32[batch, config.modulations, hidden_size] of
    `qwen_image_modulation_graph` stands for timesteps, and the weights that make it are not read.
    The latents of other pictures, of the sizes `referenced`, are inputs `reference.0`, ..., which
    become tokens of their own; with `config.clean` these are modulated by the vectors of time 0,
    which are an input `clean` of the shape of `modulation`.
    `control` holds for each block the number of the input `control.0`, ... f32[batch, height / 2 *
    width / 2, hidden_size], in `STREAM_UNIT`, that is added to the image tokens behind it, -1 for
    none. Raises InputError for an odd size, for axes that do not make up a head, or for other
    numbers of blocks.

    >>> from smalti.models import QWEN_IMAGE
    >>> g = qwen_image_graph(QWEN_IMAGE, batch=1, height=128, width=96, length=64)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'context', 'mask', 'timesteps'], (1, 16, 128, 96))
    """
    sizes = ((height, width), *referenced)
    for size in sizes:
        check_latent(*size, config.axes, config.head_dim)
    g, tokens = Graph("qwen_image"), tokens_of(sizes[:1], PATCH)
    latent = g.input("latent", (batch, config.in_channels, height, width))
    others = reference_inputs(g, config, batch, referenced)
    context = g.input("context", (batch, length, config.context_dim))
    hidden = hidden_scores(g.input("mask", (batch, length)), tokens_of(sizes, PATCH))
    source = given_modulations(g, config, batch) if modulated else computed(g, config, batch)
    clean = given_modulations(g, config, batch, "clean") if referenced and config.clean else None
    controls = control_inputs(g, "control.", control, config.blocks,
                              (batch, tokens, config.hidden_size))
    with g.scope(PREFIX):
        seen = [linear(side_by_side([patches(each, PATCH) for each in stream]), "img_in",
                       config.hidden_size) * STREAM_UNIT for stream in ([latent], others) if stream]
        streams = {"txt": text_tokens(context, config), **dict(zip(PICTURES, seen))}  # [n, t, c]
        angles = angles_of(g, length, sizes, config)
        for i in range(config.blocks):
            with g.scope(f"transformer_blocks.{i}"):
                parts = block_modulations(source, i)
                parts[PICTURES[1]] = parts["img"] if clean is None else block_modulations(
                    clean, i)["img"]
                streams = block(streams, parts, angles, hidden, config)
            steering = controls[i]
            if steering is not None:
                streams["img"] = streams["img"] + steering
        scale, shift = source("norm_out.linear", OF_BLOCK * config.blocks, 2)
        y = modulated_norm(streams["img"], shift, scale, config.eps * STREAM_UNIT**2)
        y = linear(y, "proj_out", PATCH * PATCH * config.out_channels)
        g.output("prediction", from_patches(y, PATCH, height, width))
    return g


def qwen_image_modulation_graph(config: QwenImageConfig, batch: int = 1) -> Graph:
    """timesteps f32[batch] -> modulation f32[batch, config.modulations, hidden_size].

    Those of a block are shift, scale and gate of its attention and of its MLP, of the image, then
    of the text; scale and shift of the last layer come last. One run with all steps of a schedule
    as a batch reads the weights, 6.8 of 20.4 billion, once for all of them.

    >>> from smalti.models import QWEN_IMAGE
    >>> g = qwen_image_modulation_graph(QWEN_IMAGE, batch=20)
    >>> g.outputs["modulation"].shape, len(g.parameters)
    ((20, 722, 3072), 246)
    """
    g, parts = Graph("qwen_image_modulation"), []
    source = computed(g, config, batch)
    with g.scope(PREFIX):
        for i in range(config.blocks):
            with g.scope(f"transformer_blocks.{i}"):
                parts += [vector for stream in block_modulations(source, i).values()
                          for vector in stream]
        parts += source("norm_out.linear", OF_BLOCK * config.blocks, 2)
    g.output("modulation", g.apply("concat", *parts, axis=1).reshape(batch, -1, config.hidden_size))
    return g


def qwen_image_block_graph(config: QwenImageConfig, image_tokens: int, text_tokens: int,
                           batch: int = 1) -> Graph:
    """img [n, image_tokens, c], txt [n, text_tokens, c], vec [n, c] -> img, txt of these shapes, in
    `STREAM_UNIT`.

    c is the hidden size; `cos` and `sin` [1, text_tokens + image_tokens, head_dim / 2] hold one
    angle a pair of channels, those of the text tokens first.

    >>> from smalti.models import QWEN_IMAGE
    >>> g = qwen_image_block_graph(QWEN_IMAGE, image_tokens=1024, text_tokens=64)
    >>> g.outputs["img"].shape, g.parameters["transformer_blocks.0.img_mod.1.weight"].shape
    ((1, 1024, 3072), (18432, 3072))
    """
    g, size = Graph("qwen_image_block"), config.hidden_size
    img, txt = (g.input(name, (batch, count, size))
                for name, count in (("img", image_tokens), ("txt", text_tokens)))
    vec = g.input("vec", (batch, size))
    cos, sin = (g.input(name, (1, text_tokens + image_tokens, config.head_dim // 2))
                for name in ("cos", "sin"))
    with g.scope("transformer_blocks.0"):
        parts = block_modulations(lambda name, _, count: modulation(vec, name, count), 0)
        found = block({"txt": txt, "img": img}, parts, (cos, sin), None, config)
    for name in ("img", "txt"):
        g.output(name, found[name])
    return g


# ---------------------------------------------------------------------- conditions


def computed(g: Graph, config: QwenImageConfig, batch: int, prefix: str = PREFIX) -> Source:
    """Vectors of the input timesteps, made by the weights below `prefix`."""
    timesteps = g.input("timesteps", (batch,))
    with g.scope(f"{prefix}.time_text_embed.timestep_embedder"):
        vec = linear(timestep_embedding(timesteps, TIME_FEATURES), "linear_1", config.hidden_size)
        vec = linear(silu(vec), "linear_2", config.hidden_size)              # [n, c]
    return lambda name, first, count: modulation(vec, name, count)


def block_modulations(source: Source, block: int) -> dict[str, list[Value]]:
    """Six vectors [n, c] each for the image and for the text of a block."""
    first = OF_BLOCK * block
    return {"img": source("img_mod.1", first, 6), "txt": source("txt_mod.1", first + 6, 6)}


def angles_of(g: Graph, length: int, sizes: Sizes, config: QwenImageConfig) -> Angles:
    """Of the tokens of a text, then of those of images: their number, rows and columns of each.

    An image stands around 0 with its middle, so that sizes between those of training are between
    their positions, and each further one a step further on the first axis; a text stands on the
    diagonal, from behind the largest image on.
    """
    grids = [tuple(side // PATCH for side in size) for size in sizes]
    parts = [diagonal_angles(g, length, config.axes, config.rotary_base,
                             start=max(side // 2 for grid in grids for side in grid))]
    parts += [grid_angles(g, (1, *grid), 0, config.axes, config.rotary_base,
                          starts=(k, *(-(side - side // 2) for side in grid)))
              for k, grid in enumerate(grids)]
    cos, sin = map(side_by_side, zip(*parts, strict=True))
    return cos, sin


def text_tokens(context: Value, config: QwenImageConfig) -> Value:
    """The tokens of a text [n, t, c]."""
    return linear(rms_norm(context, "txt_norm", config.eps), "txt_in",
                  config.hidden_size) * STREAM_UNIT


# ---------------------------------------------------------------------- blocks


def block(streams: dict[str, Value], modulations: dict[str, list[Value]], angles: Angles,
          hidden: Value | None, config: QwenImageConfig) -> dict[str, Value]:
    """Text and image [n, t, c], in this order, after attention to both and an MLP each; `hidden`
    [n, 1, 1, t] is added to all scores."""
    g = next(iter(streams.values())).graph
    parts, start = [], 0
    for name, x in streams.items():
        end = start + x.shape[1]
        shift, scale = modulations[name][:2]
        normal = modulated_norm(x, shift, scale, config.eps * STREAM_UNIT**2)
        parts.append(_heads(normal, STREAMS[name], (rows(angles[0], start, end),
                                                    rows(angles[1], start, end)), config))
        start = end
    q, k, v = (g.apply("concat", *each, axis=1) for each in zip(*parts, strict=True))
    addend = [] if hidden is None else [hidden]
    mixed = g.apply("attention", q, k, v, *addend, num_heads=config.heads)   # [n, t, c]
    found, start = {}, 0
    for name, x in streams.items():
        end = start + x.shape[1]
        found[name] = _behind(x, rows(mixed, start, end), name, modulations[name], config)
        start = end
    return found


def _heads(x: Value, names: tuple[str, ...], angles: Angles,
           config: QwenImageConfig) -> tuple[Value, Value, Value]:
    """Queries, keys and values of a stream [n, t, c]."""
    query, key, value, _, *norms = names
    with x.graph.scope("attn"):
        q, k = (normalised_and_turned(linear(x, name, config.hidden_size), norm, *angles,
                                      config.heads, config.eps)
                for name, norm in zip((query, key), norms, strict=True))
        return q, k, linear(x, value, config.hidden_size)


def _behind(x: Value, mixed: Value, name: str, modulations: list[Value],
            config: QwenImageConfig) -> Value:
    """x + gate * projection of what attention gave, then x + gate * MLP of it; sums are f32, and in
    the unit of x before they are stored."""
    (n, _, width), (_, _, gate, shift, scale, mlp_gate) = x.shape, modulations
    with x.graph.scope("attn"):
        y = linear(mixed, STREAMS[name][3], width) * STREAM_UNIT
    x = x + gate.reshape(n, 1, width) * y
    with x.graph.scope("txt_mlp.net" if name == "txt" else "img_mlp.net"):
        y = modulated_norm(x, shift, scale, config.eps * STREAM_UNIT**2)
        y = gelu_tanh(linear(y, "0.proj", config.mlp_size))
        return x + mlp_gate.reshape(n, 1, width) * (linear(y, "2", width) * STREAM_UNIT)
