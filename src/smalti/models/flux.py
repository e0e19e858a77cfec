"""A double-stream block of Flux: image and text tokens, with weights of their own, attend to all.

Names are those of the original checkpoint (`double_blocks.0.img_attn.qkv.weight`, ...).
"""

from __future__ import annotations

from smalti.graph import Graph, Value
from smalti.models.config import FluxConfig
from smalti.nn import gelu_tanh, linear, modulated_norm, rms_norm, rotary_embedding, silu


def flux_double_block_graph(config: FluxConfig, image_tokens: int, text_tokens: int,
                            batch: int = 1) -> Graph:
    """img [n, image_tokens, c], txt [n, text_tokens, c], vec [n, c] -> img, txt of the same shapes.

    c is the hidden size; `cos` and `sin` [1, text_tokens + image_tokens, head_dim / 2] hold one
    angle a pair of channels, those of the text tokens first. Raises InputError when the heads do
    not divide the hidden size into even parts.

    >>> from smalti.models.config import FLUX1
    >>> g = flux_double_block_graph(FLUX1, image_tokens=1024, text_tokens=256)
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
        img, txt = _double_block(img, txt, vec, cos, sin, config)
    g.output("img", img)
    g.output("txt", txt)
    return g


def _double_block(img: Value, txt: Value, vec: Value, cos: Value, sin: Value,
                  config: FluxConfig) -> tuple[Value, Value]:
    g, heads, width = img.graph, config.heads, config.hidden_size
    split = txt.shape[1]
    streams = {"txt": (txt, 0, split), "img": (img, split, cos.shape[1])}
    modulation, products, turned = {}, [], []
    for name, (x, start, end) in streams.items():
        modulation[name] = _modulation(vec, f"{name}_mod.lin", width)
        shift, scale = modulation[name][:2]
        normal = modulated_norm(x, shift, scale, config.eps)
        with g.scope(f"{name}_attn"):
            products.append(linear(normal, "qkv", 3 * width))                 # [n, t, 3 c]
            turned.append([_turned(products[-1], number, part, _rows(cos, start, end),
                                   _rows(sin, start, end), config)
                           for number, part in enumerate(("query_norm", "key_norm"))])
    q, k = (g.apply("concat", *parts, axis=1) for parts in zip(*turned))      # [n, t, c]
    both = g.apply("concat", *products, axis=1)
    v = g.apply("slice", both, axis=2, start=2 * width, end=3 * width)        # [n, t, c]
    mixed = g.apply("attention", q, k, v, num_heads=heads)                    # [n, t, c]
    results = {name: _behind(x, _rows(mixed, start, end), name, modulation[name], config)
               for name, (x, start, end) in streams.items()}
    return results["img"], results["txt"]


def _modulation(vec: Value, name: str, width: int) -> list[Value]:
    """Shift, scale and gate [n, c] of the attention, then those of the MLP."""
    parts = linear(silu(vec), name, 6 * width)
    return [vec.graph.apply("slice", parts, axis=1, start=i * width, end=(i + 1) * width)
            for i in range(6)]


def _rows(x: Value, start: int, end: int) -> Value:
    """Tokens `start` to `end` of x [n, t, c]."""
    return x.graph.apply("slice", x, axis=1, start=start, end=end)


def _turned(qkv: Value, number: int, norm: str, cos: Value, sin: Value,
            config: FluxConfig) -> Value:
    """The queries (0) or keys (1) of qkv [n, t, 3 c], normalised in each head, then turned."""
    (n, tokens, _), width = qkv.shape, config.hidden_size
    part = qkv.graph.apply("slice", qkv, axis=2, start=number * width, end=(number + 1) * width)
    part = rms_norm(part.reshape(n, tokens, config.heads, config.head_dim), f"norm.{norm}",
                    config.eps, weight="scale")
    return rotary_embedding(part.reshape(n, tokens, width), cos, sin, config.heads)


def _behind(x: Value, mixed: Value, name: str, modulation: list[Value],
            config: FluxConfig) -> Value:
    """x + gate * projection of what attention gave, then x + gate * MLP of it."""
    g, (n, _, width) = x.graph, x.shape
    _, _, gate, shift, scale, mlp_gate = modulation
    x = x + gate.reshape(n, 1, width) * linear(mixed, f"{name}_attn.proj", width)
    with g.scope(f"{name}_mlp"):
        y = gelu_tanh(linear(modulated_norm(x, shift, scale, config.eps), "0", config.mlp_size))
        return x + mlp_gate.reshape(n, 1, width) * linear(y, "2", width)
