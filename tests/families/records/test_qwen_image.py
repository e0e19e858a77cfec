"""Qwen-Image: what names say, levels of noise, files as they are published, adapters, wrong parts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from safetensors.numpy import save_file
from tiny_adapters import KOHYA, applied, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter
from smalti.diffusion.adapters import few_steps
from smalti.diffusion.levels import noise_levels
from smalti.diffusion.noise import find_schedule
from smalti.errors import CheckpointError
from smalti.families.records.qwen_image import SYSTEM, TEMPLATE, TEMPLATE_TOKENS
from smalti.models.config import ModelConfig

CONFIG = tiny.WORDLESS["qwen-image"]
NAME = "qwen_image_2512_bf16"
WIDTH = CONFIG.denoiser.hidden_size


def levels(config: ModelConfig, steps: int) -> list[float]:
    """Of a picture of 1024 x 1024 pixels; the autoencoder is that of published models."""
    config = replace(config, vae=tiny.WAN_VAE)
    return find_schedule("trailing").sigmas(noise_levels(config, 1024, 1024), steps).tolist()


def test_the_template_is_that_of_its_authors() -> None:
    """Of which 34 tokens stand before the prompt."""
    from smalti.diffusion.byte_bpe import qwen2

    assert TEMPLATE.startswith(SYSTEM) and TEMPLATE.endswith("<|im_start|>assistant\n")
    assert len(qwen2().tokenize(TEMPLATE.partition("{}")[0])) == TEMPLATE_TOKENS


def test_the_levels_of_noise_are_those_of_diffusers(model: Checkpoint) -> None:
    config = model.config
    assert (config.default_steps, config.default_guidance) == (50, 4.0)
    np.testing.assert_allclose(levels(config, 4), [1, .766709, .455614, .02, 0], atol=1e-6)
    assert levels(config, 1) == [1, 0]
    assert "flow, shift by size, to level 0.02" in str(inspect(model.report.path))


LIGHTNING = {  # name -> steps
    "qwen_image_lightning_4steps": 4, "Qwen-Image-Lightning-8steps-V2.0-bf16": 8,
    "Qwen-Image-2512-Turbo-LoRA-2-Steps": 2}


@pytest.mark.parametrize("name", LIGHTNING)
def test_lightning_is_told_by_the_name(tmp_path: Path, weights: tiny.Weights, name: str) -> None:
    """Its shift is the same for all sizes, and no level is left at the end."""
    config = load(tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)).config
    assert (config.default_steps, config.default_guidance) == (LIGHTNING[name], 1.0)
    np.testing.assert_allclose(levels(config, 4), [1, .9, .75, .5, 0], atol=1e-6)


@pytest.mark.parametrize("name", ["qwen_image_edit_2509_fp8", "Qwen-Image-Edit-Lightning-4steps"])
def test_a_file_that_is_called_edit_needs_what_reads_pictures(
        tmp_path: Path, weights: tiny.Weights, name: str) -> None:
    """Its layers are those of Qwen-Image, which would make another picture."""
    with pytest.raises(CheckpointError, match="qwen25 comes without what reads pictures"):
        load(tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights))


@pytest.mark.parametrize("name", LIGHTNING)
def test_lightning_adapters_bring_their_defaults(tmp_path: Path, model: Checkpoint,
                                                 name: str) -> None:
    stored = {**pair("transformer_blocks.0.attn.to_q", WIDTH, WIDTH, *KOHYA),
              "transformer_blocks.0.attn.to_q.alpha": np.array(2, np.float32)}
    save_file(stored, tmp_path / f"{name}.safetensors")
    adapter = AdapterFile.open(tmp_path / f"{name}.safetensors")
    config, notes, warnings = few_steps(model.config, Adapted(
        model, [WeightedAdapter(adapter, 1.0)]))
    assert (config.default_steps, config.default_guidance) == (LIGHTNING[name], 1.0)
    assert (config.flow_shift, config.flow_terminal, warnings) == (3.0, 0.0, [])
    assert f"defaults are those that {name}.safetensors is made for" in notes[0]


@pytest.mark.parametrize("stored", [
    pair("transformer_blocks.0.img_mlp.net.0.proj", 4 * WIDTH, WIDTH, *KOHYA),
    pair("diffusion_model.transformer_blocks.1.txt_mod.1", 6 * WIDTH, WIDTH),
    pair("transformer.transformer_blocks.0.txt_mlp.net.2", WIDTH, 4 * WIDTH),
    pair("lora_unet_transformer_blocks_0_img_mod_1", 6 * WIDTH, WIDTH, *KOHYA),
    pair("transformer_blocks.0.img_mlp.net.2", WIDTH, 4 * WIDTH, "lora_A.default.weight",
         "lora_B.default.weight"),
    pair("base_model.model.transformer_blocks.0.img_mod.1", 6 * WIDTH, WIDTH),
    {f"lycoris_transformer_blocks_0_img_mlp_net_2.lokr_w{i}": np.ones(shape, np.float32)
     for i, shape in ((1, (8, 8)), (2, (8, 32)))},
], ids=lambda stored: next(iter(stored)))
def test_adapters_of_all_spellings_are_applied(
        tmp_path: Path, model: Checkpoint, stored: tiny.Weights) -> None:
    assert applied(tmp_path, model, stored) == (2, [], "Qwen-Image")


@pytest.mark.parametrize("module", [
    "transformer_blocks.0.attn.to_out.0", "transformer.transformer_blocks.1.attn.add_v_proj",
    "lora_unet_transformer_blocks_0_attn_to_add_out"])
def test_adapters_of_attention_alone_are_applied(tmp_path: Path, model: Checkpoint,
                                                 module: str) -> None:
    """Their names do not tell of which transformer they are."""
    assert applied(tmp_path, model, pair(module, WIDTH, WIDTH))[:2] == (2, [])


def test_three_files_of_comfyui(tmp_path: Path, model: Checkpoint, weights: tiny.Weights) -> None:
    """The autoencoder with the names of Wan's authors; its kernels of three frames are read by
    their last tap, and what halves time is no unknown layer."""
    denoiser = tiny.write(tmp_path / "qwen_image.safetensors", tiny.part(weights, tiny.DENOISER))
    encoder = tiny.write(tmp_path / "qwen.safetensors", {
        f"model.{name}": value
        for name, value in tiny.text_encoder(CONFIG, weights, "qwen25").items()})
    films = {**tiny.of_films(tiny.part(weights, tiny.VAE)),
             "encoder.down_blocks.2.time_conv.bias": np.ones(8, np.float16)}
    vae = tiny.write(tmp_path / "qwen_image_vae.safetensors", tiny.of_wan(films, CONFIG.vae))
    found = load(denoiser, [encoder], vae)
    assert found.config == model.config
    for name in found.names():
        np.testing.assert_array_equal(found.read(name), model.read(name))
    assert "16 channels, as those of Anima, Krea 2, Qwen-Image, Qwen-Im" in str(inspect(vae))


def test_parts_that_are_missing_or_of_other_models(tmp_path: Path, weights: tiny.Weights) -> None:
    alone = tiny.write(tmp_path / "qwen_image.safetensors", tiny.part(weights, tiny.DENOISER))
    with pytest.raises(CheckpointError) as caught:
        load(alone)
    for said in ("a Qwen-Image checkpoint and incomplete", "the text encoder Qwen2.5-VL",
                 "--text-encoder qwen_2.5_vl_7b.safetensors --vae qwen_image_vae.safetensors",
                 "models/text_encoders of ComfyUI"):
        assert said in str(caught.value)
    flux = tiny.WORDLESS["flux"]
    other = tiny.write(tmp_path / "ae.safetensors", tiny.part(
        tiny.random_weights(flux), tiny.VAE))
    with pytest.raises(CheckpointError, match="ae.safetensors holds an autoencoder of latent .*"
                                              "Qwen-Image do not read; give .* qwen_image_vae.saf"):
        load(alone, vae=other)
    vae = tiny.write(tmp_path / "qwen_image_vae.safetensors",
                     tiny.of_films(tiny.part(weights, tiny.VAE)))
    with pytest.raises(CheckpointError, match="holds an autoencoder of Wan 2.1 or Qwen-Image, "
                                              "which models of FLUX.1 do not read"):
        load(tiny.write(tmp_path / "flux.safetensors", tiny.part(
            tiny.random_weights(flux), tiny.DENOISER)), vae=vae)


SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": True,
             "base_image_seq_len": 256, "max_image_seq_len": 8192, "base_shift": 0.5,
             "max_shift": 0.9, "shift": 1.0, "shift_terminal": 0.02}
FOUR = [1, .9, .75, .5, 0]


@pytest.mark.parametrize(("stated", "expected"), [
    ({}, [1, .766709, .455614, .02, 0]),
    ({"shift_terminal": None}, [1, .857192, .666756, .400096, 0]),
    ({"base_shift": 1.0986122886681098, "max_shift": 1.0986122886681098,  # of Lightning
      "shift_terminal": None}, FOUR),
    ({"use_dynamic_shifting": False, "shift": 3.0, "shift_terminal": None}, FOUR),
    ({"base_image_seq_len": 4096, "base_shift": 1.0986122886681098, "shift_terminal": None}, FOUR)])
def test_a_folder_states_its_levels(tmp_path: Path, weights: tiny.Weights, stated: dict,
                                    expected: list[float]) -> None:
    config = load(folder(tmp_path, weights, {**SCHEDULER, **stated})).config
    np.testing.assert_allclose(levels(config, 4), expected, atol=1e-6)


@pytest.mark.parametrize(("stated", "said"), [
    ({"shift_terminal": 1.0}, "shift_terminal is 1.0; expected a number from 0 to 1"),
    ({"shift_terminal": "high"}, "shift_terminal is 'high'"),
    ({"base_image_seq_len": 8192}, "the shift twice for 8192 tokens")])
def test_a_scheduler_that_makes_no_sense_is_refused(
        tmp_path: Path, weights: tiny.Weights, stated: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        load(folder(tmp_path, weights, {**SCHEDULER, **stated}))


def folder(path: Path, weights: tiny.Weights, scheduler: dict) -> Path:
    """A folder of diffusers."""
    parts = {"transformer": tiny.part(weights, tiny.DENOISER),
             "vae": tiny.of_films(tiny.part(weights, tiny.VAE)),
             "text_encoder": tiny.text_encoder(CONFIG, weights, "qwen25")}
    index = {"_class_name": "QwenImagePipeline", **{name: ["a", "b"] for name in parts}}
    for name, stored in parts.items():
        (path / name).mkdir()
        stem = "model" if name == "text_encoder" else "diffusion_pytorch_model"
        tiny.write(path / name / f"{stem}.safetensors", stored)
    (path / "scheduler").mkdir()
    (path / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    (path / "model_index.json").write_text(json.dumps(index))
    return path


@pytest.mark.sweep
def test_a_picture_of_a_guided_and_of_a_plain_prompt(tmp_path: Path) -> None:
    """Guidance keeps the norm of each token, unless another limit is asked for; text encoders read
    plain texts."""
    config = tiny.FAMILIES["qwen-image"]
    path = tiny.write_whole(tmp_path / "qwen.safetensors", config)
    pipe = Pipeline.load(path, threads=1)
    assert pipe.parts == ("text", "modulation", "transformer", "vae", "vae_encoder")
    found = [np.asarray(pipe("an apple", width=32, height=32, steps=2, seed=1, **options).images[0])
             for options in ({}, {"guidance_rescale": 1e-9}, {"guidance_scale": 1.0})]
    assert all(picture.shape == (32, 32, 3) for picture in found)
    assert not any(np.array_equal(found[i], found[i - 1]) for i in range(3))
