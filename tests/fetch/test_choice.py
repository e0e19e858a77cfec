"""Which files of a repository are fetched: one precision, one framework, what memory holds."""

from __future__ import annotations

import re

import pytest

from smalti.errors import FetchError
from smalti.fetch.choice import Choice, RemoteFile, chosen
from smalti.fetch.digest import Digest

GIGA = 10**9


def repository(**sizes: float) -> list[RemoteFile]:
    return [RemoteFile(name, round(size * GIGA), Digest("sha256", f"{at:064x}"))
            for at, (name, size) in enumerate(sizes.items())]


def names(choice: Choice) -> list[str]:
    return [each.name for each in choice.files]


SDXL = repository(**{
    "README.md": 1e-5, "model_index.json": 1e-6, "sd_xl_base_1.0.safetensors": 6.94,
    "sd_xl_base_1.0_0.9vae.safetensors": 6.94,
    "scheduler/scheduler_config.json": 1e-6, "tokenizer/vocab.json": 1e-3,
    "tokenizer/tokenizer_config.json": 1e-6, "tokenizer_2/tokenizer_config.json": 1e-6,
    "text_encoder/config.json": 1e-6, "text_encoder/model.safetensors": .49,
    "text_encoder/model.fp16.safetensors": .25, "text_encoder/model.onnx": 1e-3,
    "text_encoder/flax_model.msgpack": .49, "text_encoder/openvino_model.bin": .49,
    "text_encoder_2/config.json": 1e-6, "text_encoder_2/model.safetensors": 2.8,
    "text_encoder_2/model.fp16.safetensors": 1.4,
    "unet/config.json": 1e-6, "unet/diffusion_pytorch_model.safetensors": 10.3,
    "unet/diffusion_pytorch_model.fp16.safetensors": 5.1, "unet/model.onnx": .01,
    "vae/config.json": 1e-6, "vae/diffusion_pytorch_model.safetensors": .33,
    "vae_1_0/config.json": 1e-6, "vae_1_0/diffusion_pytorch_model.safetensors": .33})


def test_a_folder_of_diffusers_is_each_component_once_in_halves() -> None:
    found = chosen("hf:a/b", SDXL, None, None)
    assert found.opened == ""
    assert [name for name in names(found) if name.endswith(".safetensors")] == [
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.fp16.safetensors",
        "text_encoder_2/model.fp16.safetensors"]
    assert not [name for name in names(found) if re.search("onnx|flax|openvino|vocab|READ", name)]
    assert {"model_index.json", "unet/config.json", "scheduler/scheduler_config.json"} < {
        *names(found)}
    assert found.weight_bytes == 7.08 * GIGA and "left out" in found.why


def test_one_file_by_name_with_or_without_its_folder() -> None:
    assert names(chosen("hf:a/b", SDXL, "sd_xl_base_1.0.safetensors", None)) == [
        "sd_xl_base_1.0.safetensors"]
    with pytest.raises(FetchError, match="has no file 'x'; it has .*and"):
        chosen("hf:a/b", SDXL, "x", None)
    with pytest.raises(FetchError, match="has 2 files 'model.onnx'"):
        chosen("hf:a/b", SDXL, "model.onnx", None)


def test_shards_belong_together() -> None:
    files = repository(**{
        "model_index.json": 1e-6, "transformer/config.json": 1e-6,
        "transformer/diffusion_pytorch_model.safetensors.index.json": 1e-6,
        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors": 9.9,
        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors": 2,
        "vae/diffusion_pytorch_model.safetensors": .1})
    found = names(chosen("hf:a/b", files, None, None))
    assert found[2:5] == [each.name for each in files[2:5]]
    assert names(chosen("hf:a/b", files, files[4].name, None)) == [files[3].name, files[4].name]


def test_shards_of_halves_with_an_index_of_their_own() -> None:
    files = repository(**{
        "model_index.json": 1e-6,
        "unet/diffusion_pytorch_model.safetensors.index.json": 1e-6,
        "unet/diffusion_pytorch_model-00001-of-00001.safetensors": 4,
        "unet/diffusion_pytorch_model.safetensors.index.fp16.json": 1e-6,
        "unet/diffusion_pytorch_model.fp16-00001-of-00001.safetensors": 2})
    assert names(chosen("hf:a/b", files, None, None))[1:] == [files[3].name, files[4].name]


def test_a_folder_without_weights_that_are_read_is_refused() -> None:
    files = repository(**{"model_index.json": 1e-6, "unet/model.safetensors": 1,
                          "vae/diffusion_pytorch_model.safetensors": 1})
    with pytest.raises(FetchError, match="no weights of unet that are read"):
        chosen("hf:a/b", files, None, None)


GRADES = repository(**{
    "chroma-f32.safetensors": 35.6, "chroma-bf16.safetensors": 17.8, "chroma.ckpt": 17.8,
    "chroma-fp8_scaled.safetensors": 9, "chroma-Q8_0.gguf": 9.6, "chroma-Q4_K_S.gguf": 5.4,
    "chroma-Q2_K.gguf": 3.2, "chroma-BF16.gguf": 17.9, "chroma-IQ2_XS.gguf": 2})


@pytest.mark.parametrize(("memory", "expected"), [
    (None, "chroma-bf16.safetensors"), (64, "chroma-bf16.safetensors"),
    (16, "chroma-Q8_0.gguf"), (9.2, "chroma-fp8_scaled.safetensors"), (8, "chroma-Q4_K_S.gguf"),
    (4, "chroma-Q2_K.gguf"), (1, "chroma-Q2_K.gguf")])
def test_one_grade_that_memory_holds(memory: float | None, expected: str) -> None:
    found = chosen("hf:a/b", GRADES, None, None if memory is None else round(memory * GIGA))
    assert names(found) == [expected]
    assert "left out" in found.why


def test_a_repository_of_gguf_alone() -> None:
    files = [each for each in GRADES if each.ending == ".gguf"]
    assert names(chosen("hf:a/b", files, None, 12 * GIGA)) == ["chroma-Q8_0.gguf"]


@pytest.mark.parametrize(("files", "expected"), [
    (("v1-5-pruned.safetensors", "v1-5-pruned-emaonly.safetensors", "v1-5-pruned.ckpt"),
     "v1-5-pruned-emaonly.safetensors"),
    (("a.safetensors", "a.fp16.safetensors"), "a.fp16.safetensors"),
    (("a.ckpt", "README.md"), "a.ckpt")])
def test_grades_are_known_by_words_in_names(files: tuple[str, ...], expected: str) -> None:
    found = repository(**{name: 8 - len(name) / 10 for name in files})
    assert names(chosen("hf:a/b", found, None, None)) == [expected]


def test_several_models_are_not_chosen_from() -> None:
    files = repository(**{"cat.safetensors": 2, "dog.safetensors": 2})
    with pytest.raises(FetchError, match=r"hf:a/b:FILE. It has cat.safetensors \(2.00 GB\), dog"):
        chosen("hf:a/b", files, None, None)
    with pytest.raises(FetchError, match="no weights that Smalti reads"):
        chosen("hf:a/b", repository(**{"svdq-int4_a.onnx": 1}), None, None)
