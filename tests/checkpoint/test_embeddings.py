"""Textual inversion: every layout reads as the same vectors, and what does not fit is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from torch_files import torch_row, torch_zip

from smalti.checkpoint.adapters import AdapterFile
from smalti.checkpoint.embeddings import Embedding
from smalti.errors import CheckpointError, UnknownFamilyError

RANDOM = np.random.default_rng(0)
TWO = RANDOM.standard_normal((2, 768), np.float32)
ONE = TWO[0]
BOTH = {"clip_l": TWO, "clip_g": RANDOM.standard_normal((2, 1280), np.float32)}
SD1, SD2, SDXL = {"clip_l": 768}, {"clip_h": 1024}, {"clip_l": 768, "clip_g": 1280}
SD3 = {**SDXL, "t5xxl": 4096}


def opened(folder: Path, tensors: dict[str, np.ndarray]) -> Embedding:
    save_file(tensors, folder / "cat.safetensors")
    return Embedding.open(folder / "cat.safetensors")


@pytest.mark.parametrize(("tensors", "widths", "expected"), [
    ({"emb_params": TWO}, SD1, {"clip_l": TWO}),
    ({"<cat-toy>": ONE}, SD1, {"clip_l": TWO[:1]}),
    ({"string_to_param.*": TWO.astype(np.float16)}, SD1, {"clip_l": TWO.astype(np.float16)}),
    ({"<cat-toy>": RANDOM.standard_normal((3, 1024), np.float32)}, SD2, None),
    (BOTH, SDXL, BOTH),
    (BOTH, SD3, BOTH),
    (BOTH, SD1, {"clip_l": TWO}),
    ({"emb_params": TWO}, {"clip_l": 768, "t5xxl": 4096}, {"clip_l": TWO}),
], ids=["kohya", "one vector", "A1111", "SD 2", "SDXL", "SD 3", "a part of SDXL's", "Flux"])
def test_a_layout(tmp_path: Path, tensors, widths, expected) -> None:
    found = opened(tmp_path, tensors).fit(widths)
    if expected is None:
        expected = dict(zip(widths, tensors.values(), strict=True))
    assert found.keys() == expected.keys()
    for encoder, vectors in expected.items():
        assert found[encoder].dtype == np.float32
        np.testing.assert_array_equal(found[encoder], vectors)


@pytest.mark.parametrize("write", [torch_zip, torch_row])
def test_the_pickle_of_automatic1111(tmp_path: Path, write: Callable[[object], bytes]) -> None:
    value = {"string_to_token": {"*": 265}, "string_to_param": {"*": TWO}, "name": "trained as",
             "step": 100, "sd_checkpoint": None}
    (tmp_path / "A Cat.pt").write_bytes(write(value))
    found = Embedding.open(tmp_path / "A Cat.pt")
    assert (found.name, found.count) == ("A Cat", 2)
    np.testing.assert_array_equal(found.fit(SD1)["clip_l"], TWO)


def test_those_within_an_adapter(tmp_path: Path) -> None:
    save_file({"lora_unet_conv_in.diff": np.zeros((4, 4, 3, 3), np.float32),
               "bundle_emb.cat.string_to_param.*": TWO, "bundle_emb.dog.clip_l": BOTH["clip_l"],
               "bundle_emb.dog.clip_g": BOTH["clip_g"]}, tmp_path / "lora.safetensors")
    adapter = AdapterFile.open(tmp_path / "lora.safetensors")
    assert [(word.name, word.count) for word in adapter.embeddings] == [("cat", 2), ("dog", 2)]
    np.testing.assert_array_equal(adapter.embeddings[0].fit(SD1)["clip_l"], TWO)
    assert adapter.embeddings[1].fit(SDXL).keys() == {"clip_l", "clip_g"}


@pytest.mark.parametrize(("tensors", "widths", "has", "needs"), [
    ({"emb_params": TWO}, SD2, "768", "1024 for clip_h"),
    ({"emb_params": TWO}, SDXL, "768", "768 for clip_l, 1280 for clip_g"),
    ({"clip_l": TWO}, SDXL, "768 for clip_l", "768 for clip_l, 1280 for clip_g"),
    ({"clip_g": TWO}, SDXL, "768 for clip_g", "768 for clip_l, 1280 for clip_g"),
    ({"emb_params": TWO}, {"t5xxl": 4096}, "768", "4096 for t5xxl"),
])
def test_one_for_another_family_is_refused(tmp_path: Path, tensors, widths, has, needs) -> None:
    word = opened(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=f"'cat' has vectors of width {has}, and the model's "
                                              f"text encoders read {needs}"):
        word.fit(widths)


@pytest.mark.parametrize("tensors", [
    {"a": TWO, "b": TWO}, {"clip_l": TWO, "more": TWO}, {"a": np.zeros((2, 3, 4), np.float32)},
    {"a": np.zeros((0, 768), np.float32)}, {"a": np.zeros((2, 768), np.int32)},
    {"token_embedding.weight": np.zeros((49408, 8), np.float32)},
])
def test_a_file_of_something_else_is_said_to_be_none(tmp_path: Path, tensors) -> None:
    name = next(iter(tensors))
    with pytest.raises(UnknownFamilyError, match="is no textual-inversion embedding: it holds "
                                                 rf"{len(tensors)} tensors \({name}"):
        opened(tmp_path, tensors)


def test_encoders_have_as_many_vectors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has other numbers of vectors for each text encoder"):
        opened(tmp_path, {**BOTH, "clip_l": TWO[:1]})


def test_vectors_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'emb_params' holds NaN or Inf"):
        opened(tmp_path, {"emb_params": np.full((1, 768), np.nan, np.float32)})
