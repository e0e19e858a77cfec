"""Flux.1 (Black Forest Labs 2024), a rectified flow transformer (Esser et al. 2024).

In double-stream blocks image and text tokens have weights of their own and attend to all; in
single-stream blocks they are one sequence, and attention and MLP work side by side (Dehghani et
al. 2023, arXiv:2302.05442). Names are those of the original checkpoint
(`double_blocks.0.img_attn.qkv.weight`, ...).

What blocks add up to is kept in `unit` of the configuration, so that it fits f16: diffusers and
ComfyUI clip it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.denoiser_config import DenoiserConfig
from smalti.models.transformer_config import FluxConfig, QwenImageConfig
from smalti.nn import (
    diagonal_angles,
    from_patches,
    gelu_tanh,
    grid_angles,
    hidden_scores,
    linear,
    modulated_norm,
    modulation,
    patches,
    rms_norm,
    silu,
    timestep_embedding,
    turned_part,
)

Places = tuple[int, ...]
Sizes = tuple[tuple[int, int], ...]
"""Height and width of each of several latents."""
Scores = Value | Sequence[tuple[int, Value | None]] | None
"""What is added to the scores of attention [n, 1, 1, keys]: of all queries, or of so many each that
stand one behind the other."""

UNCONTROLLED: tuple[Places, Places] = ((), ())
PREFIX = "model.diffusion_model"
REFERENCE = "reference."
"""What begins the names of inputs that are latents of other pictures."""
PATCH = 2
"""Pixels of the latent along each side of a token."""
TIME_FEATURES = 256
GUIDANCE_UNIT = 1000.0
"""Guidance is embedded in thousandths, as time is."""


def flux_graph(config: FluxConfig, batch: int, height: int, width: int, length: int, *,
               modulated: bool = False, masked: bool = False, referenced: Sizes = (),
               control: tuple[Places, Places] = UNCONTROLLED,
               biased: tuple[int, int] | None = None) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, context_dim] of T5, pooled f32[batch, pooled_dim] of CLIP, and with
    `config.guidance` also guidance f32[batch] (such as 3.5) -> prediction f32[batch, out_channels,
    height, width], the velocity from picture to noise.

    With `modulated` an input `modulation` f32[batch, config.modulations, hidden_size] of
    `flux_modulation_graph` stands for timesteps, pooled and guidance, and the weights that make it,
    a quarter of all, are not read. With `masked` an input `mask` f32[batch, length] is 1 for tokens
    of the text that others see. The latents of other pictures, of the sizes `referenced`, are
    inputs `reference.0`, ..., which become tokens of their own. `control` holds for each
    double and each single block the number of the input `control.double.0`, ... or
    `control.single.0`, ... f32[batch, height / 2 * width / 2, hidden_size], in `config.unit`, that
    is added to the image tokens behind it, -1 for none. With `biased`, how many pictures stand last
    in the context and of how many tokens each, an input `bias` f32[batch, pictures, tokens] is
    added to the scores of these tokens (see `biased_scores`). Raises InputError for an odd size,
    for other numbers of blocks, or for controls beside another picture.

    >>> from smalti.models import FLUX_DEV
    >>> g = flux_graph(FLUX_DEV, batch=1, height=128, width=96, length=512)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'context', 'timesteps', 'pooled', 'guidance'], (1, 16, 128, 96))
    """
    g = Graph("flux")
    own, others = (height // PATCH) * (width // PATCH), tokens_of(referenced, PATCH)
    latent = g.input("latent", (batch, config.in_channels, height, width))
    if referenced and control != UNCONTROLLED:
        raise InputError("ControlNets steer models that make a picture from a prompt alone; leave "
                         "them out where another picture is read")
    context = g.input("context", (batch, length, config.context_dim))
    source = (given_modulations(g, config, batch) if modulated
              else computed(g, config, batch, PREFIX))
    mask: Scores = hidden_scores(g.input("mask", (batch, length)), own + others) if masked else None
    if biased is not None:
        mask = biased_scores(g.input("bias", (batch, *biased)), length, own + others)
    double, single = (
        control_inputs(g, f"control.{kind}.", places, blocks, (batch, own, config.hidden_size))
        for kind, places, blocks in zip(("double", "single"), control,
                                        (config.double_blocks, config.single_blocks)))
    with g.scope(PREFIX):
        img, txt, cos, sin = embedded(latent, context, config,
                                      others=reference_inputs(g, config, batch, referenced))
        for i in range(config.double_blocks):
            with g.scope(f"double_blocks.{i}"):
                img, txt = double_block(img, txt, double_modulations(source, i, config), cos, sin,
                                        config, mask)
            img = _controlled(img, double[i])
        x = g.apply("concat", txt, img, axis=1)                          # [n, t, c]
        for i in range(config.single_blocks):
            with g.scope(f"single_blocks.{i}"):
                x = single_block(x, source("modulation.lin", 3 * i, 3), cos, sin, config, mask)
            x = _controlled(x, single[i])
        with g.scope("final_layer"):
            shift, scale = source("adaLN_modulation.1", config.modulations - 2, 2)
            x = rows(x, length, length + own)
            g.output("prediction", _final_layer(x, shift, scale, height, width, config))
    return g


def flux_modulation_graph(config: FluxConfig, batch: int = 1) -> Graph:
    """timesteps, pooled and guidance as of `flux_graph` -> modulation f32[batch, modulations, c].

    The vectors of all single blocks come first, then those of the image in double blocks, those of
    the text, and those of the last layer; of each block in the order shift, scale, gate. They do
    not depend on the latent: one run with all steps of a schedule as a batch reads the weights once
    for all of them.

    >>> from smalti.models import FLUX_DEV
    >>> g = flux_modulation_graph(FLUX_DEV, batch=20)
    >>> g.outputs["modulation"].shape, len(g.parameters)
    ((20, 344, 3072), 166)
    """
    g, parts = Graph("flux_modulation"), []
    source = computed(g, config, batch, PREFIX)
    with g.scope(PREFIX):
        for i in range(config.single_blocks):
            with g.scope(f"single_blocks.{i}"):
                parts += source("modulation.lin", 3 * i, 3)
        for stream in ("img", "txt"):
            for i in range(config.double_blocks):
                with g.scope(f"double_blocks.{i}"):
                    parts += double_modulations(source, i, config)[stream]
        with g.scope("final_layer"):
            parts += source("adaLN_modulation.1", config.modulations - 2, 2)
    g.output("modulation", g.apply("concat", *parts, axis=1).reshape(batch, -1, config.hidden_size))
    return g


def flux_double_block_graph(config: FluxConfig, image_tokens: int, text_tokens: int,
                            batch: int = 1) -> Graph:
    """img [n, image_tokens, c], txt [n, text_tokens, c], vec [n, c] -> img, txt of the same shapes.

    c is the hidden size, tokens are in `config.unit`; `cos` and `sin` [1, text_tokens +
    image_tokens, head_dim / 2] hold one angle a pair of channels, those of the text tokens first.
    Raises InputError when the heads do not divide the hidden size into even parts.

    >>> from smalti.models import FLUX_DEV
    >>> g = flux_double_block_graph(FLUX_DEV, image_tokens=1024, text_tokens=256)
    >>> [str(value.type) for value in g.outputs.values()]
    ['f32[1, 1024, 3072]', 'f32[1, 256, 3072]']
    >>> g.parameters["double_blocks.0.img_attn.qkv.weight"].shape
    (9216, 3072)
    """
    g, tokens, width = Graph("flux_double_block"), text_tokens + image_tokens, config.hidden_size
    img = g.input("img", (batch, image_tokens, width))
    txt = g.input("txt", (batch, text_tokens, width))
    vec = g.input("vec", (batch, width))
    cos, sin = (g.input(name, (1, tokens, config.head_dim // 2)) for name in ("cos", "sin"))
    with g.scope("double_blocks.0"):
        parts = double_modulations(lambda name, _, count: modulation(vec, name, count), 0, config)
        img, txt = double_block(img, txt, parts, cos, sin, config)
    g.output("img", img)
    g.output("txt", txt)
    return g


# ---------------------------------------------------------------------- conditions


Source = Callable[[str, int, int], list[Value]]
"""What gives `count` vectors [n, c] from number `first` on, in the scope of their block: reads the
layer of that name, or takes them from an input."""


def computed(g: Graph, config: FluxConfig, batch: int, prefix: str) -> Source:
    """Vectors of the inputs timesteps, pooled and, where the model has it, guidance."""
    timesteps = g.input("timesteps", (batch,))
    pooled = g.input("pooled", (batch, config.pooled_dim)) if config.pooled_dim else None
    guidance = g.input("guidance", (batch,)) if config.guidance else None
    with g.scope(prefix):
        vec = _condition(timesteps, pooled, guidance, config)
    return lambda name, first, count: modulation(vec, name, count)


def given_modulations(g: Graph, config: FluxConfig | QwenImageConfig, batch: int,
                      name: str = "modulation") -> Source:
    """Vectors of an input of this name."""
    vectors = g.input(name, (batch, config.modulations, config.hidden_size))
    return lambda name, first, count: [
        rows(vectors, i, i + 1).reshape(batch, config.hidden_size)
        for i in range(first, first + count)]


def double_modulations(source: Source, block: int, config: FluxConfig) -> dict[str, list[Value]]:
    """Six vectors each for the image and for the text of a double block."""
    images = 3 * config.single_blocks + 6 * block
    return {"img": source("img_mod.lin", images, 6),
            "txt": source("txt_mod.lin", images + 6 * config.double_blocks, 6)}


def _condition(timesteps: Value, pooled: Value | None, guidance: Value | None,
               config: FluxConfig) -> Value:
    """What all blocks are modulated by [n, c]: time, guidance and the text as a whole."""
    vec = _embedder(timestep_embedding(timesteps, TIME_FEATURES), "time_in", config)
    if guidance is not None:
        strength = timestep_embedding(guidance * GUIDANCE_UNIT, TIME_FEATURES)
        vec = vec + _embedder(strength, "guidance_in", config)
    return vec if pooled is None else vec + _embedder(pooled, "vector_in", config)


def _embedder(x: Value, name: str, config: FluxConfig) -> Value:
    with x.graph.scope(name):
        return linear(silu(linear(x, "in_layer", config.hidden_size)), "out_layer",
                      config.hidden_size)


def check_latent(height: int, width: int, axes: tuple[int, ...], head_dim: int) -> None:
    """Raise InputError for a latent of odd size, or rotary axes that do not make up a head."""
    if height % PATCH or width % PATCH or min(height, width) < 1:
        raise InputError(f"a latent of {height} x {width} (height x width) is given; tokens are "
                         f"{PATCH} x {PATCH} pixels of it, so both must be positive and even")
    check_axes(axes, head_dim)


def check_axes(axes: tuple[int, ...], head_dim: int) -> None:
    """Raise InputError for rotary axes that do not make up a head."""
    if sum(axes) != head_dim:
        raise InputError(f"rotary axes of {axes} channels do not make up a head of {head_dim}")


def embedded(latent: Value, context: Value, config: FluxConfig,
             first: Value | None = None,
             others: Sequence[Value] = ()) -> tuple[Value, Value, Value, Value]:
    """Tokens of the image and of the text [n, t, c], in `config.unit`, and the angles of all, text
    first.

    Text tokens, and those of `first` [n, k, c] in that unit before them, stand at 0 on all axes, or
    the i-th at (0, i, i) where the model has them on the diagonal, image tokens at (0, row, column)
    from `config.image_start` on, and those of the k-th of the `others`, which are latents, too,
    behind them at (k, row, column). Raises InputError for a latent of odd size, or axes that do not
    make up a head.
    """
    g = latent.graph
    for picture in (latent, *others):
        _, _, height, width = picture.shape
        check_latent(height, width, config.axes, config.head_dim)
    img = linear(side_by_side([patches(picture, PATCH) for picture in (latent, *others)]),
                 "img_in", config.hidden_size)
    if config.context_normed:
        context = rms_norm(context, "context_norm", config.eps, "scale")
    txt = linear(context, "txt_in", config.hidden_size) * config.unit
    if first is not None:
        txt = g.apply("concat", first, txt, axis=1)
    grids = [tuple(side // PATCH for side in picture.shape[2:]) for picture in (latent, *others)]
    if config.diagonal:
        angles = [diagonal_angles(g, txt.shape[1], config.axes, config.rotary_base, still=1),
                  grid_angles(g, (1, *grids[0]), 0, config.axes, config.rotary_base,
                              starts=config.image_start)]
    else:
        angles = [grid_angles(g, grids[0], txt.shape[1], config.axes, config.rotary_base)]
    angles += [grid_angles(g, (1, *grid), 0, config.axes, config.rotary_base, starts=(k, 0, 0))
               for k, grid in enumerate(grids[1:], 1)]
    cos, sin = map(side_by_side, zip(*angles, strict=True))
    return img * config.unit, txt, cos, sin


def reference_inputs(g: Graph, config: DenoiserConfig, batch: int,
                     sizes: Sizes) -> list[Value]:
    """The inputs of latents of other pictures, [n, in_channels, h, w] each."""
    return [g.input(f"{REFERENCE}{k}", (batch, config.in_channels, *size))
            for k, size in enumerate(sizes)]


def tokens_of(sizes: Sizes, patch: int) -> int:
    """The tokens that latents of these sizes become, squares of `patch` pixels a side.

    >>> tokens_of(((8, 4), (2, 2)), 2)
    9
    """
    return sum((height // patch) * (width // patch) for height, width in sizes)


def side_by_side(parts: Sequence[Value]) -> Value:
    """Tokens [n, t, c] behind tokens."""
    return parts[0] if len(parts) == 1 else parts[0].graph.apply("concat", *parts, axis=1)


def control_inputs(g: Graph, prefix: str, places: Places, blocks: int,
                   shape: tuple[int, ...]) -> list[Value | None]:
    """For each block the input that is added behind it. Raises InputError for other numbers."""
    if places and len(places) != blocks or any(place < -1 for place in places):
        raise InputError(f"controls {places} are given for {blocks} blocks; expected one number "
                         f"each, -1 for none")
    inputs = [g.input(f"{prefix}{i}", shape) for i in range(1 + max(places, default=-1))]
    return [inputs[place] if place >= 0 else None for place in places or (-1,) * blocks]


def _controlled(x: Value, control: Value | None) -> Value:
    """x [n, t, c], image tokens last, with a control [n, i, c] in their unit added to these."""
    if control is None:
        return x
    text = x.shape[1] - control.shape[1]
    if not text:
        return x + control
    return x.graph.apply("concat", rows(x, 0, text), rows(x, text, x.shape[1]) + control, axis=1)


def biased_scores(bias: Value, length: int, others: int) -> Scores:
    """What is added to scores where pictures stand last among `length` tokens of the text, before
    `others`: `bias` [n, pictures, tokens].

    All see it but the tokens of pictures: those see theirs and what stands before as it is, and
    later pictures with their bias. That is what comes about where pictures are put behind the text
    one by one, each with its bias for all that is there.
    """
    n, pictures, tokens = bias.shape
    text = length - pictures * tokens

    def from_picture(first: int) -> Value | None:
        """Of queries that see pictures from this one on with their bias."""
        if first == pictures:
            return None
        g = bias.graph
        before, behind = (g.apply("expand", g.constant(0.0), shape=(n, count))
                          for count in (text + first * tokens, others))
        seen = g.apply("slice", bias, axis=1, start=first, end=pictures)
        whole = g.apply("concat", before, seen.reshape(n, (pictures - first) * tokens), behind,
                        axis=1)
        return whole.reshape(n, 1, 1, length + others)

    every = from_picture(0)
    return [(text, every), *((tokens, from_picture(i + 1)) for i in range(pictures)),
            (others, every)]


# ---------------------------------------------------------------------- blocks


def double_block(img: Value, txt: Value, modulations: dict[str, list[Value]], cos: Value,
                 sin: Value, config: FluxConfig, mask: Scores = None) -> tuple[Value, Value]:
    """img [n, i, c] and txt [n, t, c] after attention to both and an MLP each.

    `modulations` of "img" and "txt" are shift, scale and gate [n, c] of the attention, then those
    of the MLP; the mask [n, 1, 1, t + i] is added to all scores.
    """
    g, width = img.graph, config.hidden_size
    split = txt.shape[1]
    streams = {"txt": (txt, 0, split), "img": (img, split, cos.shape[1])}
    products, turned = [], []
    for name, (x, start, end) in streams.items():
        shift, scale = modulations[name][:2]
        normal = modulated_norm(x, shift, scale, config.stream_eps)
        with g.scope(f"{name}_attn"):
            products.append(linear(normal, "qkv", 3 * width, bias=config.bias))  # [n, t, 3 c]
            turned.append([_turned(products[-1], number, part, rows(cos, start, end),
                                   rows(sin, start, end), config)
                           for number, part in enumerate(("query_norm", "key_norm"))])
    q, k = (g.apply("concat", *parts, axis=1) for parts in zip(*turned))      # [n, t, c]
    both = g.apply("concat", *products, axis=1)
    v = g.apply("slice", both, axis=2, start=2 * width, end=3 * width)        # [n, t, c]
    mixed = _attention(q, k, v, mask, config)                                 # [n, t, c]
    results = {name: _behind(x, rows(mixed, start, end), name, modulations[name], config)
               for name, (x, start, end) in streams.items()}
    return results["img"], results["txt"]


def single_block(x: Value, modulations: list[Value], cos: Value, sin: Value, config: FluxConfig,
                 mask: Scores = None) -> Value:
    """x [n, t, c] + gate * projection of what attention and MLP made of the same tokens.

    `modulations` are shift, scale and gate [n, c]; the mask [n, 1, 1, t] is added to all scores.
    """
    g, (n, _, width) = x.graph, x.shape
    shift, scale, gate = modulations
    parts = linear(modulated_norm(x, shift, scale, config.stream_eps), "linear1",
                   3 * width + config.inner_size, bias=config.bias)           # [n, t, 3 c + m]
    q, k = (_turned(parts, number, part, cos, sin, config)
            for number, part in enumerate(("query_norm", "key_norm")))
    v = g.apply("slice", parts, axis=2, start=2 * width, end=3 * width)
    hidden = g.apply("slice", parts, axis=2, start=3 * width, end=parts.shape[2])
    mixed = _attention(q, k, v, mask, config)
    y = linear(g.apply("concat", mixed, _activated(hidden, config), axis=2), "linear2", width,
               bias=config.bias)
    return x + gate.reshape(n, 1, width) * (y * config.unit)


def _final_layer(x: Value, shift: Value, scale: Value, height: int, width: int,
                 config: FluxConfig) -> Value:
    """Image tokens x [n, t, c] -> [n, out_channels, height, width]."""
    y = linear(modulated_norm(x, shift, scale, config.stream_eps), "linear",
               PATCH * PATCH * config.out_channels)
    return from_patches(y, PATCH, height, width)


def rows(x: Value, start: int, end: int) -> Value:
    """Tokens `start` to `end` of x [n, t, c]."""
    return x.graph.apply("slice", x, axis=1, start=start, end=end)


def _attention(q: Value, k: Value, v: Value, mask: Scores, config: FluxConfig) -> Value:
    if isinstance(mask, Sequence):
        ends = [*accumulate(count for count, _ in mask)]
        return side_by_side([
            _attention(rows(q, end - count, end), k, v, addend, config)
            for end, (count, addend) in zip(ends, mask, strict=True)])
    addend = [] if mask is None else [mask]
    return q.graph.apply("attention", q, k, v, *addend, num_heads=config.heads)


def _turned(qkv: Value, number: int, norm: str, cos: Value, sin: Value,
            config: FluxConfig) -> Value:
    """The queries (0) or keys (1) of qkv [n, t, 3 c ...], normalised in each head, then turned."""
    return turned_part(qkv, number, f"norm.{norm}", cos, sin, config.hidden_size, config.heads,
                       config.eps, "scale")


def _behind(x: Value, mixed: Value, name: str, modulations: list[Value],
            config: FluxConfig) -> Value:
    """x + gate * projection of what attention gave, then x + gate * MLP of it."""
    g, (n, _, width) = x.graph, x.shape
    _, _, gate, shift, scale, mlp_gate = modulations
    y = linear(mixed, f"{name}_attn.proj", width, bias=config.bias)
    x = x + gate.reshape(n, 1, width) * (y * config.unit)
    with g.scope(f"{name}_mlp"):
        y = linear(modulated_norm(x, shift, scale, config.stream_eps), "0", config.inner_size,
                   bias=config.bias)
        y = linear(_activated(y, config), "2", width, bias=config.bias)
        return x + mlp_gate.reshape(n, 1, width) * (y * config.unit)


def _activated(x: Value, config: FluxConfig) -> Value:
    """What the second layer of an MLP reads [n, t, mlp_size]."""
    if not config.gated:
        return gelu_tanh(x)
    parts = [x.graph.apply("slice", x, axis=2, start=i * config.mlp_size,
                           end=(i + 1) * config.mlp_size) for i in range(2)]
    gate, hidden = parts[::-1] if config.gates_last else parts
    return silu(gate) * hidden
