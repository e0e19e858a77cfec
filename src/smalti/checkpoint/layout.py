"""Which part of a model each tensor of a file belongs to, and which parameter it is inside.

A file may hold one part or several, each below a prefix of its own and under the names of one of
several code bases. Inside, parameters have one name each: those of the graphs in `smalti.models`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from smalti.families.keys import (
    CHROMA_DIFFUSERS,
    FLUX_DIFFUSERS,
    T5_GGUF,
    Expression,
    StoredRows,
    Table,
    expressions,
    renaming,
    sd3_diffusers,
)
from smalti.families.keys.clip import CLIP_OPENCLIP
from smalti.models.config import CLIP_L, OPENCLIP_G, OPENCLIP_H
from smalti.models.t5 import PREFIX as T5_PREFIX

DENOISER = "denoiser"
VAE = "vae"
TEXT = "text encoder"
"""The part that a file of a text encoder alone holds, until its shapes say which one it is."""

PREFIXES = (
    ("model.diffusion_model.", DENOISER),
    ("first_stage_model.", VAE),
    ("vae.", VAE),
    ("cond_stage_model.transformer.", "clip_l"),
    ("cond_stage_model.model.", "clip_h"),
    ("conditioner.embedders.0.transformer.", "clip_l"),
    ("conditioner.embedders.1.model.", "clip_g"),
    ("conditioner.embedders.0.model.", "clip_g"),
    *((f"text_encoders.{name}.{middle}", name)
      for middle in ("transformer.", "model.", "") for name in ("clip_l", "clip_h", "clip_g",
                                                                "t5xxl")),
)
"""What the names of a part start with in files that hold several; the longer ones first."""

BARE_PREFIXES = ("diffusion_model.", "model.")
"""What the names of a denoiser alone may start with."""

INSIDE = {
    DENOISER: "model.diffusion_model.",
    VAE: "first_stage_model.",
    "clip_l": f"{CLIP_L.prefix}.",
    "clip_h": f"{OPENCLIP_H.prefix}.",
    "clip_g": f"{OPENCLIP_G.prefix}.",
    "t5xxl": f"{T5_PREFIX}.",
}
"""What parameters of a part start with inside."""

TITLES = {
    DENOISER: "the denoiser",
    VAE: "the autoencoder (VAE)",
    "clip_l": "the text encoder CLIP-L",
    "clip_h": "the text encoder OpenCLIP-H",
    "clip_g": "the text encoder OpenCLIP-bigG",
    "t5xxl": "the text encoder T5-XXL",
}

CLIP_WIDTHS = {config.hidden_size: name for name, config in (
    ("clip_l", CLIP_L), ("clip_h", OPENCLIP_H), ("clip_g", OPENCLIP_G))}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Contents:
    """The parts of a file: of each, parameter -> expression over what is stored.

    `others` are stored names of no part. `openclip` are the text encoders that are stored under the
    names of OpenCLIP.
    """

    parts: Mapping[str, Mapping[str, Expression]]
    doubles: tuple[tuple[str, Expression], ...]
    others: tuple[str, ...]


def contents(names: Iterable[str], bare: str | None, family: str | None) -> Contents:
    """Sort the stored `names`; those without a prefix belong to the part `bare`, None for none.

    The `family` is that of the denoiser. A parameter that is stored a second time under another
    name is one of the `doubles`.
    """
    stored, others = _sorted(names, bare)
    parts: dict[str, dict[str, Expression]] = {}
    doubles = []
    for part, table in stored.items():
        parts[part] = {}
        for ours, expression in _expressed(part, table, family):
            full = tuple(replace(piece, name=table[piece.name]) for piece in expression
                         if piece.name in table)
            if len(full) == len(expression):
                if parts[part].setdefault(ours, full) is not full:
                    doubles.append((ours, full))
    return Contents(parts, tuple(doubles), tuple(others))


def renamed(part: str, parameters: Mapping[str, Expression]) -> dict[str, Expression]:
    """Parameters of a text encoder that was not known yet, as those of `part`."""
    return {INSIDE[part] + name.removeprefix(f"{TEXT}."): expression
            for name, expression in parameters.items()}


def which_text_encoder(parameters: Iterable[str], shapes: Shapes) -> str | None:
    """Which text encoder has these parameters; None for a CLIP of a width that none has.

    >>> which_text_encoder((), {"text encoder.text_model.final_layer_norm.bias": (1280,)})
    'clip_g'
    """
    if any(".SelfAttention." in name for name in (*parameters, *shapes)):
        return "t5xxl"
    return CLIP_WIDTHS.get(next((shape[0] for name, shape in shapes.items()
                                 if name.endswith("final_layer_norm.bias") and shape), 0))


def _sorted(names: Iterable[str], bare: str | None) -> tuple[dict[str, dict[str, str]], list[str]]:
    """StoredRows -> name below its prefix -> stored name; and the names of no part."""
    found: dict[str, dict[str, str]] = {}
    others = []
    for name in names:
        prefix, part = next((pair for pair in PREFIXES if name.startswith(pair[0])), ("", bare))
        if part is None or renaming.is_ignored(name):
            others.append(name)
            continue
        if part == DENOISER and not prefix:
            prefix = next((each for each in BARE_PREFIXES if name.startswith(each)), "")
        found.setdefault(part, {})[name.removeprefix(prefix)] = name
    return found, others


def _expressed(part: str, names: Mapping[str, str],
               family: str | None) -> Iterable[tuple[str, Expression]]:
    """Parameters of a part, whose names below its prefix these are."""
    inside = INSIDE.get(part, f"{part}.")
    table = _table(part, names, family)
    if table is None:
        rename = _renaming(part, names, inside)
        return [(rename(name), (StoredRows(name),)) for name in names]
    found, unknown = expressions(names, table)
    return [*((inside + ours, expression) for ours, expression in found.items()),
            *((inside + name, (StoredRows(name),)) for name in unknown)]


def _table(part: str, names: Mapping[str, str], family: str | None) -> Table | None:
    def has(*starts: str) -> bool:
        return any(name.startswith(starts) for name in names)

    if part == DENOISER and has("transformer_blocks.", "single_transformer_blocks."):
        if family == "sd3":
            return sd3_diffusers(1 + max(_blocks(names)))
        return CHROMA_DIFFUSERS if family == "chroma" else FLUX_DIFFUSERS
    if part not in (DENOISER, VAE) and has("transformer.resblocks."):
        return CLIP_OPENCLIP
    if part not in (DENOISER, VAE) and has("enc.blk."):
        return T5_GGUF
    return None


def _renaming(part: str, names: Mapping[str, str], inside: str) -> renaming.Rename:
    if part == VAE:
        return renaming.vae_renaming(names)
    if part != DENOISER:
        t5 = any(name.startswith("encoder.block.") for name in names)
        if not t5:
            change = renaming.clip_name
        elif "shared.weight" in names:
            change = str
        else:
            change = renaming.t5_name
    elif any(name.startswith(("down_blocks.", "up_blocks.")) for name in names):
        return renaming.unet_renaming(names)
    else:
        change = renaming.flux_name
    return lambda name: inside + change(name)


def _blocks(names: Iterable[str]) -> Iterator[int]:
    """Numbers of the transformer blocks that diffusers names."""
    matches = (re.match(r"transformer_blocks\.(\d{1,3})\.", name) for name in names)
    return (int(match[1]) for match in matches if match)
