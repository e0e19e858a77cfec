"""Chroma (Lodestone Rock 2025): Flux without vectors of text and guidance."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from smalti.families import t5
from smalti.families.autoencoder import KL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, t5_fits
from smalti.families.keys import CHROMA_DIFFUSERS
from smalti.families.names import FileKind
from smalti.families.record import ModelFamily, ModelPart, Text, all_tokens, always
from smalti.families.records.flux import BACKBONE, SCHNELL, flux_fields, flux_layout
from smalti.families.transformer import transformer_part
from smalti.models.chroma import chroma_graph, chroma_modulation_graph
from smalti.models.config import FLUX_VAE
from smalti.models.transformer_config import CHROMA as CHROMA_1
from smalti.models.transformer_config import ChromaConfig

ROUND = 64
"""Prompts are filled up to a multiple of so many tokens, and the filling is masked."""


def chroma_config(where: object, shapes: Shapes, hints: Hints) -> ChromaConfig:
    """The transformer of Chroma. Raises CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    return ChromaConfig(
        **flux_fields(found),
        single_blocks=found.blocks("single_blocks"),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        approximator_size=found.size("distilled_guidance_layer.in_proj.weight", 0),
        approximator_layers=found.blocks("distilled_guidance_layer.layers"),
        approximator_features=found.size("distilled_guidance_layer.in_proj.weight", 1),
    )


def _parts(config: ChromaConfig) -> dict[str, ModelPart]:
    return {
        "modulation": ModelPart("the modulations", partial(chroma_modulation_graph, config), (1,)),
        "transformer": transformer_part(partial(chroma_graph, config, masked=True)),
    }


CHROMA = ModelFamily(
    name="chroma",
    title="Chroma",
    files=(FileKind("chroma", "a Chroma checkpoint",
                    lambda names: names.has("distilled_guidance_layer.")),),
    before=("flux",),
    texts=(Text(t5.XXL, tokens=all_tokens(ROUND, 512), round_to=ROUND, masked=True),),
    backbone=replace(BACKBONE, config=chroma_config, parts=_parts,
                     layout=partial(flux_layout, CHROMA_DIFFUSERS)),
    join=context_and_mask,
    agreements=t5_fits,
    autoencoder=KL,
    vae=FLUX_VAE,
    prediction="flow",
    defaults=always(replace(SCHNELL, steps=26, guidance=4.0)),
    published=(CHROMA_1,),
)
