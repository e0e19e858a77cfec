"""Language models that read prompts: how files hold them, and their graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, count, has, most, sizes
from smalti.families.hints import TextHints
from smalti.families.keys.language import (
    GEMMA_GGUF,
    LANGUAGE_GGUF,
    VISION,
    VISION_GGUF,
    known_names,
    language_name,
    seeing_names,
)
from smalti.families.record import Layout, Text, TextEncoder
from smalti.graph import Graph
from smalti.models.language import language_graph
from smalti.models.language_config import (
    GEMMA2_2B,
    MINISTRAL_3B,
    MISTRAL_SMALL,
    QWEN3_4B,
    QWEN3_VL_4B,
    QWEN25_7B,
    QWEN25_VISION,
    LanguageConfig,
    VisionConfig,
)
from smalti.models.qwen_vision import qwen_vision_graph

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
"""A prompt as the only message of a user, as Qwen reads it, before an answer that thinks."""

CHATML_ANSWER = CHATML + "<think>\n\n</think>\n\n"
"""The same before an answer without thinking."""

SEEING_ALL = 8
"""One of so many blocks that read pictures in Qwen2.5-VL, the last of them, sees all patches."""

LAYERS = {1024: 28, 2048: 28, 2304: 26, 2560: 36, 3072: 26, 3584: 28, 4096: 36, 5120: 40}
"""Layers of the published models by their width: Qwen3 of 0.6, 1.7, 4 and 8 billion numbers, Gemma
2 2B, Ministral 3 3B, Qwen2.5-VL 7B and Mistral Small. Some files leave out the last ones, which
texts are not read by."""


def language_config(name: str, known: LanguageConfig, where: object, shapes: Shapes,
                    hints: TextHints, text: Text) -> LanguageConfig:
    """The language model `name`; what neither shapes show nor a file states is as in `known`.

    Raises CheckpointError where a number cannot be seen, where heads do not fit the width of what
    they are made of, or where an activation is stated that such a model has not.
    """
    title = f"the text encoder {name}"
    if hints.gate not in (None, known.gate):
        raise CheckpointError(f"{where}: the activation of {title} is stated as {hints.gate}; "
                              f"expected {known.gate}: this is another model")
    start = re.escape(_inside(name))
    layer = start + r"layers\.(\d{1,4})\."
    if text.seen is not None and not any(map(re.compile(layer).match, shapes)):
        raise CheckpointError(f"{where}: of {title} only what reads pictures is given; give the "
                              f"file of the language model, too, with another --text-encoder")

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
    layers = count(where, f"layer of {title}", shapes, layer)
    width = size("self_attn.q_proj", 1)
    last = max(_taps(width, layers, text))
    if last > layers:
        raise CheckpointError(f"{where}: {title} has {layers} layers, and texts are read behind the"
                              f" {last}th of {LAYERS.get(width, last)}; the file is cut off:"
                              f" download it again")
    return replace(
        known,
        vocab_size=next(iter(sizes(shapes, start + r"embed_tokens\.weight$", 0)), known.vocab_size),
        hidden_size=width,
        mlp_size=size("mlp.gate_proj", 0),
        layers=layers,
        heads=queries // head,
        kv_heads=keys // head,
        head_dim=head,
        rotary_base=hints.rotary_base or known.rotary_base,
        eps=hints.eps or known.eps,
        softcap=known.softcap and (hints.softcap or known.softcap),
        query_size=known.query_size and (hints.query_size or known.query_size),
        window=known.window and (hints.window or known.window),
        stretched=hints.stretched or known.stretched,
        stretched_from=hints.stretched_from or known.stretched_from,
        vision=None if text.seen is None else _vision_config(where, title, start, shapes, hints),
    )


def _vision_config(where: object, title: str, start: str, shapes: Shapes,
                   hints: TextHints) -> VisionConfig:
    """What reads pictures in a language model whose names begin with `start`, an expression.

    Raises CheckpointError where there is none, or where a number of it cannot be seen.
    """
    block = start + re.escape(VISION) + r"blocks\.(\d{1,4})\."
    if not any(map(re.compile(block).match, shapes)):
        raise CheckpointError(
            f"{where}: {title} comes without what reads pictures, whose tensors begin with "
            f"{VISION}; this model reads the picture that it changes: give {QWEN25_FILE}, or "
            f"beside a GGUF file also that of its mmproj, each with --text-encoder")

    def size(name: str, axis: int) -> int:
        return most(where, f"size of {name} of what reads pictures", sizes(
            shapes, start + re.escape(VISION) + name + r"\.weight$", axis))

    hidden = size(r"blocks\.\d+\.attn\.proj", 0)
    blocks = count(where, "block of what reads pictures", shapes, block)
    known = QWEN25_VISION
    return replace(
        known, hidden_size=hidden, mlp_size=size(r"blocks\.\d+\.mlp\.gate_proj", 0), blocks=blocks,
        heads=hints.vision_heads or max(1, hidden // known.head_dim),
        out_size=size(r"merger\.mlp\.2", 0),
        seeing_all=(tuple(range(SEEING_ALL - 1, blocks, SEEING_ALL)) if hints.vision_all is None
                    else hints.vision_all))


def _inside(name: str) -> str:
    return f"text_encoders.{name}.transformer."


def _taps(width: int, layers: int, text: Text) -> tuple[int, ...]:
    """The layers behind which texts are read, counted from 1. Those that a family counts from the
    end are counted so in the whole model, also where a file lacks the last ones."""
    return text.taps or (max(layers, LAYERS.get(width, layers)) - text.layer + 1,)


def _graph(name: str, config: LanguageConfig, text: Text) -> Callable[..., Graph]:
    """From (batch, tokens) to the graph."""
    taps = _taps(config.hidden_size, config.layers, text)
    return partial(language_graph, config, taps=taps, final_norm=text.final_norm,
                   masked=text.masked, filled_first=text.filled_first,
                   filled_at=text.filled_at,
                   seeing=text.seen is not None,
                   prefix=_inside(name).removesuffix("."))


_Shows = Callable[[Iterable[str], Shapes], bool]

_START = r"(text encoder\.)?(model\.)?(language_model\.)?(model\.)?layers\.\d+\."
"""What begins the names of layers, in files of all kinds and where they are not yet told apart."""


_PICTURE_START = r"(text encoder\.)?(model\.)?visual\."
_PICTURES = re.compile(_PICTURE_START + r"deepstack_merger_list\.")
"""What begins the names of layers that put pictures between those of Qwen3-VL."""


def _shows(ours: str, theirs: str, pictures: bool = False) -> _Shows:
    """Whether a layer has a tensor that transformers calls so, and llama.cpp so, and `pictures` are
    read as Qwen3-VL reads them."""
    mark = re.compile(rf"{_START}{re.escape(ours)}$|blk\.\d+\.{re.escape(theirs)}$")

    def shown(names: Iterable[str], shapes: Shapes) -> bool:
        found = (*names, *shapes)
        return any(map(mark.match, found)) and pictures == any(map(_PICTURES.match, found))

    return shown


def _layout(shows: _Shows, names: Iterable[str]) -> Layout | None:
    """Names of llama.cpp, or of transformers, which are used inside."""
    names = set(names)
    if not shows(names, {}):
        return None
    return LANGUAGE_GGUF if any(name.startswith("blk.") for name in names) else language_name


def _encoder(name: str, title: str, file: str, published: LanguageConfig, mark: tuple[str, str],
             pictures: bool = False, **more: Any) -> TextEncoder:
    """The record of one of them, of all sizes, which shapes tell; `mark` is a tensor of a layer
    that shows it, as transformers names it and as llama.cpp does, where it reads `pictures` as
    Qwen3-VL does."""
    shows, (ours, theirs) = _shows(*mark, pictures), mark
    starts = ("", "model.", "model.language_model.", "language_model.model.")
    return TextEncoder(
        name=name, title=title, file=file, width=published.hidden_size, inside=_inside(name),
        alone=(*(f"{start}layers.0.{ours}" for start in starts), f"blk.0.{theirs}"),
        config=partial(language_config, name, published), shows=shows,
        layout=partial(_layout, shows), graph=partial(_graph, name), wide=True, **more)


QWEN3 = _encoder(
    "qwen3", "the text encoder Qwen3", "qwen_3_4b.safetensors", QWEN3_4B,
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    prefixes=tuple(f"text_encoders.qwen3_{size}.transformer."
                   for size in ("06b", "2b", "4b", "8b")),
    tokenizer="qwen3", tokens=151_669, known=known_names(norms=True, biases=False))
"""Qwen3, which Z-Image and FLUX.2 klein read."""

QWEN25_FILE = "qwen_2.5_vl_7b.safetensors"
_TEXTS_OF_QWEN25 = ("self_attn.q_proj.bias", "attn_q.bias")
_SEES = re.compile(_PICTURE_START + r"blocks\.\d+\.mlp\.gate_proj\.weight$")
MMPROJ = ("v.blk.0.ffn_gate.weight", "v.patch_embd.weight.1")
"""Tensors of llama.cpp's files of what reads pictures in Qwen2.5-VL, which no others have both."""


def _shows_qwen25(names: Iterable[str], shapes: Shapes) -> bool:
    """It has what reads texts, or what reads pictures alone."""
    found = {*names, *shapes}
    return (_shows(*_TEXTS_OF_QWEN25)(found, {}) or any(map(_SEES.match, found))
            or found.issuperset(MMPROJ))


def _layout_of_qwen25(names: Iterable[str]) -> Layout | None:
    """Names of llama.cpp, or of transformers."""
    names = list(names)
    if not _shows_qwen25(names, {}):
        return None
    if any(name.startswith(("blk.", "v.blk.")) for name in names):
        return {**LANGUAGE_GGUF, **VISION_GGUF}
    return seeing_names(names)


def _seeing(config: LanguageConfig) -> Callable[..., Graph]:
    """From (batch, height, width in patches) to the graph of what reads pictures."""
    return partial(qwen_vision_graph, cast("VisionConfig", config.vision),
                   prefix=_inside("qwen25") + VISION.removesuffix("."))


_QWEN25 = _encoder(
    "qwen25", "the text encoder Qwen2.5-VL", QWEN25_FILE, QWEN25_7B, _TEXTS_OF_QWEN25,
    prefixes=("text_encoders.qwen25_7b.transformer.",), tokenizer="qwen2", tokens=151_665,
    known=known_names(norms=False, biases=True, beside=r"visual\..*"))
QWEN25 = replace(_QWEN25, alone=(*_QWEN25.alone, f"{VISION}merger.mlp.0.", MMPROJ[1]),
                 shows=_shows_qwen25, layout=_layout_of_qwen25, seeing=_seeing)
"""Qwen2.5-VL, which reads texts for Qwen-Image, and pictures with them for Qwen-Image-Edit."""

QWEN3_VL = _encoder(
    "qwen3vl", "the text encoder Qwen3-VL", "qwen3vl_4b_bf16.safetensors", QWEN3_VL_4B,
    ("self_attn.q_norm.weight", "attn_q_norm.weight"), pictures=True,
    prefixes=tuple(f"text_encoders.qwen3vl_{size}.transformer." for size in ("4b", "8b")),
    tokenizer="qwen3", tokens=151_669,
    known=known_names(norms=True, biases=False, beside=r"visual\..*"), architecture="qwen3vl")
"""What reads texts in Qwen3-VL, of 4 billion for Krea 2, of 8 billion for Qwen-Image-2.1; pictures
are not read. Without what reads them its layers have the names and shapes of Qwen3, and GGUF files
tell it by their architecture."""

GEMMA_MARK = "pre_feedforward_layernorm.weight", "post_ffw_norm.weight"
"""A tensor of a layer that shows Gemma, as transformers names it and as llama.cpp does."""

MISTRAL_SYSTEM = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing on"
    " object relationships, object\nattribution and actions without speculation.")
MISTRAL_TEMPLATE = f"<s>[SYSTEM_PROMPT]{MISTRAL_SYSTEM}[/SYSTEM_PROMPT][INST]{{}}[/INST]"
"""A prompt as the only message of a user, as FLUX.2 dev has it read."""


_LAYER_OF_MISTRAL = "self_attn.q_proj.weight", "attn_q.weight"
_WIDENS = re.compile(rf"({_START}mlp\.gate_proj|(.*\.)?blk\.\d+\.ffn_gate)\.weight$")
"""The first layers of MLPs."""
WIDE_MLP = 4
"""MLPs of Mistral Small are more times as wide as its states, 6.4, those of Ministral 3 fewer, 3.
"""


def _shows_mistral(names: Iterable[str], shapes: Shapes, wide: bool | None = None) -> bool:
    """It has neither what shows Qwen3 nor what shows Qwen2.5, and no norms behind layers; where
    shapes are known, MLPs are `wide` or not, unless either will do."""
    found = (*names, *shapes)
    layer = _shows(*_LAYER_OF_MISTRAL)
    others = (("self_attn.q_norm.weight", "attn_q_norm.weight"), _TEXTS_OF_QWEN25, GEMMA_MARK)
    widths = [shape for name, shape in shapes.items() if _WIDENS.match(name) and len(shape) == 2]
    told = wide is None or not widths or wide == (widths[0][0] > WIDE_MLP * widths[0][1])
    return told and layer(found, {}) and not any(_shows(*other)(found, {}) for other in others)


def _mistral_config(name: str, known: LanguageConfig, title: str, file: str, where: object,
                    shapes: Shapes, hints: TextHints, text: Text) -> LanguageConfig:
    """What its shapes show; its GGUF files have the rows of queries and keys in another order."""
    if has(shapes, f"{_inside(name)}blk."):
        raise CheckpointError(f"{where}: {title} is of a GGUF file, where queries and keys lie in "
                              f"another order, which is not read; take {file}, or the folder that "
                              f"it was published in")
    return language_config(name, known, where, shapes, hints, text)


def _mistral(name: str, title: str, file: str, published: LanguageConfig, wide: bool,
             prefix: str) -> TextEncoder:
    """The record of one of Mistral's, of which pictures are not read."""
    return replace(
        _encoder(name, title, file, published, _LAYER_OF_MISTRAL,
                 prefixes=(f"text_encoders.{prefix}.transformer.",), tokenizer="tekken",
                 known=known_names(norms=False, biases=False, beside=(
                     r"(vision_tower|multi_modal_projector)\..*|tekken_model"))),
        config=partial(_mistral_config, name, published, title, file),
        shows=partial(_shows_mistral, wide=wide),
        layout=lambda names: language_name if _shows_mistral(names, {}) else None)


MISTRAL = _mistral("mistral", "the text encoder Mistral Small",
                   "mistral_3_small_flux2_bf16.safetensors", MISTRAL_SMALL, True, "mistral3_24b")
"""Mistral Small 3.2, which FLUX.2 dev reads."""
MINISTRAL = _mistral("ministral", "the text encoder Ministral 3", "ministral-3-3b.safetensors",
                     MINISTRAL_3B, False, "ministral3_3b")
"""Ministral 3 3B, which ERNIE-Image reads."""

def _gemma_layout(names: Iterable[str]) -> Layout | None:
    """Names of llama.cpp, or of transformers, which are used inside."""
    found = _GEMMA.layout(names)
    return GEMMA_GGUF if found is LANGUAGE_GGUF else found


def _shows_gemma(names: Iterable[str], shapes: Shapes) -> bool:
    """Gemma 3 has norms of heads besides."""
    found = (*names, *shapes)
    return _GEMMA.shows(found, {}) and not QWEN3.shows(found, {})


GEMMA_FILE = "gemma_2_2b_fp16.safetensors"
_GEMMA = _encoder("gemma2", "the text encoder Gemma 2", GEMMA_FILE, GEMMA2_2B, GEMMA_MARK,
                  prefixes=("text_encoders.gemma2_2b.transformer.",), tokenizer="gemma",
                  known=known_names(norms=False, biases=False, sandwiched=True,
                                    beside="spiece_model"))
GEMMA2 = replace(_GEMMA, shows=_shows_gemma, layout=_gemma_layout)
"""Gemma 2, which Lumina-Image 2 reads."""

LANGUAGE_MODELS = (QWEN3, QWEN3_VL, QWEN25, GEMMA2, MISTRAL, MINISTRAL)
"""All that are known."""
