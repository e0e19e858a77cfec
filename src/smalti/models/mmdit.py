"""The multimodal diffusion transformer of Stable Diffusion 3 (Esser et al. 2024, arXiv:2403.03206).

Image and text tokens have weights of their own in each block and attend to all. Names are those of
the original checkpoint (`joint_blocks.0.x_block.attn.qkv.weight`, ...).
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.flux import Places, control_inputs
from smalti.models.transformer_config import MMDiTConfig
from smalti.nn import (
    conv2d,
    from_patches,
    gelu_tanh,
    linear,
    modulated_norm,
    modulation,
    rms_norm,
    silu,
    timestep_embedding,
    to_tokens,
)

PREFIX = "model.diffusion_model"
PATCH = 2
"""Pixels of the latent along each side of a token."""
TIME_FEATURES = 256
"""Sinusoids that the time becomes (the authors' `TimestepEmbedder`)."""
MLP_MULTIPLE = 4
"""Inner width of a block's MLP, in widths of the block."""


def mmdit_graph(config: MMDiTConfig, batch: int, height: int, width: int, length: int, *,
                control: Places = (), gated: bool = False) -> Graph:
    """One evaluation of the denoiser; `height` and `width` are those of the latent.

    latent f32[batch, in_channels, height, width], timesteps f32[batch] from 0 to 1000 (noise),
    context f32[batch, length, context_dim], pooled f32[batch, pooled_dim] -> prediction f32[batch,
    out_channels, height, width], the velocity from picture to noise. `control` holds for each block
    the number of the input `control.0`, ... f32[batch, height / 2 * width / 2, hidden_size] that is
    added to the image tokens behind it, -1 for none. If `gated` there is an input `keep`
    f32[batch, blocks]: what a block adds is multiplied by it, so that 0 leaves the block out, as
    skip-layer guidance wants it. Raises InputError for a latent of odd size, or of more tokens than
    there are learned positions, or for controls of another number of blocks.

    >>> from smalti.models import SD3_MEDIUM
    >>> g = mmdit_graph(SD3_MEDIUM, batch=2, height=128, width=96, length=154)
    >>> list(g.inputs), g.outputs["prediction"].shape
    (['latent', 'timesteps', 'context', 'pooled'], (2, 16, 128, 96))
    """
    g, tokens = Graph("mmdit"), (height // PATCH) * (width // PATCH)
    latent = g.input("latent", (batch, config.in_channels, height, width))
    timesteps = g.input("timesteps", (batch,))
    context = g.input("context", (batch, length, config.context_dim))
    pooled = g.input("pooled", (batch, config.pooled_dim))
    controls = control_inputs(g, "control.", control, config.blocks,
                              (batch, tokens, config.hidden_size))
    keep = g.input("keep", (batch, config.blocks)) if gated else None
    with g.scope(PREFIX):
        vec = condition(timesteps, pooled, config)                   # [n, c]
        x = image_tokens(latent, config)                             # [n, t, c]
        context = linear(context, "context_embedder", config.hidden_size)
        for i in range(config.blocks):
            kept = keep if keep is None else g.apply("slice", keep, axis=1, start=i, end=i + 1)
            with g.scope(f"joint_blocks.{i}"):
                x, context = joint_block(x, context, vec, config, dual=i < config.dual_blocks,
                                         last=i == config.blocks - 1, keep=kept)
            steering = controls[i]
            if steering is not None:
                x = x + steering
        with g.scope("final_layer"):
            shift, scale = modulation(vec, "adaLN_modulation.1", 2)
            x = modulated_norm(x, shift, scale, config.eps)
            x = linear(x, "linear", PATCH * PATCH * config.out_channels)
        g.output("prediction", from_patches(x, PATCH, height, width, pixels_first=True))
    return g


def condition(timesteps: Value, pooled: Value, config: MMDiTConfig) -> Value:
    """What all blocks are modulated by [n, c]: time, and the text as a whole."""
    return (_embedder(timestep_embedding(timesteps, TIME_FEATURES), "t_embedder", config)
            + _embedder(pooled, "y_embedder", config))


def _embedder(x: Value, name: str, config: MMDiTConfig) -> Value:
    with x.graph.scope(f"{name}.mlp"):
        return linear(silu(linear(x, "0", config.hidden_size)), "2", config.hidden_size)


def image_tokens(latent: Value, config: MMDiTConfig) -> Value:
    """Tokens of the latent with their positions added [n, t, c].

    Raises InputError for a latent that does not divide into tokens, or has too many.
    """
    (_, _, height, width), g, side = latent.shape, latent.graph, config.positions
    if height % PATCH or width % PATCH or min(height, width) < 1 \
            or max(height, width) > side * PATCH:
        raise InputError(f"a latent of {height} x {width} (height x width) is given; tokens are "
                         f"{PATCH} x {PATCH} pixels of it, so both must be positive and even, and "
                         f"at most {side * PATCH}")
    x = to_tokens(conv2d(latent, "x_embedder.proj", config.hidden_size, PATCH, stride=PATCH,
                         pads=(0, 0, 0, 0)))
    places = g.parameter("pos_embed", (1, side * side, config.hidden_size))
    places = places.reshape(side, side, config.hidden_size)
    for axis, extent in enumerate((height // PATCH, width // PATCH)):
        start = (side - extent) // 2
        places = g.apply("slice", places, axis=axis, start=start, end=start + extent)
    return x + places.reshape(1, *x.shape[1:])


def joint_block(x: Value, context: Value, vec: Value, config: MMDiTConfig, *, dual: bool = False,
                last: bool = False, keep: Value | None = None) -> tuple[Value, Value]:
    """x [n, i, c] and context [n, t, c] after attention to both and an MLP each.

    In a `dual` block x also attends to itself alone. The `last` block gives the context as it was:
    nothing reads it any more. All that is added is multiplied by `keep` [n, 1].
    """
    g, width = x.graph, config.hidden_size
    with g.scope("context_block"):
        parts = _kept(modulation(vec, "adaLN_modulation.1", 2 if last else 6), keep)
        text = linear(modulated_norm(context, parts[0], parts[1], config.eps), "attn.qkv",
                      3 * width)
    with g.scope("x_block"):
        own = _kept(modulation(vec, "adaLN_modulation.1", 9 if dual else 6), keep)
        image = linear(modulated_norm(x, own[0], own[1], config.eps), "attn.qkv", 3 * width)
    both = {"context_block": text, "x_block": image}
    q, k, v = (_heads(both, number, config) for number in range(3))
    if last:
        q = _rows(q, context.shape[1], q.shape[1])
    mixed = g.apply("attention", q, k, v, num_heads=config.heads)
    start = 0 if last else context.shape[1]
    with g.scope("x_block"):
        again = _self_attention(x, own[6:8], "attn2", config) if dual else None
        x = _gated(x, _rows(mixed, start, mixed.shape[1]), "attn", own[2])
        if again is not None:
            x = _gated(x, again, "attn2", own[8])
        x = _mlp(x, own[3:6], config)
    if not last:
        with g.scope("context_block"):
            context = _mlp(_gated(context, _rows(mixed, 0, start), "attn", parts[2]), parts[3:],
                           config)
    return x, context


def _kept(parts: list[Value], keep: Value | None) -> list[Value]:
    """Shifts, scales and gates, every third of them a gate, which is multiplied by `keep`."""
    if keep is None:
        return parts
    return [part * keep if i % 3 == 2 else part for i, part in enumerate(parts)]


def self_block(x: Value, vec: Value, config: MMDiTConfig) -> Value:
    """x [n, t, c] after attention to itself alone and an MLP."""
    parts = modulation(vec, "adaLN_modulation.1", 6)
    x = _gated(x, _self_attention(x, parts[:2], "attn", config), "attn", parts[2])
    return _mlp(x, parts[3:], config)


def _self_attention(x: Value, parts: list[Value], name: str, config: MMDiTConfig) -> Value:
    """What attention to themselves gives for x [n, t, c]; `parts` are shift and scale [n, c]."""
    shift, scale = parts
    product = {"": linear(modulated_norm(x, shift, scale, config.eps), f"{name}.qkv",
                          3 * config.hidden_size)}
    return x.graph.apply("attention", *(_heads(product, number, config, name)
                                        for number in range(3)), num_heads=config.heads)


def _heads(products: dict[str, Value], number: int, config: MMDiTConfig,
           name: str = "attn") -> Value:
    """Queries (0), keys (1) or values (2) [n, t, c] of products [n, t, 3 c], one behind another.

    With norms, queries and keys of each product are normalised in the scope that is its key.
    """
    g, width = next(iter(products.values())).graph, config.hidden_size
    if not config.qk_norm or number == 2:  # of all at once, so that no product is copied
        both = g.apply("concat", *products.values(), axis=1)
        return g.apply("slice", both, axis=2, start=number * width, end=(number + 1) * width)
    parts = []
    for scope, product in products.items():
        n, tokens, _ = product.shape
        part = g.apply("slice", product, axis=2, start=number * width, end=(number + 1) * width)
        norm = ".".join(filter(None, (scope, name, ("ln_q", "ln_k")[number])))
        part = rms_norm(part.reshape(n, tokens, config.heads, config.head_dim), norm, config.eps)
        parts.append(part.reshape(n, tokens, width))
    return g.apply("concat", *parts, axis=1)


def _rows(x: Value, start: int, end: int) -> Value:
    return x.graph.apply("slice", x, axis=1, start=start, end=end)


def _gated(x: Value, mixed: Value, name: str, gate: Value) -> Value:
    """x + gate * projection of what attention gave."""
    n, _, width = x.shape
    return x + gate.reshape(n, 1, width) * linear(mixed, f"{name}.proj", width)


def _mlp(x: Value, parts: list[Value], config: MMDiTConfig) -> Value:
    """x + gate * MLP of x; `parts` are shift, scale and gate [n, c]."""
    (n, _, width), (shift, scale, gate) = x.shape, parts
    with x.graph.scope("mlp"):
        y = gelu_tanh(linear(modulated_norm(x, shift, scale, config.eps), "fc1",
                             MLP_MULTIPLE * width))
        return x + gate.reshape(n, 1, width) * linear(y, "fc2", width)
