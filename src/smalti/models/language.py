"""Language models as text encoders: Qwen3 (Yang et al. 2025, arXiv:2505.09388) and its kin.

A layer is attention and a gated MLP, each behind an RMS norm and added to what it read; Gemma's
have a norm behind each, too, and scores of attention that grow to a limit. A token sees itself and
those before it, so that padding behind a text changes nothing of the text's states.
Names are those of transformers' `Qwen3Model`, under the prefix of the text encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.graph.operations.attention import LOWEST
from smalti.models.language_config import LanguageConfig
from smalti.nn import (
    capped_attention,
    embedding,
    gelu_tanh,
    hidden_scores,
    linear,
    out_of_sight,
    rms_norm,
    silu,
)

PREFIX = "text_encoders.qwen3.transformer"
TURNS_KEPT, TURNS_STRETCHED = 32, 1
"""Turns of a pair, in the tokens that a model was first trained with, from which on its step stays
as it is, and up to which it is stretched: those of the paper, which all models have."""
NO_RAMP = 0.001
"""Pairs between the two where these are one pair, as transformers has it."""
GATES = {"silu": silu, "gelu_tanh": gelu_tanh}
"""Activations of MLPs by their names."""


def language_graph(config: LanguageConfig, batch: int, length: int, *, taps: Sequence[int],
                   final_norm: bool = False, masked: bool = False, filled_first: bool = False,
                   filled_at: int | None = None, seeing: bool = False,
                   prefix: str = PREFIX) -> Graph:
    """tokens i32[batch, length] -> context f32[batch, length, hidden_size * number of taps].

    Tap k is the state behind k layers, channels side by side where there are several; what lies
    above the last of them is not computed. With `final_norm` the norm behind all layers is computed
    of each. With `masked` an input `mask` f32[batch, length] is 1 for tokens that others see, 0 for
    those that none sees; `filled_first` says that these stand before the others, and see nothing,
    `filled_at` at which place all of them stand, if they do not stand behind the others.
    If `seeing`, for texts with pictures among their tokens, there are inputs `pictures` f32[batch,
    length, hidden_size], which hold what stands for tokens that `shown` f32[batch, length] is 1 of,
    and zeros elsewhere, and `cos` and `sin` f32[batch, length, head_dim / 2] of all (see
    `picture_angles`). Raises InputError for a tap that the model has no layer for.

    >>> from smalti.models import QWEN3_4B
    >>> g = language_graph(QWEN3_4B, batch=1, length=64, taps=[35])
    >>> g.outputs["context"].shape, len(g.parameters)
    ((1, 64, 2560), 386)
    """
    if not taps or not all(1 <= tap <= config.layers for tap in taps):
        raise InputError(f"states behind the layers {[*taps]} are asked for; the text encoder has "
                         f"the layers 1 to {config.layers}")
    g, states = Graph("language"), {}
    ids = g.input("tokens", (batch, length), "i32")
    if seeing:
        pictures = g.input("pictures", (batch, length, config.hidden_size))
        shown = g.input("shown", (batch, length)).reshape(batch, length, 1)
        cos, sin = (g.input(name, (batch, length, config.head_dim // 2)) for name in ("cos", "sin"))
    else:
        cos, sin = (g.constant(table) for table in _angles(np.arange(length)[None, :, None],
                                                            config))
    seen = g.input("mask", (batch, length)) if masked else None
    if seen is not None and filled_at is not None:
        cos, sin = _filled_at(filled_at, seen.reshape(batch, length, 1), cos, sin, config)
    mask = [] if seen is None else [hidden_scores(seen)]
    sees = seen.reshape(batch, length, 1) if seen is not None and filled_first else None
    with g.scope(prefix):
        x = embedding(ids, "embed_tokens", config.vocab_size, config.hidden_size)  # [n, t, c]
        x = x * math.sqrt(config.hidden_size) if config.sandwiched else x
        x = x * (1.0 - shown) + pictures if seeing else x
        for i in range(max(taps)):
            with g.scope(f"layers.{i}"):
                x = _layer(x, i, mask, sees, cos, sin, config)                         # [n, t, c]
            states[i + 1] = _norm(x, "norm", config) if final_norm and i + 1 in taps else x
    read = [states[tap] for tap in taps]
    g.output("context", g.apply("concat", *read, axis=2) if len(read) > 1 else read[0])
    return g


def picture_angles(positions: np.ndarray, sections: Sequence[int],
                   config: LanguageConfig) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines f32[batch, length, head_dim / 2] of tokens of texts and of pictures.

    positions [batch, length, 3] are those in time, row and column, which are equal for tokens of a
    text; of the pairs of a head `sections[i]` turn with the i-th (Bai et al. 2025,
    arXiv:2502.13923, section 2.1.3). Raises InputError for sections that make up no head.

    >>> from smalti.models import QWEN25_7B
    >>> picture_angles(np.zeros((1, 5, 3)), (16, 24, 24), QWEN25_7B)[0].shape
    (1, 5, 64)
    """
    if sum(sections) != config.head_dim // 2:
        raise InputError(f"sections of {tuple(sections)} pairs do not make up a head of "
                         f"{config.head_dim} channels")
    return _angles(np.repeat(positions, sections, axis=2), config)


def _angles(positions: np.ndarray, config: LanguageConfig) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines f32[batch, length, head_dim / 2] of the rotations of positions
    [batch, length, 1 or head_dim / 2]."""
    powers = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    steps = np.float32(1) / np.float32(config.rotary_base) ** powers
    if config.stretched > 1:
        kept = _kept(config)
        steps = steps * kept + steps / np.float32(config.stretched) * (1 - kept)
    angles = positions.astype(np.float32) * steps
    return np.cos(angles), np.sin(angles)


def _filled_at(place: int, seen: Value, cos: Value, sin: Value,
               config: LanguageConfig) -> tuple[Value, Value]:
    """The angles of tokens, those at this place for tokens that are 0 in `seen` [n, t, 1]."""
    cos, sin = (own * seen + seen.graph.constant(table) * (1.0 - seen) for own, table in zip(
        (cos, sin), _angles(np.full((1, 1, 1), place), config), strict=True))
    return cos, sin


def _kept(config: LanguageConfig) -> np.ndarray:
    """How much of the step of each pair f32[head_dim / 2] stays as it is in a model whose positions
    are stretched: 1 where it turns often in the tokens that the model was first trained with, 0
    where it turns hardly once (Peng et al. 2023, arXiv:2309.00071, section 3.2)."""
    def pair(turns: float) -> float:
        """The pair that turns so often in these tokens."""
        return config.head_dim * math.log(config.stretched_from / (2 * math.pi * turns)) / (
            2 * math.log(config.rotary_base))

    low = max(math.floor(pair(TURNS_KEPT)), 0)
    high = min(math.ceil(pair(TURNS_STRETCHED)), config.head_dim - 1)
    places = np.arange(config.head_dim // 2, dtype=np.float32)
    ramp = (places - low) / np.float32(max(high - low, NO_RAMP))
    return 1 - np.clip(ramp, 0, 1)


def _layer(x: Value, number: int, mask: Sequence[Value], sees: Value | None, cos: Value,
           sin: Value, config: LanguageConfig) -> Value:
    """x + attention(norm(x)), then x + mlp(norm(x)); x [n, t, c]. What attention gives counts where
    a token `sees` anything [n, t, 1]."""
    g, width = x.graph, config.hidden_size
    y = _norm(x, "input_layernorm", config)
    with g.scope("self_attn"):
        q = _turned(y, "q", config.heads, cos, sin, config)
        k = _turned(y, "k", config.kv_heads, cos, sin, config)
        v = linear(y, "v_proj", config.kv_heads * config.head_dim, bias=config.qkv_bias)
        y = _attention(q, k, v, mask, 0 if number % 2 else config.window, config)
        y = linear(y if sees is None else y * sees, "o_proj", width, bias=False)
    if config.sandwiched:
        y = _norm(y, "post_attention_layernorm", config)
    x = x + y
    y = _norm(x, "pre_feedforward_layernorm" if config.sandwiched else "post_attention_layernorm",
              config)
    with g.scope("mlp"):
        gate, y = (linear(y, name, config.mlp_size, bias=False) for name in
                   ("gate_proj", "up_proj"))
        y = linear(GATES[config.gate](gate) * y, "down_proj", width, bias=False)
    return x + (_norm(y, "post_feedforward_layernorm", config) if config.sandwiched else y)


def _norm(x: Value, name: str, config: LanguageConfig) -> Value:
    """x [..., c] over its root mean square; to stored factors one may be to add."""
    return rms_norm(x, name, config.eps, added=float(config.sandwiched))


def _attention(q: Value, k: Value, v: Value, mask: Sequence[Value], window: int,
               config: LanguageConfig) -> Value:
    """What tokens make of those before them, of at most `window` where that is not 0."""
    g, length = q.graph, q.shape[1]
    scale = (config.query_size or config.head_dim) ** -0.5
    if config.softcap:
        return capped_attention(q, k, v, *mask, heads=config.heads, cap=config.softcap, scale=scale,
                                window=window)
    if 0 < window < length:
        far = g.constant(np.where(out_of_sight(length, window), np.float32(LOWEST),
                                  np.float32(0))[None, None])
        mask = [far + mask[0] if mask else far]
    stated = {"scale": scale} if config.query_size else {}
    return g.apply("attention", q, k, v, *mask, num_heads=config.heads, is_causal=1, **stated)


def _turned(x: Value, kind: str, heads: int, cos: Value, sin: Value,
            config: LanguageConfig) -> Value:
    """Queries or keys [n, t, heads * head_dim], normalised in each head, then turned."""
    n, tokens, _ = x.shape
    width = heads * config.head_dim
    y = linear(x, f"{kind}_proj", width, bias=config.qkv_bias)
    if config.qk_norm:
        y = _norm(y.reshape(n, tokens, heads, config.head_dim), f"{kind}_norm", config)
        y = y.reshape(n, tokens, width)
    return x.graph.apply("rotary_embedding", y, cos, sin, num_heads=heads)
