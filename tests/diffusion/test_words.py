"""Embeddings from the side of who makes pictures: a word in a prompt stands for vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from safetensors.numpy import save_file
from tiny_adapters import write_adapter

from smalti import Pipeline, checkpoint
from smalti.checkpoint.embeddings import Embedding
from smalti.diffusion.tokenizer import tokenize
from smalti.diffusion.words import Vocabulary, fitting
from smalti.errors import CheckpointError, InputError

OPTIONS = {"width": 32, "height": 32, "steps": 1, "guidance_scale": 2.0}
TABLES = {
    "clip_l": "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight",
    "clip_h": "text_encoders.clip_h.transformer.text_model.embeddings.token_embedding.weight",
    "clip_g": "text_encoders.clip_g.transformer.text_model.embeddings.token_embedding.weight"}
CLIP_ONLY = ("sd1", "sd2", "sdxl", "sdxl-refiner")


def write_word(path: Path, model: Path, text: str) -> Path:
    """An embedding of the vectors that the tokens of a text have in a model."""
    opened, ids = checkpoint.load(model), tokenize(text)
    save_file({encoder: opened.read(TABLES[encoder])[ids] for encoder in opened.config.texts
               if encoder in TABLES}, path)
    return path


def pixels(pipe: Pipeline, prompt: str, **options: object) -> np.ndarray:
    return np.asarray(pipe(prompt, **{**OPTIONS, **options}).images[0], np.float64)


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=() if name in ("sd1", "sdxl") else pytest.mark.sweep)
    for name in CLIP_ONLY])
def test_a_word_of_known_vectors_is_the_words_that_have_them(
        family_files: tiny.Files, tmp_path: Path, family: str) -> None:
    word = write_word(tmp_path / "zq-pet.safetensors", family_files[family], "striped cat")
    pipe = Pipeline.load(family_files[family], threads=1, embeddings=[word])
    expected = pixels(pipe, "a striped cat, sleeping")
    assert np.abs(pixels(pipe, "a dog, sleeping") - expected).mean() > 0.1
    for prompt in ("a zq-pet, sleeping", "a ZQ-Pet, sleeping", "a embedding:zq-pet, sleeping"):
        assert np.abs(pixels(pipe, prompt) - expected).mean() < 0.01
    negative = pixels(pipe, "a dog", negative_prompt="striped cat")
    assert np.abs(pixels(pipe, "a dog", negative_prompt="zq-pet") - negative).mean() < 0.01
    weighted = pixels(pipe, "a (striped cat:1.4), sleeping")
    assert np.abs(pixels(pipe, "a (zq-pet:1.4), sleeping") - weighted).mean() < 0.01


@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_t5_reads_the_word_as_it_is_written(family_files: tiny.Files, tmp_path: Path,
                                            family: str) -> None:
    word = write_word(tmp_path / "zqpet.safetensors", family_files[family], "striped cat")
    pipe = Pipeline.load(family_files[family], threads=1)
    plain = pixels(pipe, "a zqpet")
    known = pixels(Pipeline.load(family_files[family], threads=1, embeddings=[word]), "a zqpet")
    assert np.abs(known - plain).mean() > 0.01


def test_a_folder_is_read_when_a_prompt_names_a_file(family_files: tiny.Files,
                                                     tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write_word(tmp_path / "more" / "zqpet.safetensors", family_files["sd1"], "striped cat")
    write_word(tmp_path / "sdxlonly.safetensors", family_files["sdxl-refiner"], "cat")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    pipe = Pipeline.load(family_files["sd1"], threads=1, embeddings=[tmp_path])
    expected = pixels(pipe, "a striped cat")
    assert np.abs(pixels(pipe, "a zqpet") - expected).mean() < 0.01
    for prompt, there in (("a sdxlonly", "the embedding 'sdxlonly' has vectors of width"),
                          ("Broken, indeed", "broken.safetensors has only 7 bytes")):
        size, warning = pipe(prompt, **OPTIONS).warnings
        assert there in warning and warning.endswith("is read as it is written")
        assert "made for pictures of 512x512" in size
    assert pipe("an unbroken zqpet2", **OPTIONS).warnings == [size]


def test_an_adapter_brings_its_words(family_files: tiny.Files, tmp_path: Path) -> None:
    opened = checkpoint.load(family_files["sd1"])
    rows = opened.read(TABLES["clip_l"])[tokenize("striped cat")]
    save_file({"lora_te_text_model_encoder_layers_0_mlp_fc1.alpha": np.float32([1]),
               "lora_te_text_model_encoder_layers_0_mlp_fc1.diff_b": np.zeros(64, np.float32),
               "bundle_emb.zqpet.string_to_param.*": rows}, tmp_path / "pet.safetensors")
    pipe = Pipeline.load(family_files["sd1"], threads=1)
    expected, plain = pixels(pipe, "a striped cat"), pixels(pipe, "a zqpet")
    assert np.abs(plain - expected).mean() > 0.1
    pipe.load_lora(tmp_path / "pet.safetensors")
    assert np.abs(pixels(pipe, "a zqpet") - expected).mean() < 0.01
    pipe.loras = ()
    np.testing.assert_array_equal(pixels(pipe, "a zqpet"), plain)


def test_words_under_an_adapter_stand_where_tokens_stood(family_files: tiny.Files,
                                                         tmp_path: Path) -> None:
    word = write_word(tmp_path / "zqpet.safetensors", family_files["sd1"], "striped cat")
    adapter = write_adapter(tmp_path / "style.safetensors", tiny.FAMILIES["sd1"])
    pipe = Pipeline.load(family_files["sd1"], threads=1, embeddings=[word])
    before = pixels(pipe, "a zqpet")
    pipe.load_lora(adapter)
    expected = pixels(pipe, "a striped cat")
    assert np.abs(expected - before).mean() > 0.1
    assert np.abs(pixels(pipe, "a zqpet") - expected).mean() < 0.01


def test_a_refiner_reads_the_words_too(family_files: tiny.Files, tmp_path: Path) -> None:
    word = write_word(tmp_path / "zqpet.safetensors", family_files["sdxl"], "striped cat")
    plain, known = (pixels(Pipeline.load(family_files["sdxl"], threads=1, embeddings=words,
                                         refiner=family_files["sdxl-refiner"]),
                           "a zqpet", refiner_switch=0.0) for words in ((), [word]))
    assert np.abs(known - plain).mean() > 0.1


def test_words_that_fit_one_model_may_not_fit_another(family_files: tiny.Files,
                                                      tmp_path: Path) -> None:
    words = [Embedding.open(write_word(
        tmp_path / f"{family}.safetensors", family_files[family], "cat"))
             for family in ("sdxl", "sd2")]
    for family, expected in (("sdxl", ["sdxl"]), ("sdxl-refiner", ["sdxl"]), ("sd2", ["sd2"]),
                             ("sd1", ["sdxl"])):
        assert [word.name for word in fitting(words, tiny.FAMILIES[family])] == expected


def test_what_does_not_fit_is_refused_when_it_is_given(family_files: tiny.Files,
                                                       tmp_path: Path) -> None:
    word = write_word(tmp_path / "pet.safetensors", family_files["sdxl-refiner"], "cat")
    with pytest.raises(CheckpointError, match="'pet' has vectors of width 64 for clip_g, and the "
                                              "model's text encoders read 64 for clip_l"):
        Pipeline.load(family_files["sd1"], embeddings=[word])
    with pytest.raises(InputError, match="reads prompts with T5 only"):
        Pipeline.load(family_files["chroma"], embeddings=[word])
    with pytest.raises(CheckpointError, match="missing.pt cannot be read"):
        Vocabulary(tiny.FAMILIES["sd1"], ["missing.pt"])
