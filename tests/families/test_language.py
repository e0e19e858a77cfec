"""Language models that read prompts: files in every naming, what shapes show, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny

from smalti import Pipeline
from smalti.checkpoint import inspect, load
from smalti.checkpoint.checkpoint import Checkpoint
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.checkpoint.quantise import quantise
from smalti.diffusion.byte_bpe import qwen3
from smalti.diffusion.conditioning import conditioned
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.request import request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.errors import CheckpointError
from smalti.families import language, registered
from smalti.families.hints import TextHints
from smalti.families.joining import contexts_fit
from smalti.families.keys.language import GEMMA_GGUF, LANGUAGE_GGUF
from smalti.families.keys.stored import Table
from smalti.families.record import Circumstances, Encoded, Floats, Text, all_tokens
from smalti.families.records.chroma import CHROMA
from smalti.graph import evaluate
from smalti.models.config import FLUX_VAE, ModelConfig
from smalti.models.language import language_graph
from smalti.models.language_config import GEMMA2_2B, QWEN3_4B, LanguageConfig
from smalti.models.transformer_config import ChromaConfig

QWEN = LanguageConfig(151_669, hidden_size=32, mlp_size=64, layers=3, heads=4, kv_heads=2,
                      head_dim=16, qk_norm=True)
SMALL = replace(QWEN, vocab_size=64)
INSIDE = language.QWEN3.inside
DENOISER = ChromaConfig(**{**tiny.FLUX, "context_dim": 32}, approximator_size=64,
                        approximator_layers=2)


def joined(config: ModelConfig, encoded: Mapping[str, Encoded],
           told: Circumstances) -> dict[str, Floats]:
    return {"context": encoded["qwen3"].context, "mask": encoded["qwen3"].mask}


FAMILY = replace(
    CHROMA, join=joined, agreements=contexts_fit,
    texts=(Text(language.QWEN3, layer=2, tokens=all_tokens(16, 48), round_to=16,
                template=language.CHATML, only_valid=True),))


@pytest.fixture(autouse=True)
def family() -> Iterator[None]:
    """Chroma, with Qwen3 instead of T5."""
    with registered(FAMILY):
        yield


@cache
def weights(config: LanguageConfig) -> dict[str, np.ndarray]:
    with registered(FAMILY):
        return tiny.random_weights(model(config))


def model(config: LanguageConfig) -> ModelConfig:
    return ModelConfig("chroma", {"qwen3": config}, DENOISER, tiny.vae(FLUX_VAE), "flow")


def text(config: LanguageConfig) -> dict[str, np.ndarray]:
    """The text encoder by the names of transformers' Qwen3Model, with the last layer's tensors."""
    return tiny.part(weights(config), INSIDE)


def image(path: Path, config: LanguageConfig, **more: np.ndarray) -> Path:
    """A file of everything but the text encoder, and of `more`."""
    found = {name: value for name, value in weights(config).items() if not name.startswith(INSIDE)}
    return tiny.write(path, {**found, **more})


def gguf(path: Path, stored: tiny.Weights, dtype: str, table: Table = LANGUAGE_GGUF) -> Path:
    """The text encoder as llama.cpp writes it, matrices in blocks."""
    tensors = []
    for name, value in stored.items():
        number = next((part for part in name.split(".") if part.isdecimal()), "*")
        rule, = table[name.replace(number, "*")]
        values, kind = value.astype(np.float32), dtype if value.ndim == 2 else "f32"
        data = quantise(kind, values) if value.ndim == 2 else values + np.float32(rule.added)
        tensors.append(GgufTensor(rule.name.replace("*", number), value.shape, kind,
                                  lambda data=data: data))
    with path.open("wb") as file:
        write_gguf(file, {"general.architecture": "qwen3"}, tensors)
    return path


def encoder_file(folder: Path, naming: str, config: LanguageConfig) -> Path:
    if naming == "gguf":
        return gguf(folder / "q.gguf", text(config), "Q8_0")
    prefix = {"base": "", "causal": "model.", "tied": "model."}[naming]
    stored = {prefix + name: value for name, value in text(config).items()}
    if naming == "causal":
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
    return tiny.write(folder / "q.safetensors", stored)


def opened(folder: Path, naming: str, config: LanguageConfig = SMALL) -> Checkpoint:
    return load(image(folder / "model.safetensors", config),
                text_encoders=[encoder_file(folder, naming, config)])


@pytest.mark.parametrize("naming", ["base", "causal", "gguf"])
def test_files_of_the_text_encoder_alone(tmp_path: Path, naming: str) -> None:
    found = opened(tmp_path, naming)
    assert found.config.texts == {"qwen3": SMALL}
    for name in tiny.part(dict.fromkeys(found.names()), INSIDE, INSIDE):
        np.testing.assert_allclose(found.read(name), weights(SMALL)[name],
                                   atol=0.02 * (naming == "gguf"))


@pytest.mark.parametrize("prefix", [
    INSIDE, "text_encoders.qwen3_4b.transformer.model.", "text_encoders.qwen3_06b.transformer."])
def test_a_file_of_all_parts(tmp_path: Path, prefix: str) -> None:
    stored = {prefix + name: value for name, value in text(SMALL).items()}
    found = load(image(tmp_path / "whole.safetensors", SMALL, **stored))
    assert found.config == replace(found.config, texts={"qwen3": SMALL})
    assert not found.report.missing and not found.report.uncomputed


def test_what_a_model_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks the text encoder Qwen3; .*qwen_3_4b"):
        load(image(tmp_path / "model.safetensors", SMALL))


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts.0.up_proj.weight",
                                  "model.layers.1.self_attn.q_proj.bias",
                                  "model.layers.1.pre_feedforward_layernorm.weight"])
def test_layers_that_are_not_known_are_refused_by_name(tmp_path: Path, name: str) -> None:
    stored = {f"model.{own}": value for own, value in text(SMALL).items()}
    tiny.write(tmp_path / "q.safetensors", {**stored, name: np.ones(8, np.float16)})
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(image(tmp_path / "model.safetensors", SMALL),
             text_encoders=[tmp_path / "q.safetensors"])


def test_another_size_than_the_denoiser_reads_is_refused(tmp_path: Path) -> None:
    wide = replace(QWEN, hidden_size=64)
    with pytest.raises(CheckpointError, match="32 channels of the transformer.s context, but 64"):
        Pipeline.load(image(tmp_path / "model.safetensors", QWEN),
                      text_encoders=[encoder_file(tmp_path, "base", wide)])


@pytest.mark.parametrize("name, shape, words", [
    ("layers.{}.self_attn.k_proj.weight", (24, 32), "do not share evenly"),
    ("layers.{}.self_attn.q_norm.weight", (15,), "do not share evenly")])
def test_heads_that_do_not_fit_are_refused(tmp_path: Path, name: str, shape: tuple[int, ...],
                                           words: str) -> None:
    stored = dict(text(SMALL))
    for i in range(SMALL.layers):
        stored[name.format(i)] = np.ones(shape, np.float16)
        if len(shape) == 1:
            stored[name.format(i).replace("q_", "k_")] = np.ones(shape, np.float16)
    tiny.write(tmp_path / "q.safetensors", stored)
    with pytest.raises(CheckpointError, match=words):
        load(image(tmp_path / "model.safetensors", SMALL),
             text_encoders=[tmp_path / "q.safetensors"])


def test_a_table_that_lacks_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="64 tokens of the text encoder, but 151669 at least"):
        Pipeline.load(image(tmp_path / "model.safetensors", SMALL),
                      text_encoders=[encoder_file(tmp_path, "base", SMALL)])


def test_inspect_says_what_a_file_is(tmp_path: Path) -> None:
    report = inspect(encoder_file(tmp_path, "causal", SMALL))
    assert report.kind is not None and report.kind.id == "text-encoder"
    assert any("Qwen3" in note for note in report.notes)


@pytest.mark.parametrize("naming", ["base", pytest.param("gguf", marks=pytest.mark.sweep)])
def test_prompts_become_states_of_their_own_tokens(tmp_path: Path, naming: str) -> None:
    """Those behind the last layer but one, zeros behind them, and a mask that tells."""
    checkpoint = opened(tmp_path, naming, QWEN)
    asked = request(checkpoint.config, PictureOptions("a red apple on a blue table",
                                                      negative_prompt="blurry"),
                    memory_bytes=2**33)
    found = conditioned(Submodels(checkpoint, "f32", threads=1), asked, 1, Stopwatch())
    (towards, _), = found.at(0)[0]
    graph = language_graph(QWEN, 1, 32, taps=[2])
    given = {name: checkpoint.read(name) for name in graph.parameters}
    for steering, prompt in ((towards, asked.prompt), (found.at(0)[1], "blurry")):
        tokens = qwen3().encode(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n",
                                32)
        expected = evaluate(graph, {"tokens": np.array([tokens.ids], np.int32)}, given)["context"]
        count = tokens.count
        context, mask = (steering[name].reshape(-1, width) for name, width in
                         (("context", 32), ("mask", 1)))
        assert mask[:count].all() and not mask[count:].any() and not context[count:].any()
        np.testing.assert_allclose(context[:count], expected[0, :count],
                                   atol=(0.05 if naming == "gguf" else 1e-4))


def test_a_prompt_that_is_too_long_is_cut_and_said(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, "base", QWEN)
    asked = request(checkpoint.config, PictureOptions("apple " * 60 + "pear"),
                    memory_bytes=2**33)
    found = conditioned(Submodels(checkpoint, "f32", threads=1), asked, 1, Stopwatch())
    (warning,) = found.warnings
    assert "longer than the 48 tokens" in warning and warning.endswith("pear'")


def test_qwen25_is_told_from_qwen3_by_its_biases(tmp_path: Path) -> None:
    """In a file with what reads pictures, as ComfyUI has it, and by llama.cpp's names."""
    stored = {f"model.{name}": value for name, value in text(SMALL).items() if "_norm." not in name}
    for i in range(SMALL.layers):
        for kind, width in (("q", 64), ("k", 32), ("v", 32)):
            stored[f"model.layers.{i}.self_attn.{kind}_proj.bias"] = np.ones(width, np.float16)
    stored["visual.blocks.0.attn.qkv.weight"] = np.ones((4, 4), np.float16)
    report = inspect(tiny.write(tmp_path / "q.safetensors", stored))
    assert report.notes == ("it is the text encoder Qwen2.5-VL",)
    reads_it = replace(FAMILY, texts=(Text(language.QWEN25, tokens=all_tokens(16, 48),
                                           final_norm=True, only_valid=True),))
    with registered(reads_it), pytest.raises(CheckpointError, match="do not share evenly"):
        load(image(tmp_path / "model.safetensors", SMALL),
             text_encoders=[tmp_path / "q.safetensors"])  # heads of another width than 128
    folder = tmp_path / "model"
    arch = {"text": {"num_attention_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4}}
    with registered(reads_it):
        found = load(tiny.write(folder.with_suffix(".safetensors"), {
            **tiny.part(weights(SMALL), tiny.DENOISER, tiny.DENOISER),
            **tiny.part(weights(SMALL), tiny.VAE, tiny.VAE),
            **{f"text_encoders.qwen25_7b.transformer.{name}": value
               for name, value in stored.items()}}, {"arch_config": json.dumps(arch)}))
    assert found.config.texts == {"qwen25": replace(
        SMALL, qk_norm=False, qkv_bias=True, eps=1e-5, rotary_base=1e4)}


@pytest.mark.parametrize("layers, found", [(36, 35), (35, 35), (34, None)])
def test_layers_are_counted_in_the_whole_model(layers: int, found: int | None) -> None:
    """Z-Image reads the state behind layer 35 of 36, which some files end with."""
    config = replace(QWEN3_4B, layers=layers)
    graph = language_graph(config, 1, 8, taps=(layers,), final_norm=True, prefix=INSIDE[:-1])
    shapes = {name: value.shape for name, value in graph.parameters.items()}
    text = Text(language.QWEN3, layer=2)
    if found is None:
        with pytest.raises(CheckpointError, match="has 34 layers.*behind the 35th of 36.*cut off"):
            language.QWEN3.config(Path("q.safetensors"), shapes, TextHints(), text)
        return
    assert language.QWEN3.config(Path("q.safetensors"), shapes, TextHints(), text) == config
    assert language.QWEN3.graph(config, text).keywords["taps"] == (found,)


# ---------------------------------------------------------------------- Gemma 2

GEMMA = replace(GEMMA2_2B, vocab_size=64, hidden_size=32, mlp_size=64, layers=3, heads=2,
                kv_heads=1)
READS_GEMMA = replace(FAMILY, texts=(Text(language.GEMMA2, layer=2, only_valid=True),))


@cache
def gemma() -> dict[str, np.ndarray]:
    """Its tensors, by the names of transformers' Gemma2Model."""
    with registered(READS_GEMMA):
        config = ModelConfig("chroma", {"gemma2": GEMMA}, DENOISER, tiny.vae(FLUX_VAE), "flow")
        return tiny.part(tiny.random_weights(config), language.GEMMA2.inside)


@pytest.mark.parametrize("naming", ["causal", "comfy", "gguf"])
def test_gemma_is_told_by_its_norms(tmp_path: Path, naming: str) -> None:
    """Of llama.cpp's file a one is taken off their factors; ComfyUI's has a tokenizer in it."""
    stored = {f"model.{name}": value for name, value in gemma().items()}
    stored |= {"lm_head.weight": stored["model.embed_tokens.weight"]} if naming == "causal" else {
        "spiece_model": np.zeros(4, np.uint8)}
    path = (gguf(tmp_path / "g.gguf", gemma(), "Q8_0", GEMMA_GGUF) if naming == "gguf"
            else tiny.write(tmp_path / "g.safetensors", stored))
    assert inspect(path).notes == ("it is the text encoder Gemma 2",)
    with registered(READS_GEMMA):
        found = load(image(tmp_path / "model.safetensors", SMALL), text_encoders=[path])
    assert found.config.texts == {"gemma2": GEMMA} and not found.report.uncomputed
    for name in found.names():
        if name.startswith(language.GEMMA2.inside):
            expected = gemma()[name.removeprefix(language.GEMMA2.inside)]
            np.testing.assert_allclose(found.read(name), expected,
                                       atol=0.02 if expected.ndim == 2 else 1e-6)
            np.testing.assert_array_equal(np.asarray(found.floats(name), np.float32),
                                          found.read(name))


@pytest.mark.parametrize("stated, found", [
    ({"query_pre_attn_scalar": 144, "attn_logit_softcapping": 30.0, "sliding_window": 8,
      "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"},
     {"query_size": 144, "softcap": 30.0, "window": 8, "head_dim": 64, "heads": 8, "kv_heads": 4}),
    ({"hidden_act": "silu"}, "activation of the text encoder gemma2 is stated as silu; expected"),
    ({"attn_logit_softcapping": -1}, "attn_logit_softcapping is -1; expected a positive number")])
def test_what_is_stated_of_gemma_is_read(tmp_path: Path, stated: dict[str, float | str],
                                         found: dict[str, float] | str) -> None:
    arch = {"text": {"rms_norm_eps": 1e-5, **stated}}
    whole = {f"text_encoders.gemma2_2b.transformer.model.{name}": value
             for name, value in gemma().items()}
    whole |= {name: value for name, value in weights(SMALL).items() if not name.startswith(INSIDE)}
    path = tiny.write(tmp_path / "model.safetensors", whole, {"arch_config": json.dumps(arch)})
    with registered(READS_GEMMA):
        if isinstance(found, str):
            with pytest.raises(CheckpointError, match=found):
                load(path)
        else:
            assert load(path).config.texts == {"gemma2": replace(GEMMA, eps=1e-5, **found)}


def test_gemma_is_not_read_as_another(tmp_path: Path) -> None:
    """Neither what another family reads, nor with norms of heads, as Gemma 3 has them."""
    path = tiny.write(tmp_path / "g.safetensors", gemma())
    with pytest.raises(CheckpointError, match="Gemma 2, which .* does not read; it reads .* Qwen3"):
        load(image(tmp_path / "model.safetensors", SMALL), text_encoders=[path])
    three = {**gemma(), "layers.0.self_attn.q_norm.weight": np.ones(16, np.float16)}
    path = tiny.write(tmp_path / "three.safetensors", three)
    with registered(READS_GEMMA):
        with pytest.raises(CheckpointError, match="does not read; it reads the text encoder Gem"):
            load(image(tmp_path / "model.safetensors", SMALL), text_encoders=[path])
        with pytest.raises(CheckpointError, match="lacks the text encoder Gemma 2; .*gemma_2_2b_"):
            load(image(tmp_path / "model.safetensors", SMALL))
