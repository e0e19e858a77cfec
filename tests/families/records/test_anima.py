"""Anima: files as they are published, what names say, both tokenizers, what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny

from smalti.checkpoint import Checkpoint, inspect, load
from smalti.diffusion.conditioning import Prompts, conditioned
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.request import request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.t5_tokenizer import shipped
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families.keys import ANIMA_DIFFUSERS
from smalti.models.anima import TEXT_TOKENS

CONFIG = tiny.WORDLESS["anima"]
ADAPTER = f"{tiny.DENOISER}llm_adapter."
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@pytest.mark.parametrize(("name", "expected"), [
    ("anima_turbo_v1", (10, 1.0, 3.0)), ("anima-preview", (30, 4.0, 3.0))])
def test_turbo_is_told_by_the_name(tmp_path: Path, weights: tiny.Weights, name: str,
                                   expected: tuple[float, ...]) -> None:
    path = tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)
    config = load(path).config
    assert (config.default_steps, config.default_guidance, config.flow_shift) == expected
    report = str(inspect(path))
    assert "an Anima checkpoint" in report and f"{expected[0]} steps" in report
    assert "2 blocks, and 2 for the text, width 48, 2 heads" in report


def test_what_training_left_in_a_file_is_no_layer(tmp_path: Path, weights: tiny.Weights) -> None:
    stored = {name.replace(tiny.DENOISER, "net."): value
              for name, value in tiny.single_file(CONFIG, weights).items()}
    left = {"net.pos_embedder.seq": np.ones(9, np.float32), "net.accum_iteration": np.ones(3),
            "net.pos_embedder.dim_spatial_range": np.ones(4, np.float32),
            "net.t_embedding_norm._extra_state": np.zeros(8, np.uint8)}
    assert load(tiny.write(tmp_path / "model.safetensors", {**stored, **left}))
    more = {"net.extra_pos_embedder.pos_emb_h": np.ones((9, 48), np.float16)}
    with pytest.raises(CheckpointError, match=r"does not compute.*\n.*extra_pos_embedder"):
        load(tiny.write(tmp_path / "other.safetensors", {**stored, **more}))


def test_what_is_missing_is_named(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "anima.safetensors", tiny.part(weights, tiny.DENOISER))
    with pytest.raises(CheckpointError, match=r"lacks the text encoder Qwen3 and the autoencoder .*"
                       r"--text-encoder qwen_3_06b_base.*--vae qwen_image_vae"):
        load(alone)
    cosmos = tiny.write(tmp_path / "cosmos.safetensors", {
        name: value for name, value in tiny.single_file(CONFIG, weights).items()
        if not name.startswith(ADAPTER)})
    with pytest.raises(UnknownFamilyError, match="is a Cosmos-Predict2 checkpoint.*llm_adapter"):
        load(cosmos)


def test_heads_that_no_model_has_are_refused(tmp_path: Path, weights: tiny.Weights) -> None:
    wrong = tiny.single_file(CONFIG, weights)
    wrong |= {name: value[:8] for name, value in wrong.items()
              if ".self_attn.q_norm." in name and "llm_adapter" not in name}
    with pytest.raises(CheckpointError, match=r"heads of 8 channels; expected 128"):
        load(tiny.write(tmp_path / "wrong.safetensors", wrong))


def folder(path: Path, weights: tiny.Weights, index: str) -> Path:
    """As diffusers writes it: what reads texts is a component of its own."""
    transformer = {}
    for name, value in tiny.part(weights, tiny.DENOISER).items():
        number = NUMBER.search(name)
        rule = ANIMA_DIFFUSERS.get(name) or ANIMA_DIFFUSERS.get(NUMBER.sub("*", name, count=1))
        if rule is not None:
            transformer[rule[0].name.replace("*", number[0] if number else "")] = value
    coder = tiny.autoencoder(CONFIG, weights)
    files = {"transformer": transformer, "text_conditioner": tiny.part(weights, ADAPTER),
             "vae": coder, "text_encoder": tiny.text_encoder(CONFIG, weights, "qwen3")}
    for name, stored in files.items():
        (path / name).mkdir(parents=True)
        stem = "model" if name == "text_encoder" else "diffusion_pytorch_model"
        tiny.write(path / name / f"{stem}.safetensors", stored)
    (path / index).write_text("{}")
    return path


@pytest.mark.parametrize("index", ["model_index.json", "modular_model_index.json"])
def test_a_folder_of_diffusers(tmp_path: Path, weights: tiny.Weights, index: str) -> None:
    path = folder(tmp_path, weights, index)
    found = load(path)
    assert found.config.denoiser == CONFIG.denoiser
    for name in found.names():
        np.testing.assert_array_equal(found.read(name), weights[name], name)
    (path / "text_conditioner" / "config.json").write_text('{"use_layer_norm": true}')
    with pytest.raises(CheckpointError, match="text_conditioner/config.json: use_layer_norm is"):
        load(path)


# ---------------------------------------------------------------------- prompts


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config = tiny.FAMILIES["anima"]
    return load(tiny.write_whole(tmp_path_factory.mktemp("anima") / "anima.safetensors", config))


def told(checkpoint: Checkpoint, prompt: str, negative: str = "") -> Prompts:
    asked = request(checkpoint.config, PictureOptions(prompt, negative_prompt=negative),
                    memory_bytes=2**33)
    return conditioned(Submodels(checkpoint, "f32", threads=1), asked, 1, Stopwatch())


def steering(checkpoint: Checkpoint, *prompts: str) -> list[np.ndarray]:
    """What the transformer reads of a prompt and a negative one."""
    ((rows, _),), other = told(checkpoint, *prompts).at(0)
    assert set(rows) == {"context"}
    return [rows["context"], other["context"]]


@pytest.mark.sweep
def test_prompts_are_read_by_both_vocabularies(checkpoint: Checkpoint) -> None:
    """An empty one has no tokens of Qwen3, and its end of T5's; two of a batch are as if alone."""
    prompt, empty = steering(checkpoint, "1girl, silver hair, smile", "")
    assert prompt.shape == empty.shape == (1, TEXT_TOKENS, 32)
    count = len(shipped().tokenize("1girl, silver hair, smile")) + 1
    assert prompt[0, :count].any(axis=1).all() and not prompt[0, count:].any()
    assert empty[0, 0].any() and not empty[0, 1:].any()
    both = steering(checkpoint, "", "")
    for found in both:
        np.testing.assert_allclose(found, empty, rtol=1e-4, atol=1e-5)
    alone, _ = steering(checkpoint, "1girl, silver hair, smile", "blurry, " * 40)
    np.testing.assert_allclose(alone, prompt, rtol=1e-4, atol=1e-5)


@pytest.mark.sweep
def test_what_of_a_prompt_is_not_read_is_said(checkpoint: Checkpoint) -> None:
    found = told(checkpoint, "a cat and " * 300).warnings
    assert [line.partition(";")[0] for line in found] == [
        f"the prompt is longer than the {count} tokens that the model reads"
        for count in (512, 511)]
