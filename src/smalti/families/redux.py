"""FLUX.1 Redux, which makes tokens of a prompt from pictures: how files hold it, and its graph.

It is published as two networks: an image encoder, SigLIP so400m, and the two layers behind it. Here
they are one text encoder, of which each file brings a part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial

from smalti.errors import CheckpointError
from smalti.families.evidence import Shapes, Shown, has
from smalti.families.hints import TextHints
from smalti.families.keys.language import VISION
from smalti.families.keys.stored import StoredRows, Table
from smalti.families.record import Layout, Text, TextEncoder
from smalti.graph import Graph
from smalti.models.language_config import REDUX as PUBLISHED
from smalti.models.language_config import ReduxConfig
from smalti.models.redux import PREFIX, redux_graph

FILES = ("flux1-redux-dev.safetensors", "sigclip_vision_patch14_384.safetensors")
"""What the files of the two networks are usually called."""

HEAD_DIM = 72
"""Channels of a head of SigLIP so400m; image encoders of other widths have other heads."""

_LAYERS = ("redux_up.", "redux_down.")
_PATCHES = "embeddings.patch_embedding.weight"
_START = re.compile(r"^(vision_model\.)?(?=embeddings\.|encoder\.|post_layernorm\.|head\.)")


def redux_config(where: object, shapes: Shapes, hints: TextHints, text: Text) -> ReduxConfig:
    """Both networks. Raises CheckpointError where one of them is not given, where a number cannot
    be seen, and for an image encoder of another kind."""
    inside = f"{PREFIX}."
    for start, absent, file in ((inside + _LAYERS[0], "the layers of FLUX.1 Redux", FILES[0]),
                                (inside + VISION, "the image encoder of FLUX.1 Redux", FILES[1])):
        if not has(shapes, start):
            raise CheckpointError(
                f"{where}: {absent} is not given; Redux is two files, {' and '.join(FILES)}, each "
                f"with --text-encoder (text_encoders=), or their folder: give {file}, too")
    seen = Shown(where, shapes, inside)
    tower = Shown(where, shapes, inside + VISION)
    width, pixels = (tower.size("embeddings.patch_embedding.weight", axis) for axis in (0, 1))
    tokens = tower.size("embeddings.position_embedding.weight", 0)
    patch, grid = math.isqrt(pixels // PUBLISHED.channels), math.isqrt(tokens)
    if width % HEAD_DIM or grid**2 != tokens or PUBLISHED.channels * patch**2 != pixels:
        raise CheckpointError(
            f"{where}: an image encoder of width {width} with {tokens} places for patches of "
            f"{pixels} numbers is given; FLUX.1 Redux reads pictures with SigLIP so400m "
            f"({FILES[1]})")
    return ReduxConfig(
        hidden_size=width,
        intermediate_size=tower.size("encoder.layers.0.mlp.fc1.weight", 0),
        layers=tower.count(r"encoder\.layers\.(\d{1,4})\."),
        heads=width // HEAD_DIM,
        grid=grid,
        middle_size=seen.size("redux_up.weight", 0),
        out_size=seen.size("redux_down.weight", 0),
        patch=patch,
        eps=hints.eps or PUBLISHED.eps,
    )


def _graph(config: ReduxConfig, text: Text) -> Callable[..., Graph]:
    """From (batch,) to the graph."""
    return partial(redux_graph, config)


def _shows(names: Iterable[str], shapes: Shapes) -> bool:
    """It has what reads patches, or the layers behind it."""
    return any(any(mark in name for mark in (*_LAYERS, _PATCHES)) for name in (*names, *shapes))


def _layout(names: Iterable[str]) -> Layout | None:
    """Names of transformers, with and without `vision_model.`, and those of the authors."""
    names = list(names)
    if not _shows(names, {}):
        return None
    found: dict[str, tuple[StoredRows, ...]] = {}
    for stored in names:
        ours = _START.sub(VISION, stored, count=1)
        found[ours] = (StoredRows(stored, flat=ours.endswith(_PATCHES)),)
    table: Table = found
    return table


REDUX = TextEncoder(
    name="redux",
    title="what reads pictures for FLUX.1 Redux",
    file=FILES[0],
    width=PUBLISHED.out_size,
    inside=f"{PREFIX}.",
    prefixes=(),
    alone=(*_LAYERS, f"vision_model.{_PATCHES}", _PATCHES),
    tokenizer="",
    wide=True,
    config=redux_config,
    shows=_shows,
    layout=_layout,
    graph=_graph,
)
