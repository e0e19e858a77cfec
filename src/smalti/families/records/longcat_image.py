"""LongCat-Image (Meituan 2025, arXiv:2512.07584)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.distilled import DISTILLED_FLOW
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import contexts_fit, only_context
from smalti.families.keys import LONGCAT_DIFFUSERS
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    ModelFamily,
    ModelPart,
    Text,
    all_tokens,
    always,
)
from smalti.families.records.flux import BACKBONE, DEV, flux_fields, flux_layout
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX_VAE
from smalti.models.flux import flux_graph, flux_modulation_graph
from smalti.models.newer_transformer_config import LONGCAT_IMAGE as PUBLISHED
from smalti.models.newer_transformer_config import LongCatImageConfig

SYSTEM = ("<|im_start|>system\nAs an image captioning expert, generate a descriptive text prompt "
          "based on an image content, suitable for input to a text-to-image model.<|im_end|>\n")
"""What the text encoder is told before a prompt."""
FRONT = SYSTEM + "<|im_start|>user\n"
FRONT_TOKENS = 36
"""Of what stands before the prompt; what its authors have behind it is read by no token of it."""
PROMPT_TOKENS = 512
"""Of every prompt, which is filled up to so many; all are seen."""

QUOTES = (("'", "'"), ('"', '"'), ("‘", "’"), ("“", "”"))
_QUOTED = "|".join(f"{first}[^{first}{last}]*?{last}" for first, last in QUOTES)
_WITHIN = re.compile(r"[a-zA-Z]+'[a-zA-Z]+")
"""A word with an apostrophe in it."""
PRIVATE = range(0xE000, 0xF900)
"""Characters that mean nothing."""


def pieces(prompt: str) -> list[str]:
    """The parts of a prompt that become tokens each for itself: what stands in quotes letter by
    letter, so that it is written as it is, and what is between.

    >>> pieces("don't write 'no'")
    ["don't write ", "'", 'n', 'o', "'"]
    """
    mark = next(each for each in map(chr, PRIVATE) if each not in prompt)
    found = re.split(f"({_QUOTED})", _WITHIN.sub(lambda word: word[0].replace("'", mark), prompt))
    return [piece.replace(mark, "'") for number, part in enumerate(found)
            for piece in (part if number % 2 else [part]) if piece]


def longcat_image_config(where: object, shapes: Shapes, hints: Hints) -> LongCatImageConfig:
    """The transformer of LongCat-Image. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    return LongCatImageConfig(
        **flux_fields(found),
        single_blocks=found.blocks("single_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
    )


def _parts(config: LongCatImageConfig) -> dict[str, ModelPart]:
    return {
        "modulation": ModelPart("the modulations", partial(flux_modulation_graph, config), (1,)),
        "transformer": transformer_part(partial(flux_graph, config, modulated=True)),
    }


def _shows(names: Names) -> bool:
    """It has what modulates each block, as Flux.1 has, reads a text, and has no vector of it."""
    original = names.has("double_blocks.0.img_mod.") and names.has("txt_in.") and not names.has(
        "vector_in.", "guidance_in.")
    return original or names.has("single_transformer_blocks.") and names.has(
        "time_embed.timestep_embedder.")


LONGCAT_IMAGE = ModelFamily(
    name="longcat-image",
    title="LongCat-Image",
    files=(FileKind("longcat-image", "a LongCat-Image checkpoint", _shows),),
    before=("flux", "chroma"),
    texts=(Text(language.QWEN25, final_norm=True, template=FRONT + "{}", dropped=FRONT_TOKENS,
                tokens=all_tokens(*[FRONT_TOKENS + PROMPT_TOKENS] * 2), masked=True,
                pieces=pieces),),
    backbone=replace(BACKBONE, config=longcat_image_config, parts=_parts,
                     layout=partial(flux_layout, LONGCAT_DIFFUSERS)),
    join=only_context,
    agreements=contexts_fit,
    autoencoder=KL,
    vae=FLUX_VAE,
    prediction="flow",
    defaults=always(replace(DEV, steps=50, guidance=4.5)),
    distilled={**DISTILLED_FLOW, **dict.fromkeys(
        ("edit", *(f"{word} edit" for word in DISTILLED_FLOW)), {"reference": True})},
    published=(PUBLISHED,),
)
