"""Expressions over stored tensors, and the tables that give them."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.errors import CheckpointError
from smalti.families.keys import (
    CHROMA_DIFFUSERS,
    CHROMA_ORIGINAL,
    FLUX2_DIFFUSERS,
    FLUX_DIFFUSERS,
    FLUX_ORIGINAL,
    LUMINA2_DIFFUSERS,
    SD3_ORIGINAL,
    T5_GGUF,
    T5_TRANSFORMERS,
    Z_IMAGE_DIFFUSERS,
    StoredRows,
    assembled,
    expressions,
    sd3_diffusers,
    shape_of,
)
from smalti.models import (
    CHROMA,
    FLUX2_KLEIN_4B,
    FLUX_DEV,
    LUMINA2,
    SD35_MEDIUM,
    T5_XXL,
    Z_IMAGE,
    chroma_graph,
    chroma_modulation_graph,
    flux2_graph,
    flux_graph,
    mmdit_graph,
    t5_graph,
    z_image_graph,
)

FLUX = (flux_graph(FLUX_DEV, 1, 8, 8, 4),)
CHROMA_BOTH = (chroma_graph(CHROMA, 1, 8, 8, 4), chroma_modulation_graph(CHROMA))
SD3 = (mmdit_graph(SD35_MEDIUM, 1, 8, 8, 4),)
Z_IMAGES = (z_image_graph(Z_IMAGE, 1, 8, 8, 4),)
LUMINA = (z_image_graph(LUMINA2, 1, 8, 8, 4),)
T5 = (t5_graph(T5_XXL, 1, 4),)
MODELS = {
    "flux diffusers": (FLUX_DIFFUSERS, FLUX),
    "flux original": (FLUX_ORIGINAL, FLUX),
    "chroma diffusers": (CHROMA_DIFFUSERS, CHROMA_BOTH),
    "chroma original": (CHROMA_ORIGINAL, CHROMA_BOTH),
    "sd3 diffusers": (sd3_diffusers(SD35_MEDIUM.blocks), SD3),
    "sd3 original": (SD3_ORIGINAL, SD3),
    "flux2 diffusers": (FLUX2_DIFFUSERS, (flux2_graph(FLUX2_KLEIN_4B, 1, 4, 4, 4),)),
    "z-image diffusers": (Z_IMAGE_DIFFUSERS, Z_IMAGES),
    "lumina2 diffusers": (LUMINA2_DIFFUSERS, LUMINA),
    "t5 gguf": (T5_GGUF, T5),
    "t5 transformers": (T5_TRANSFORMERS, T5),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_table_speaks_of_every_parameter_of_its_model(name: str) -> None:
    table, graphs = MODELS[name]
    wanted = {full.split("diffusion_model.")[-1].split("t5xxl.transformer.")[-1]
              for graph in graphs for full in graph.parameters}
    stored = {part.name.replace("*", str(block)) for rule in table.values() for part in rule
              for block in range(40)}
    found, unknown = expressions(stored, table)
    assert not unknown and wanted <= set(found)
    assert not [part for rule in found.values() for part in rule if "*" in part.name]


def test_fused_projections_and_swapped_halves() -> None:
    names = [f"single_transformer_blocks.7.{part}.weight"
             for part in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    found, unknown = expressions([*names, "norm_out.linear.bias", "other"], FLUX_DIFFUSERS)
    assert unknown == ["other"]
    assert found == {
        "single_blocks.7.linear1.weight": tuple(StoredRows(name) for name in names),
        "final_layer.adaLN_modulation.1.bias": (StoredRows("norm_out.linear.bias", 1, 2),
                                                StoredRows("norm_out.linear.bias", 0, 2))}
    stored = {name: np.full((rows, 2), rows) for name, rows in zip(names, (3, 3, 3, 12))}
    expression = found["single_blocks.7.linear1.weight"]
    array = assembled(expression, stored.__getitem__)
    assert array[:, 0].tolist() == [3] * 9 + [12] * 12
    assert shape_of(expression, lambda name: stored[name].shape) == array.shape


def test_one_part_is_a_view() -> None:
    stored = np.arange(12).reshape(6, 2)
    assert assembled((StoredRows("x"),), {"x": stored}.__getitem__) is stored
    third = assembled((StoredRows("x", 1, 3),), {"x": stored}.__getitem__)
    assert np.shares_memory(third, stored) and third.tolist() == [[4, 5], [6, 7]]
    assert shape_of((StoredRows("x"),), lambda name: ()) == ()


def test_what_was_added_is_taken_off() -> None:
    stored = np.arange(4, dtype=np.float32)
    found = assembled((StoredRows("x", 1, 2, added=1.0),), {"x": stored}.__getitem__)
    assert found.tolist() == [1, 2] and found.dtype == np.float32 and stored[2] == 2


@pytest.mark.parametrize("expression, shapes, words", [
    ((StoredRows("x", 0, 2),), {"x": (3, 4)}, "no 2 equal runs"),
    ((StoredRows("x"), StoredRows("y")), {"x": (3, 4), "y": (3, 5)}, "different shapes"),
    ((StoredRows("x"), StoredRows("y")), {"x": (), "y": ()}, "different shapes"),
])
def test_shapes_that_do_not_fit_are_refused(expression, shapes, words) -> None:
    with pytest.raises(CheckpointError, match=words):
        shape_of(expression, shapes.__getitem__)
