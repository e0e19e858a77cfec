"""Language models that read prompts: how files hold them, and their graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, count, most, sizes
from smalti.families.hints import TextHints
from smalti.families.keys.language import LANGUAGE_GGUF, LANGUAGE_KNOWN, language_name
from smalti.families.record import Layout, Text, TextEncoder
from smalti.graph import Graph
from smalti.models.language import language_graph
from smalti.models.language_config import QWEN3_4B, LanguageConfig

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
"""A prompt as the only message of a user, as Qwen reads it, before an answer that thinks."""


def language_config(name: str, known: LanguageConfig, where: object, shapes: Shapes,
                    hints: TextHints, text: Text) -> LanguageConfig:
    """The language model `name`; what neither shapes show nor a file states is as in `known`.

    Raises CheckpointError where a number cannot be seen, or where heads do not fit the width of
    what they are made of.
    """
    title = f"the text encoder {name}"
    start = re.escape(_inside(name))
    layer = start + r"layers\.(\d{1,4})\."

    def size(module: str, axis: int) -> int:
        return most(where, f"size of {module} of {title}",
                    sizes(shapes, layer + re.escape(module) + r"\.weight$", axis))

    norms = sizes(shapes, layer + r"self_attn\.[qk]_norm\.weight$", 0)
    queries, keys = size("self_attn.q_proj", 0), size("self_attn.k_proj", 0)
    head = most(where, f"width of a head of {title}", norms) if norms else hints.head_dim or (
        queries // hints.heads if hints.heads else known.head_dim)
    if not head or head % 2 or queries % head or keys % head or queries % keys:
        raise CheckpointError(
            f"{where}: {title} has {queries} channels of queries and {keys} of keys, which heads of"
            f" {head} channels do not share evenly; the file is damaged or of another model")
    return LanguageConfig(
        vocab_size=next(iter(sizes(shapes, start + r"embed_tokens\.weight$", 0)), known.vocab_size),
        hidden_size=size("self_attn.q_proj", 1),
        mlp_size=size("mlp.gate_proj", 0),
        layers=count(where, f"layer of {title}", shapes, layer),
        heads=queries // head,
        kv_heads=keys // head,
        head_dim=head,
        rotary_base=hints.rotary_base or known.rotary_base,
        eps=hints.eps or known.eps,
        qk_norm=known.qk_norm,
        qkv_bias=known.qkv_bias,
    )


def _inside(name: str) -> str:
    return f"text_encoders.{name}.transformer."


def _graph(name: str, config: LanguageConfig, text: Text) -> Callable[..., Graph]:
    """From (batch, tokens) to the graph."""
    taps = text.taps or (config.layers - text.layer + 1,)
    return partial(language_graph, config, taps=taps, final_norm=text.final_norm,
                   prefix=_inside(name).removesuffix("."))


def _shows_qwen3(names: Iterable[str], shapes: Shapes) -> bool:
    return any(name.endswith((".self_attn.q_norm.weight", ".attn_q_norm.weight"))
               for name in (*names, *shapes))


def _layout(shows: Callable[[Iterable[str], Shapes], bool], names: Iterable[str]) -> Layout | None:
    """Names of llama.cpp, or of transformers, which are used inside."""
    names = set(names)
    if not shows(names, {}):
        return None
    return LANGUAGE_GGUF if any(name.startswith("blk.") for name in names) else language_name


QWEN3 = TextEncoder(
    name="qwen3",
    title="the text encoder Qwen3",
    file="qwen_3_4b.safetensors",
    width=QWEN3_4B.hidden_size,
    inside=_inside("qwen3"),
    prefixes=tuple(f"text_encoders.qwen3_{size}.transformer."
                   for size in ("06b", "2b", "4b", "8b")),
    alone=("model.layers.0.self_attn.q_norm.", "layers.0.self_attn.q_norm.", "blk.0.attn_q_norm."),
    tokenizer="qwen3",
    tokens=151_669,
    config=partial(language_config, "qwen3", QWEN3_4B),
    shows=_shows_qwen3,
    layout=partial(_layout, _shows_qwen3),
    graph=partial(_graph, "qwen3"),
    known=LANGUAGE_KNOWN,
)
"""Of all sizes, which shapes tell."""

LANGUAGE_MODELS = (QWEN3,)
"""All that are known."""
