"""The text encoders CLIP-L, OpenCLIP-H and OpenCLIP-bigG: how files hold them, and their graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, count, most, sizes
from smalti.families.hints import TextHints
from smalti.families.keys import CLIP_OPENCLIP
from smalti.families.keys.renaming import clip_name
from smalti.families.record import Layout, Text, TextEncoder
from smalti.families.spelling import Layers, SpelledLayers
from smalti.graph import Graph
from smalti.models.clip_text import clip_text_graph
from smalti.models.config import CLIP_L, OPENCLIP_G, OPENCLIP_H, ClipTextConfig

HEAD_DIM = 64  # of every CLIP text encoder that was published
OPENCLIP_H_LAYERS = 23  # of 24: Stable Diffusion 2 reads the state before the last layer


def clip_config(name: str, known: ClipTextConfig, where: object, shapes: Shapes, hints: TextHints,
                text: Text) -> ClipTextConfig:
    """The hyperparameters of the text encoder `name`; what shapes do not tell is as in `known`.

    Raises CheckpointError where a number can neither be seen nor is stated.
    """
    inside = re.escape(f"{known.prefix}.text_model.")
    layer = inside + r"encoder\.layers\.(\d{1,4})\."

    def embedding(kind: str, axis: int) -> list[int]:
        return sizes(shapes, inside + rf"embeddings\.{kind}_embedding\.weight$", axis)

    hidden = most(where, "text encoder's width", [
        *sizes(shapes, layer + r"layer_norm\d\.\w+$", 0), *embedding("token", 1)])
    if hints.heads is None and hidden % HEAD_DIM:
        raise CheckpointError(
            f"{where}: the text encoder's width {hidden} is no multiple of {HEAD_DIM}, so its"
            " number of heads is unknown; state it as `text.num_attention_heads` in the metadata"
            " `arch_config`"
        )
    layers = count(where, "text encoder layer", shapes, layer)
    projection = sizes(shapes, re.escape(f"{known.prefix}.text_projection.weight") + "$", 0)
    return ClipTextConfig(
        vocab_size=next(iter(embedding("token", 0)), known.vocab_size),
        hidden_size=hidden,
        intermediate_size=most(where, "text encoder's inner width",
                               sizes(shapes, layer + r"mlp\.fc1\.\w+$", 0)),
        layers=min(layers, OPENCLIP_H_LAYERS) if name == "clip_h" else layers,
        heads=hints.heads or hidden // HEAD_DIM,
        positions=max(*embedding("position", 0), known.positions, 0),  # fewer: damaged
        activation=hints.activation or known.activation,
        eps=hints.eps or known.eps,
        projection=next(iter(projection), known.projection or hidden) if text.projected else 0,
        prefix=known.prefix,
    )


def _graph(config: ClipTextConfig, text: Text) -> Callable[..., Graph]:
    """From (batch, skip) to the graph that reads the state that is `skip`-th from the end; with
    True behind them, it reads the rows of tokens instead of their numbers."""
    return lambda batch, skip, embedded=False: clip_text_graph(
        config, batch, skip=skip, final_norm=text.final_norm, pooled=text.pooled,
        embedded=embedded)


def _layout(names: Iterable[str]) -> Layout | None:
    """Names of OpenCLIP, or of transformers with and without `text_model.`; not those of what reads
    pictures."""
    names = list(names)
    if any("patch_embedding." in name for name in names):
        return None
    if any(name.startswith("transformer.resblocks.") for name in names):
        return CLIP_OPENCLIP
    ours = ("text_model.", "embeddings.", "encoder.layers.", "final_layer_norm.")
    return clip_name if any(name.startswith(ours) for name in names) else None


_OPEN_CLIP = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_OLD_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


def _spelled(layers: Layers) -> SpelledLayers:
    """Names of transformers, with and without `text_model.`, of old diffusers, of OpenCLIP."""
    for full in layers.rows:
        path, target = full.removeprefix("text_model."), layers.whole(full)
        yield full, target
        yield path, target
        place, _, leaf = path.rpartition(".")
        if place.endswith(".self_attn"):
            yield f"text_model.{place}.{_OLD_ATTENTION[leaf]}", target
        match = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", path)
        if match is None:
            continue
        block = f"transformer.resblocks.{match[1]}"
        if match[2] in _OPEN_CLIP:
            yield f"{block}.{_OPEN_CLIP[match[2]]}", target
        elif match[2] == "self_attn.q_proj":
            fused = tuple(part for name in ("q_proj", "k_proj", "v_proj")
                          for part in layers.whole(f"text_model.{place}.{name}"))
            yield f"{block}.attn.in_proj", fused


ALONE = ("cond_stage_model.", "conditioner.", "text_model.", "embeddings.",
         "transformer.resblocks.0.")
"""What begins the names in files of one of them alone."""


def _encoder(name: str, title: str, known: ClipTextConfig, prefixes: tuple[str, ...],
             padding: int | None) -> TextEncoder:
    """The record of one of them, which are told apart by their widths."""
    def shows(names: Iterable[str], shapes: Shapes) -> bool:
        width = next((shape[0] for tensor, shape in shapes.items()
                      if tensor.endswith("final_layer_norm.bias") and shape), 0)
        return width == known.hidden_size

    return TextEncoder(
        name=name, title=title, file=f"{name}.safetensors", width=known.hidden_size,
        inside=f"{known.prefix}.", prefixes=prefixes, alone=ALONE, tokenizer="clip",
        config=partial(clip_config, name, known), shows=shows, layout=_layout,
        graph=_graph, spelled=_spelled, padding=padding)


L = _encoder("clip_l", "the text encoder CLIP-L", CLIP_L,
             ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer."), None)
H = _encoder("clip_h", "the text encoder OpenCLIP-H", OPENCLIP_H, ("cond_stage_model.model.",), 0)
G = _encoder("clip_g", "the text encoder OpenCLIP-bigG", OPENCLIP_G,
             ("conditioner.embedders.1.model.", "conditioner.embedders.0.model."), 0)
