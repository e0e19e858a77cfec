"""Z-Image and Z-Image-Turbo (Alibaba's Z-Image team 2025, arXiv:2511.22699)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from smalti.families import language
from smalti.families.autoencoder import KL
from smalti.families.evidence import Shapes, Shown
from smalti.families.hints import Hints
from smalti.families.joining import context_and_mask, contexts_fit
from smalti.families.keys import Z_IMAGE_DIFFUSERS
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Backbone,
    Defaults,
    Layout,
    ModelFamily,
    Text,
    all_tokens,
    always,
)
from smalti.families.spelling import spelled_by
from smalti.families.transformer import transformer_part
from smalti.models.config import FLUX_VAE
from smalti.models.transformer_config import Z_IMAGE as PUBLISHED
from smalti.models.transformer_config import ZImageConfig
from smalti.models.z_image import ROUND, z_image_graph

FIRST_SHARE, PLACE_SHARE = 1 / 4, 3 / 8
"""Of the channels of a head: those that turn with the place in the text, with the row or column."""

TURBO = {"steps": 8, "guidance": 1.0, "flow_shift": 3.0}
"""As its authors recommend."""


def z_image_config(where: object, shapes: Shapes, hints: Hints,
                   shares: tuple[float, float] = (FIRST_SHARE, PLACE_SHARE),
                   kind: Callable[..., ZImageConfig] = ZImageConfig) -> ZImageConfig:
    """The transformer of Z-Image, or of another `kind` that is built like it. Raises
    CheckpointError where a number cannot be seen."""
    found = Shown(where, shapes)
    hidden = found.size("x_embedder.weight", 0)
    head_dim = found.size("layers.0.attention.q_norm.weight", 0)
    return kind(
        hidden_size=hidden,
        heads=found.parts(hidden, head_dim),
        mlp_size=found.size("layers.0.feed_forward.w1.weight", 0),
        blocks=found.blocks("layers"),
        refiners=found.blocks("context_refiner"),
        in_channels=found.parts(found.size("x_embedder.weight", 1), 4),
        out_channels=found.parts(found.size("final_layer.linear.weight", 0), 4),
        context_dim=found.size("cap_embedder.1.weight", 1),
        time_size=found.size("t_embedder.mlp.0.weight", 0),
        vector_size=found.size("t_embedder.mlp.2.weight", 0),
        axes=found.axes(head_dim, *shares),
    )


def _layout(names: Iterable[str]) -> Layout:
    """The names of diffusers become the original ones."""
    return Z_IMAGE_DIFFUSERS if any(".attention.to_q." in name for name in names) else str


def _shows(names: Names) -> bool:
    return names.has("cap_pad_token") and names.has("noise_refiner.0.attention.")


Z_IMAGE = ModelFamily(
    name="z-image",
    title="Z-Image",
    files=(FileKind("z-image", "a Z-Image checkpoint", _shows),),
    texts=(Text(language.QWEN3, layer=2, tokens=all_tokens(ROUND, 512), round_to=ROUND,
                template=language.CHATML, only_valid=True),),
    backbone=Backbone(
        name="z-image",
        models=("Z-Image",),
        config=z_image_config,
        parts=lambda config: {"transformer": transformer_part(partial(z_image_graph, config))},
        layout=_layout,
        mark="cap_pad_token",
        first="x_embedder",
        adapted=r"(^|_)(layers|noise_refiner|context_refiner)_\d+_(attention|feed_forward|adaLN)_",
        precise=r"(x|t|cap)_embedder\.|final_layer\.|_pad_token|\d\.adaLN_modulation\.",
        stack="layers",
        spelled=partial(spelled_by, table=Z_IMAGE_DIFFUSERS),
    ),
    join=context_and_mask,
    agreements=contexts_fit,
    autoencoder=KL,
    vae=FLUX_VAE,
    prediction="flow",
    defaults=always(Defaults(size=1024, steps=30, guidance=4.0, sampler="euler", noise="trailing",
                             flow_shift=6.0, areas=(0.25, 2.0))),
    distilled={"turbo": TURBO, "zit": TURBO},
    published=(PUBLISHED,),
)
