"""The text encoder T5 v1.1 XXL: how files hold it, and its graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, count, has, most, sizes
from smalti.families.hints import TextHints
from smalti.families.keys import T5_GGUF
from smalti.families.keys.renaming import t5_name
from smalti.families.record import Layout, Text, TextEncoder
from smalti.graph import Graph
from smalti.models.t5 import PREFIX, t5_graph
from smalti.models.transformer_config import T5_XXL, T5Config


def t5_config(where: object, shapes: Shapes, hints: TextHints, text: Text) -> T5Config:
    """The encoder of T5. Raises CheckpointError where a number cannot be seen."""
    block = re.escape(f"{PREFIX}.encoder.block.") + r"(\d{1,4})\.layer\."
    attention = block + r"0\.SelfAttention\."
    if has(shapes, f"{PREFIX}.encoder.block.1.layer.0.SelfAttention.relative_attention_bias."):
        raise CheckpointError(f"{where}: its text encoder is UMT5, with a table of distances in "
                              f"each layer, where T5-XXL is expected (t5xxl_fp16.safetensors)")
    heads = most(where, "heads of T5", sizes(
        shapes, attention + r"relative_attention_bias\.weight$", 1))
    inner = most(where, "inner width of T5", sizes(shapes, attention + r"[qkv]\.weight$", 0))
    if not heads or inner % heads:
        raise CheckpointError(f"{where}: T5's {inner} channels cannot be split into {heads} heads")
    return T5Config(
        vocab_size=next(iter(sizes(shapes, re.escape(f"{PREFIX}.shared.weight") + "$", 0)),
                        T5_XXL.vocab_size),
        hidden_size=most(where, "width of T5", sizes(shapes, attention + r"[qkv]\.weight$", 1)),
        mlp_size=most(where, "inner width of T5's MLPs",
                      sizes(shapes, block + r"1\.DenseReluDense\.wi_[01]\.weight$", 0)),
        layers=count(where, "block of T5", shapes, block),
        heads=heads,
        head_dim=inner // heads,
        buckets=most(where, "distances of T5", sizes(
            shapes, attention + r"relative_attention_bias\.weight$", 0)),
    )


def _graph(config: T5Config, text: Text) -> Callable[..., Graph]:
    """From (batch, tokens) to the graph."""
    return partial(t5_graph, config, masked=text.masked)


def _shows(names: Iterable[str], shapes: Shapes) -> bool:
    return any(".SelfAttention." in name for name in (*names, *shapes))


def _layout(names: Iterable[str]) -> Layout | None:
    """Names of llama.cpp, or of transformers, which are used inside."""
    names = set(names)
    if any(name.startswith("enc.blk.") for name in names):
        return T5_GGUF
    if any(name.startswith("encoder.block.") for name in names):
        return str if "shared.weight" in names else t5_name
    return None


XXL = TextEncoder(
    name="t5xxl",
    title="the text encoder T5-XXL",
    file="t5xxl_fp16.safetensors",
    width=T5_XXL.hidden_size,
    inside=f"{PREFIX}.",
    prefixes=(),
    alone=("encoder.block.0.layer.0.SelfAttention", "enc.blk.0."),
    tokenizer="t5",
    tokens=32_100,
    wide=True,
    config=t5_config,
    shows=_shows,
    layout=_layout,
    graph=_graph,
)
