"""Qwen-Image-2.1: what prompts are read as, files as they are published, pictures with opacity,
adapters, wrong parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import KOHYA, applied, pair

from smalti import Pipeline
from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.checkpoint.hints import arch_config, folder_hints, metadata_hints
from smalti.checkpoint.uncomputed import settings
from smalti.diffusion import byte_bpe
from smalti.diffusion.noise import FlowLevels, find_schedule
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.request import request, working_bytes
from smalti.errors import CheckpointError, InputError
from smalti.families import families
from smalti.families.records.qwen_image21 import SYSTEM, SYSTEM_TOKENS, TURBO
from smalti.models import QWEN_IMAGE21_VAE

CONFIG = tiny.WORDLESS["qwen-image21"]
NAME = "qwen-image21"
WIDTH, MLP = CONFIG.denoiser.hidden_size, CONFIG.denoiser.mlp_size
OPTIONS = {"width": 64, "height": 32, "steps": 2, "seed": 7}
GATES, UP = (f"transformer_blocks.1.img_mlp.{name}" for name in ("gate_layer", "proj"))


def denoiser(weights: tiny.Weights, prefix: str = "") -> dict[str, np.ndarray]:
    """As ComfyUI has it: gates and what they are for in one matrix."""
    found = tiny.part(weights, tiny.DENOISER, prefix)
    for block in range(CONFIG.denoiser.blocks):
        start = f"{prefix}transformer_blocks.{block}.img_mlp."
        found[f"{start}gate_up.weight"] = np.concatenate([
            found.pop(f"{start}{name}.weight") for name in ("gate_layer", "proj")])
    return found


@pytest.fixture
def vae(tmp_path: Path, weights: tiny.Weights) -> Path:
    """As ComfyUI has it: by the names of Wan 2.2."""
    stored = tiny.of_wan22(tiny.autoencoder(CONFIG, weights), CONFIG.vae)
    return tiny.write(tmp_path / "qwen_image_2.1_vae_bf16.safetensors", stored)


@pytest.fixture
def text(tmp_path: Path, weights: tiny.Weights) -> Path:
    return tiny.write(tmp_path / "qwen3vl_8b_bf16.safetensors",
                      tiny.text_encoder(CONFIG, weights, "qwen3vl"))


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model."])
def test_what_shapes_show(tmp_path: Path, model: Checkpoint, weights: tiny.Weights, vae: Path,
                          text: Path, prefix: str) -> None:
    """In a file of all parts, and in ComfyUI's three."""
    config = model.config
    assert (config.denoiser, config.texts, config.vae) == (
        CONFIG.denoiser, CONFIG.texts, CONFIG.vae)
    assert (config.default_steps, config.default_guidance) == (40, 1.0)
    assert (config.flow_shift, config.flow_terminal) == (None, 0.02)
    alone = tiny.write(tmp_path / f"{NAME}.safetensors", denoiser(weights, prefix))
    found = load(alone, [text], vae)
    assert found.config == config
    for name in (tiny.DENOISER + f"{GATES}.weight", tiny.DENOISER + f"{UP}.weight",
                 f"{tiny.VAE}decoder.up_blocks.1.upsampler.resample.1.weight"):
        np.testing.assert_array_equal(found.read(name), weights[name])
    assert "a Qwen-Image-2.1 checkpoint" in str(inspect(alone))
    assert "the text encoder Qwen3-VL" in str(inspect(text))
    assert "an autoencoder" in str(inspect(vae))
    assert "2 blocks, width 64, 2 heads, 64 latent channels" in str(inspect(alone, [text], vae))


@pytest.mark.parametrize("architecture", ["qwen_image", "pig"])
def test_a_gguf_file_of_the_denoiser(tmp_path: Path, model: Checkpoint, weights: tiny.Weights,
                                     vae: Path, text: Path, architecture: str) -> None:
    """stable-diffusion.cpp calls what it is as Qwen-Image, or not at all; names tell it."""
    tensors = [GgufTensor(name, value.shape, "f16", lambda value=value: value)
               for name, value in denoiser(weights).items()]
    with (tmp_path / "model.gguf").open("wb") as file:
        write_gguf(file, {"general.architecture": architecture}, tensors)
    found = load(tmp_path / "model.gguf", [text], vae)
    assert found.config == model.config
    name = tiny.DENOISER + f"{UP}.weight"
    np.testing.assert_array_equal(found.read(name), weights[name])


@pytest.mark.parametrize(("name", "steps"), [
    ("Qwen-Image-2.1-Lightning", 4), ("qwen_image_2.1_turbo_4steps", 4)])
def test_lightning_is_told_by_its_name(tmp_path: Path, weights: tiny.Weights, name: str,
                                       steps: int) -> None:
    """Its shift follows the size as ever, and no level is left at the end."""
    config = load(tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)).config
    assert (config.default_steps, config.default_guidance, config.flow_shift,
            config.flow_terminal) == (steps, 1.0, None, 0.0)


@pytest.mark.parametrize("name", ["qwen_image_2.1_turbo_bf16", "Qwen-Image-2.1-Turbo-8steps"])
def test_turbo_has_levels_of_its_own(tmp_path: Path, weights: tiny.Weights, name: str) -> None:
    """For 8 steps; of others they are those of the family."""
    config = load(tiny.write_whole(tmp_path / f"{name}.safetensors", CONFIG, weights)).config
    assert (config.default_steps, config.default_guidance) == (8, 1.0)
    own, four = (request(config, PictureOptions("an apple", steps=steps), memory_bytes=2**34)
                 for steps in (None, 4))
    assert (own.steps, own.noise) == (8, TURBO["noise"]) and (four.steps, four.noise) == (
        4, "trailing")
    levels = find_schedule(own.noise).sigmas(FlowLevels.shifted(2.0), 8)
    np.testing.assert_allclose(levels[[0, 1, 7, 8]], [1, .978453, .414568, 0])


@pytest.mark.parametrize(("sigmas", "scheduler", "steps", "noise"), [
    ([1.0, 0.75, 0.5, 0.25], {"use_dynamic_shifting": True}, 4, None),
    ([1.0, 0.978453, 0.414568], {"shift": 1.0, "use_dynamic_shifting": False}, 3,
     "1,0.978453,0.414568,0"),
    ([1.0, 0.9], {"shift": 3}, 2, "1,0.964286,0")])
def test_a_folder_states_its_levels(sigmas: list[float], scheduler: dict, steps: int,
                                    noise: str | None) -> None:
    hints = folder_hints("x", {"pipeline": {"sample_sigmas": sigmas}, "scheduler": scheduler})
    assert (hints.steps, hints.noise) == (steps, noise)
    assert metadata_hints("x", {"arch_config": arch_config(hints)}).noise == noise


@pytest.mark.parametrize(("sigmas", "scheduler", "said"), [
    ("1, 0.5", {}, "row of numbers"), ([0.5, 1.0], {}, "falling numbers"),
    ([1.0, 0.0], {}, "falling numbers"), ([1.5, 0.1], {}, "falling numbers"),
    ([1.0, 0.9], {"use_dynamic_shifting": True}, "shifted by the size"),
    ([1.0, 0.9], {"shift": "x"}, "shift is 'x'")])
def test_levels_of_a_folder_that_cannot_be(sigmas: object, scheduler: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        folder_hints("x", {"pipeline": {"sample_sigmas": sigmas}, "scheduler": scheduler})


def test_the_shift_follows_from_the_size() -> None:
    """As diffusers' scheduler gives the levels of 4096 tokens in 4 steps."""
    shift = families()[NAME].shift_by_size(1024, 1024, 4)
    found = find_schedule("trailing").sigmas(FlowLevels.shifted(shift, terminal=0.02), 4)
    np.testing.assert_allclose(found, [1, .766709, .455614, .02, 0], atol=1e-6)


def test_memory_for_decoding_is_guessed_of_the_wider_half() -> None:
    """The decoder of the published one is half as wide again as the encoder."""
    found = [working_bytes(replace(CONFIG, vae=vae), 1024, 1024)
             for vae in (replace(QWEN_IMAGE21_VAE, decoder_channels=()), QWEN_IMAGE21_VAE)]
    assert found == [2 * 4 * width * 1024**2 for width in (192, 288)]


# ---------------------------------------------------------------------- what is refused


def test_parts_that_are_missing_or_wrong_are_named(tmp_path: Path, weights: tiny.Weights,
                                                   vae: Path, text: Path) -> None:
    alone = tiny.write(tmp_path / "qwen.safetensors", denoiser(weights))
    with pytest.raises(CheckpointError, match="lacks the text encoder Qwen3-VL and the autoenc.*"
                                              "qwen3vl_8b_bf16.safetensors --vae qwen_image_2.1_v"):
        load(alone)
    small = tiny.WORDLESS["krea2"]
    stored = tiny.random_weights(small)
    with pytest.raises(CheckpointError, match="which models of .* do not read; give .* such as "
                                              "qwen_image_2.1_vae_bf16"):
        load(alone, [text], tiny.write(tmp_path / "wan.safetensors",
                                       tiny.autoencoder(small, stored)))
    wide = {name: np.ones((48, 24), np.float16) if "embed_tokens" in name else value
            for name, value in tiny.text_encoder(CONFIG, weights, "qwen3vl").items()
            if not name.startswith("visual.")}
    with pytest.raises(CheckpointError, match="holds the text encoder Qwen3, which a Qwen-Im"):
        load(alone, [tiny.write(tmp_path / "qwen3.safetensors", wide)], vae)


def test_settings_that_are_not_computed_are_refused() -> None:
    kind = {"_class_name": "AutoencoderKLQwenImage21"}
    assert not settings({"transformer": {"causal_condition": True},
                         "vae": {**kind, "is_residual": True, "patch_size": None}})
    for component, table in (("transformer", {"causal_condition": False}),
                             ("vae", {**kind, "is_residual": False}),
                             ("vae", {**kind, "patch_size": 2, "is_residual": True}),
                             ("vae", {"_class_name": "AutoencoderKLWan", "is_residual": True})):
        (line,) = settings({component: table})
        assert line.startswith(f"{component}/config.json: ")


def test_pictures_are_not_read_beside_the_prompt(tmp_path: Path) -> None:
    pipe = Pipeline.load(tiny.write_whole(tmp_path / "a.safetensors", tiny.QWEN_IMAGE21), threads=1)
    from PIL import Image

    picture = Image.new("RGB", (64, 32))
    with pytest.raises(InputError, match="2 pictures are given as image; this model reads 1 at"):
        pipe("an apple", image=[picture, picture], **OPTIONS)


# ---------------------------------------------------------------------- prompts


def test_the_system_part_is_dropped_and_no_more() -> None:
    (text,) = families()[NAME].texts
    assert text.template == (
        "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
    assert len(byte_bpe.qwen3().tokenize(SYSTEM)) == text.dropped == SYSTEM_TOKENS
    assert text.layer == 1 and not text.final_norm and text.blank == " "


@pytest.mark.sweep
def test_it_makes_pictures_with_opacity(tmp_path: Path) -> None:
    """From a prompt, and from a picture with its opacity; files without opacity show white."""
    pipe = Pipeline.load(tiny.write_whole(tmp_path / "a.safetensors", tiny.QWEN_IMAGE21), threads=1)
    first, other = (pipe(prompt, **OPTIONS).images[0] for prompt in ("an apple", "a red pear"))
    assert first.mode == "RGBA" and first.size == (64, 32)
    pixels = np.asarray(first, np.float64)
    assert pixels.std() > 5 and np.abs(pixels - np.asarray(other)).mean() > 0.1
    pair = pipe("an apple", batch_size=2, **{**OPTIONS, "seed": 6}).images
    np.testing.assert_array_equal(np.asarray(pair[1]), pixels.astype(np.uint8))
    for name in ("a.jpg", "a.png"):
        first.save(tmp_path / name)
    from PIL import Image

    with Image.open(tmp_path / "a.jpg") as opaque, Image.open(tmp_path / "a.png") as whole:
        assert (opaque.mode, whole.mode) == ("RGB", "RGBA")
        np.testing.assert_array_equal(np.asarray(whole), np.asarray(first))
    half = {"image": first, "strength": 0.5, **OPTIONS}
    again, flat = (pipe("an apple", **{**half, "image": each}).images[0]
                   for each in (first, first.convert("RGB")))
    assert again.mode == "RGBA" and np.asarray(again).std() > 5
    assert (np.asarray(again) != np.asarray(flat)).any()
    mask = Image.new("L", first.size)
    mask.paste(255, (0, 0, 32, 32))
    kept = pipe("an apple", image=first, mask=mask, mask_blur=0, **OPTIONS).images[0]
    np.testing.assert_array_equal(np.asarray(kept)[:, 32:], np.asarray(first)[:, 32:])
    assert kept.mode == "RGBA" and (np.asarray(kept) != np.asarray(first))[:, :32].any()
    kept = pipe("an apple", image=first.convert("RGB"), mask=mask, mask_blur=0, **OPTIONS).images[0]
    assert kept.mode == "RGB"


# ---------------------------------------------------------------------- adapters


@pytest.mark.parametrize("stored", [
    pair("diffusion_model.transformer_blocks.0.attn.to_q", WIDTH, WIDTH),
    pair(f"transformer.{GATES}", MLP, WIDTH),
    pair(f"base_model.model.{UP}", MLP, WIDTH),
    pair("transformer_blocks.1.img_mlp.out", WIDTH, MLP, "lora_A.default.weight",
         "lora_B.default.weight"),
    pair("diffusion_model.transformer_blocks.1.img_mlp.gate_up", 2 * MLP, WIDTH),
    pair("lora_unet_transformer_blocks_0_attn_to_out_0", WIDTH, WIDTH, *KOHYA),
    pair("lora_unet_transformer_blocks_1_img_mlp_gate_layer", MLP, WIDTH, *KOHYA),
    {**pair("transformer.transformer_blocks.0.attn.to_k", WIDTH, WIDTH),
     **pair("transformer.txt_in.in_layer", WIDTH, 24),
     **pair("transformer.modulation.1", 4 * WIDTH, WIDTH),
     **pair("transformer.transformer_blocks.0.img_mlp.proj", MLP, WIDTH)},
], ids=lambda stored: next(iter(stored)))
def test_adapters_of_all_spellings_are_applied(
        tmp_path: Path, model: Checkpoint, stored: tiny.Weights) -> None:
    used, unused, words = applied(tmp_path, model, stored)
    assert (used, unused) == (len(stored), []) and "Qwen-Image-2.1" in words
