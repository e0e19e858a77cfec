"""The pipeline on a tiny model: what is promised about pictures, steps, memory and errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_regions import LEVELS
from tiny_model import TINY, write_model

from smalti import Guide, Pipeline, Projected
from smalti.diffusion import metadata
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.residents import Residents
from smalti.errors import CheckpointError, InputError, NumericsError


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


def pixels(pipe: Pipeline, **options: Any) -> list[bytes]:
    return [image.tobytes() for image in pipe("a red apple", **options).images]


def test_defaults_are_the_model_s_own(pipe: Pipeline) -> None:
    result = pipe("a red apple")
    (image,) = result.images
    assert image.size == (16, 16) and image.mode == "RGB"
    asked = result.parameters
    assert (asked.steps, asked.guidance_scale, asked.model) == (3, 3.0, "tiny")
    assert result.seeds == (7,) and not result.warnings
    assert set(result.timings) == {"prepare", "text", "denoise", "decode"}


def test_width_and_height_are_not_mixed_up(pipe: Pipeline) -> None:
    (image,) = pipe("a red apple", width=24, height=16).images
    assert image.size == (24, 16)


def test_the_same_seed_gives_the_same_bytes(pipe: Pipeline, model_path: Path) -> None:
    first = pixels(pipe)
    assert first == pixels(pipe)
    assert first == pixels(Pipeline.load(model_path, threads=2))
    assert first != pixels(pipe, seed=8)


@pytest.mark.sweep
def test_the_shipped_model_gives_the_same_pixels_for_any_number_of_threads() -> None:
    made = [pixels(Pipeline.load(threads=threads, device="cpu"), seed=1, steps=8)
            for threads in (1, 2, 3, 8)]
    assert all(one == made[0] for one in made)


def test_weights_are_held_as_the_file_has_them_with_the_same_picture(
        pipe: Pipeline, tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    wide = {name: array.astype(np.float32) for name, array in weights.items()}
    other = Pipeline.load(write_model(tmp_path / "wide.safetensors", wide), threads=1)
    assert pixels(pipe) == pixels(other)
    table = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    held = [{slot.name: slot.dtype for slot in which.program("text").module.slots}[table]
            for which in (pipe, other)]
    assert held == ["f16", "f32"]


@pytest.mark.parametrize("level", [
    pytest.param(level, marks=() if level == LEVELS[-1] else pytest.mark.sweep)
    for level in LEVELS])
def test_bf16_makes_nearly_the_same_picture(pipe: Pipeline, model_path: Path, level: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"width": 96, "height": 96, "steps": 2}
    (expected,) = pipe("a red apple", **asked).images
    monkeypatch.setenv("SMALTI_TARGET", level)
    (found,) = Pipeline.load(model_path, precision="bf16")("a red apple", **asked).images
    error = np.asarray(found, np.float64) - np.asarray(expected, np.float64)
    assert 0 < np.mean(error ** 2) < 255 ** 2 / 10 ** 4, "40 dB"


@pytest.mark.parametrize("sampler", ["euler", "euler_a", "dpm++_2m"])
def test_a_picture_depends_on_its_own_seed_only(pipe: Pipeline, sampler: str) -> None:
    both = pixels(pipe, seed=7, batch_size=2, sampler=sampler, steps=3)
    assert both == [*pixels(pipe, seed=7, sampler=sampler, steps=3),
                    *pixels(pipe, seed=8, sampler=sampler, steps=3)]


@pytest.mark.parametrize(("option", "value"), [
    ("negative_prompt", "blurry"), ("guidance_scale", 5.0), ("sampler", "euler"),
    ("noise", "normal"), ("rng", "cuda"), ("steps", 4),
])
def test_every_option_matters(pipe: Pipeline, option: str, value: object) -> None:
    assert pixels(pipe) != pixels(pipe, **{option: value})


def test_guidance_1_leaves_the_negative_prompt_out(pipe: Pipeline) -> None:
    assert (pixels(pipe, guidance_scale=1.0)
            == pixels(pipe, guidance_scale=1.0, negative_prompt="blurry"))
    (warning,) = pipe("a red apple", "blurry", guidance_scale=1.0).warnings
    assert warning == "the negative prompt is not read at guidance 1"
    assert not pipe("a red apple", "blurry", guidance_scale=2.0).warnings


@pytest.mark.parametrize(("guide", "label"), [
    (Guide(rescale=0.7), "CFG rescale: 0.7"), (Guide(start=0.5), "CFG interval: 0.5-1"),
    (Guide(projected=Projected()), "APG: 0 15 -0.5"),
])
def test_ways_of_guidance(pipe: Pipeline, guide: Guide, label: str) -> None:
    options = {"guidance_scale": 9.0, "batch_size": 2}
    result = pipe("a red apple", guide=guide, **options)
    found = [image.tobytes() for image in result.images]
    assert label in result.texts[0] and found != pixels(pipe, **options)
    assert found[1:] == pixels(pipe, guide=guide, guidance_scale=9.0, seed=8)


def test_other_spellings_are_the_same_sampler(pipe: Pipeline) -> None:
    assert pixels(pipe, sampler="Euler a", noise="Karras") == pixels(pipe)


def test_noise_of_the_sampler_s_own_choice(pipe: Pipeline) -> None:
    assert (pixels(pipe, sampler="dpm++_2m", noise="automatic")
            == pixels(pipe, sampler="dpm++_2m", noise="karras"))
    assert pipe("x", sampler="DDIM", noise="Automatic").parameters.noise == "ddim_uniform"


def test_a_sampler_label_of_old_names_the_schedule_too(pipe: Pipeline) -> None:
    asked = pipe("x", sampler="DPM++ 2M Exponential", steps=1).parameters
    assert (asked.sampler, asked.noise) == ("dpm++_2m", "exponential")
    assert pipe("x", sampler="DPM++ 2M Karras", noise="normal").parameters.noise == "normal"


def test_noise_levels_as_given(pipe: Pipeline) -> None:
    result = pipe("a red apple", noise="14.6, 3, 0", steps=7)
    assert (result.parameters.noise, result.parameters.steps) == ("14.6,3,0", 2)
    assert 'Schedule type: "14.6,3,0"' in result.texts[0]
    assert [step.sigma for step in pipe.steps("x", noise="14.6,3,0")] == [3, 0]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_cfgpp_reads_both_prompts(pipe: Pipeline, scale: float) -> None:
    options = {"sampler": "euler_cfg++", "guidance_scale": scale}
    assert pixels(pipe, **options) != pixels(pipe, negative_prompt="blurry", **options)


def test_steps_tell_how_far_they_are(pipe: Pipeline) -> None:
    steps = list(pipe.steps("a red apple", steps=3, batch_size=2))
    assert [(step.index, step.total) for step in steps] == [(0, 3), (1, 3), (2, 3)]
    sigmas = [step.sigma for step in steps]
    assert sigmas == sorted(sigmas, reverse=True) and sigmas[-1] == 0
    assert all(step.latents.shape == (2, 4, 8, 8) for step in steps)
    assert [step.result is None for step in steps] == [True, True, False]
    assert len(steps[-1].result.images) == 2


def test_stopping_in_the_middle_leaves_a_working_pipeline(pipe: Pipeline) -> None:
    before = pixels(pipe)
    steps = pipe.steps("a blue book", steps=3)
    next(steps)
    steps.close()
    assert pixels(pipe) == before


def test_numbers_may_be_numpy_s(pipe: Pipeline) -> None:
    options = {"seed": np.uint64(9), "steps": np.int32(2), "guidance_scale": np.float32(3)}
    found = pipe("a red apple", **options)
    assert found.seeds == (9,) and found.parameters.steps == 2
    expected = pipe("a red apple", seed=9, steps=2, guidance_scale=3)
    assert found.images[0].tobytes() == expected.images[0].tobytes()


def test_a_random_seed_is_told(pipe: Pipeline) -> None:
    first, second = (pipe("a red apple", seed=-1) for _ in range(2))
    assert first.seeds != second.seeds
    assert pixels(pipe, seed=first.seeds[0]) == [first.images[0].tobytes()]


def test_the_text_is_what_made_the_picture(pipe: Pipeline) -> None:
    result = pipe("a red apple, ripe", negative_prompt="dog", batch_size=2)
    found = [metadata.parse(text) for text in result.texts]
    assert [text.pairs["Seed"] for text in found] == ["7", "8"]
    assert (found[0].prompt, found[0].negative_prompt) == ("a red apple, ripe", "dog")
    pairs = found[0].pairs
    assert (pairs["Sampler"], pairs["Schedule type"], pairs["CFG scale"]) == (
        "Euler a", "Karras", "3")
    assert (pairs["Size"], pairs["Steps"]) == ("16x16", "3")
    assert pairs["Model"] == "tiny"


def test_a_long_prompt_is_read_to_its_end(pipe: Pipeline) -> None:
    words = " ".join(["apple"] * 75)
    longer = pipe(f"{words} pear")
    assert not longer.warnings
    assert longer.images[0].tobytes() != pipe(words).images[0].tobytes()
    assert pixels_of(pipe, f"{words} BREAK pear") == [longer.images[0].tobytes()]


def test_a_prompt_without_end_is_cut_and_it_is_said(pipe: Pipeline) -> None:
    result = pipe("apple " * (75 * 32 + 7), steps=1)
    assert result.warnings == ["the prompt is longer than the 32 times 75 tokens that are read; "
                               "7 tokens at its end are not"]


def pixels_of(pipe: Pipeline, prompt: str, **options: Any) -> list[bytes]:
    return [image.tobytes() for image in pipe(prompt, **options).images]


@pytest.mark.parametrize(("prompt", "same"), [
    ("a (red:1) apple", "a red apple"),
    ("a (red) apple", "a (red:1.1) apple"),
    (r"a \(red\) apple", None),
    ("a [red:green:0] apple", "a green apple"),
    ("a [red:green:1] apple", None),
    ("a [red|green] apple", None),
    ("a red apple AND a dog", None),
    ("a red BREAK apple", None),
])
def test_forms_of_prompts(pipe: Pipeline, prompt: str, same: str | None) -> None:
    found = pixels_of(pipe, prompt)
    if same is not None:
        assert found == pixels_of(pipe, same)
    else:
        assert found not in (pixels_of(pipe, "a red apple"), pixels_of(pipe, "a green apple"))


def test_a_prompt_that_changes_begins_as_the_first_one(pipe: Pipeline) -> None:
    first, changed = (list(pipe.steps(prompt, steps=4)) for prompt in (
        "a red apple", "a [red:green:0.5] apple"))
    same = [np.array_equal(a.latents, b.latents) for a, b in zip(first, changed, strict=True)]
    assert same == [True, True, False, False]


def test_prompts_joined_by_and_add_up(pipe: Pipeline) -> None:
    """Equal prompts whose weights add up to 1 are that prompt, and a weight of 0 is none."""
    alone, *others = (list(pipe.steps(prompt, steps=2))[0].latents for prompt in (
        "a red apple", "a red apple:0.25 AND a red apple:0.75", "a red apple AND a dog:0"))
    for other in others:
        np.testing.assert_allclose(other, alone, atol=1e-4)


@pytest.mark.parametrize("emphasis", ["original", "no norm", "comfy"])
def test_weights_of_a_prompt(pipe: Pipeline, emphasis: str) -> None:
    prompt = "a (red:1.6) apple"
    others = [way for way in ("original", "no norm", "comfy") if way != emphasis]
    found = pixels_of(pipe, prompt, emphasis=emphasis)
    assert all(found != pixels_of(pipe, prompt, emphasis=way) for way in others)
    plain = pixels_of(pipe, "a red apple", emphasis=emphasis)
    assert found != plain == pixels_of(pipe, "a red apple")
    assert ("Emphasis" in pipe(prompt, emphasis=emphasis).texts[0]) == (emphasis != "original")


def test_what_a_prompt_asks_for_in_vain_is_said(pipe: Pipeline) -> None:
    result = pipe("a red apple<lora:fur:0.5> <hypernet:x:1>")
    assert result.images[0].tobytes() == pipe("a red apple").images[0].tobytes()
    assert [text.split(" in the prompt")[0] for text in result.warnings] == [
        "'fur'", "<hypernet:x:1>"]


@pytest.mark.parametrize(("options", "message"), [
    ({"width": 0}, "width is 0; expected a whole number from 4 to 4096"),
    ({"height": -16}, "height is -16"),
    ({"width": 18}, "multiples of 4 pixels; the next are 16 and 20"),
    ({"width": 10**12}, "from 4 to 4096 pixels"),
    ({"height": 16.0}, "height is 16.0"),
    ({"steps": 0}, "steps is 0; expected a whole number from 1 to 1000"),
    ({"steps": 1001}, "steps is 1001"),
    ({"steps": True}, "steps is True"),
    ({"batch_size": 0}, "batch_size is 0; expected a whole number from 1 to 64"),
    ({"batch_size": 65}, "batch_size is 65"),
    ({"seed": -2}, "seed is -2"),
    ({"seed": 2**64}, "expected a whole number from 0 to"),
    ({"guidance_scale": math.nan}, "guidance_scale is nan"),
    ({"guidance_scale": -1.0}, "expected a number from 0 to 100"),
    ({"guidance_scale": "7"}, "guidance_scale is '7'"),
    ({"sampler": "plms"}, "sampler is 'plms'; known: euler, euler_a, ddim"),
    ({"noise": "sigma"}, "noise is 'sigma'; known: normal, karras"),
    ({"noise": "3,1"}, "noise levels are '3,1'; expected numbers that fall to 0"),
    ({"rng": "gpu"}, "rng is 'gpu'; known: cpu, cuda"),
    ({"emphasis": "bold"}, "emphasis is 'bold'; known: original, no norm, comfy"),
    ({"negative_prompt": None}, "the negative prompt is None; expected text"),
])
def test_what_cannot_be_used_is_refused_at_once(
        pipe: Pipeline, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        pipe.steps("a red apple", **options)
    assert message in str(caught.value)


def test_a_size_beyond_the_memory_is_refused(model_path: Path) -> None:
    pipe = Pipeline.load(model_path, threads=1)
    pipe._memory_bytes = 1 << 20
    with pytest.raises(InputError, match=r"needs about 5\.0 GiB of working memory"):
        pipe.steps("a red apple", width=4096, height=4096)


@pytest.mark.parametrize(("options", "message"), [
    ({"threads": 0}, "threads is 0; expected a whole number from 1 to 256"),
    ({"threads": 1000}, "threads is 1000"),
    ({"device": "cuda:0"}, "no device is named 'cuda:0'; known: auto, cpu"),
    ({"precision": "f8"}, "precision is 'f8'; known: auto, f32, bf16"),
])
def test_loading_refuses_what_it_cannot_use(
        model_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Pipeline.load(model_path, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [
    ("cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight", np.nan),
    ("model.diffusion_model.middle_block.0.in_layers.2.weight", np.inf),
    ("first_stage_model.decoder.conv_in.bias", np.nan),
])
def test_damaged_weights_are_named(
        tmp_path: Path, weights: dict[str, np.ndarray], name: str, value: float) -> None:
    damaged = {**weights, name: weights[name].copy()}
    damaged[name].flat[-1] = value
    pipe = Pipeline.load(write_model(tmp_path / "damaged.safetensors", damaged), threads=1)
    with pytest.raises(NumericsError) as caught:
        pipe("a red apple")
    assert name in str(caught.value)


def test_the_kernel_that_overflows_is_named(
        tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    name = "model.diffusion_model.out.2.weight"
    huge = {**weights, name: np.full(weights[name].shape, 1e38, np.float32)}
    pipe = Pipeline.load(write_model(tmp_path / "huge.safetensors", huge), threads=1)
    with pytest.raises(NumericsError, match=r"model\.diffusion_model.*out"):
        pipe("a red apple")


def test_a_small_vocabulary_is_refused(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    name = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    path = write_model(tmp_path / "words.safetensors", {**weights, name: weights[name][:50]})
    with pytest.raises(CheckpointError, match="50 tokens of the text encoder, but 49408"):
        Pipeline.load(path)


def test_what_was_used_longest_ago_is_let_go_behind_a_call(
        model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline.load(model_path, threads=1)
    expected, held = pixels(pipe), pipe._residents
    parts = [part for _, part in held]
    assert parts == ["text", "unet", "vae"]
    programs = {key: held.get(key).program for key in held}
    assert pixels(pipe) == expected
    assert {key: held.get(key).program for key in held} == programs
    need = sum(held.get(key).bytes for key in held)
    for kept_bytes, kept in ((need, parts), (need - 1, ["unet", "vae"]), (0, [])):
        held.trim(kept_bytes)
        assert [part for _, part in held] == kept
    monkeypatch.setattr(Residents, "kept_bytes", need - 1)
    assert [step.result for step in pipe.steps("a red apple", width=16, height=16)][-1]
    assert [part for _, part in held] == ["unet", "vae"]


def test_parts_are_let_go_that_are_not_to_be_kept(model_path: Path) -> None:
    pipe = Pipeline.load(model_path, threads=1, keep=False)
    assert pixels(pipe) == pixels(Pipeline.load(model_path, threads=1))
    assert not list(pipe._residents)


def test_progress_names_the_parts(model_path: Path) -> None:
    lines: list[str] = []
    Pipeline.load(model_path, threads=1, progress=lines.append)("a red apple")
    text = "\n".join(lines)
    for part in ("the text encoder", "the UNet", "the image decoder"):
        assert f"compiling {part}" in text and f"loading {part}" in text


@pytest.mark.parametrize("part", ["text", "unet", "vae"])
def test_explain_shows_every_part(pipe: Pipeline, part: str) -> None:
    assert pipe.explain(part).strip()


def test_explain_refuses_an_unknown_part(pipe: Pipeline) -> None:
    with pytest.raises(InputError, match="known: text, unet, vae"):
        pipe.explain("lora")


def test_the_tiny_model_is_what_it_says(pipe: Pipeline) -> None:
    assert pipe.config == TINY


@pytest.mark.peers
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_pictures_are_those_of_diffusers(tmp_path: Path, scale: float) -> None:
    """Same latents, five Euler steps: 99.9 % of all values within 1 of 255."""
    from peers_models import TINY_SD1, with_clip_vocabulary

    from smalti.benchmark.peers import peer_sd1

    config = with_clip_vocabulary(TINY_SD1)
    parts = peer_sd1(config)
    path = tmp_path / "model.safetensors"
    write_peer_model(path, parts)
    pipe = Pipeline.load(path, threads=1)
    assert pipe.config.denoiser.block_channels == config.denoiser.block_channels
    (ours,) = pipe("a red apple", "blurry", width=64, height=64, steps=5, sampler="euler",
                   noise="normal", guidance_scale=scale).images
    theirs = diffusers_picture(pipe, parts, scale)
    difference = np.abs(np.asarray(ours, np.float64) - theirs)
    assert (difference <= 1).mean() >= 0.999
    assert theirs.std() > 5, "a picture of one colour would prove nothing"


def write_peer_model(path: Path, parts: tuple[Any, ...]) -> None:
    """A single file of the peers' weights, with what shapes do not tell."""
    import json

    from peers_models import TINY_SD1
    from safetensors.numpy import save_file

    weights = {name: np.ascontiguousarray(array)
               for part in parts for name, array in part.weights.items()}
    arch_config = {"text": {"num_attention_heads": TINY_SD1.texts["clip_l"].heads},
                   "unet": {"num_heads": TINY_SD1.denoiser.heads,
                            "norm_num_groups": TINY_SD1.denoiser.norm_groups},
                   "vae": {"norm_num_groups": TINY_SD1.vae.norm_groups}}
    save_file(weights, path, {"arch_config": json.dumps(arch_config)})


def diffusers_picture(pipe: Pipeline, parts: tuple[Any, ...], scale: float) -> np.ndarray:
    """What diffusers makes of the same tokens and noise; [height, width, 3] in 0 to 255."""
    import torch
    from diffusers import EulerDiscreteScheduler

    from smalti.diffusion.noise import NOISES, NoiseLevels
    from smalti.diffusion.random import NoiseSource
    from smalti.diffusion.tokenizer import encode

    text, unet, vae = (part.module for part in parts)
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
        timestep_spacing="linspace")
    # ours, because diffusers interpolates sigmas linearly between training steps, not log(sigma)
    sigmas = NOISES["normal"].sigmas(NoiseLevels.scaled_linear(), 5)
    scheduler.set_timesteps(sigmas=sigmas[:-1].tolist())
    with torch.no_grad():
        ids = torch.tensor([encode("blurry").ids, encode("a red apple").ids])
        context = text(ids).last_hidden_state
        noise = NoiseSource("cpu", (7,), (4, 8, 8)).draw()
        latents = torch.from_numpy(noise) * scheduler.init_noise_sigma
        for timestep in scheduler.timesteps:
            scaled = scheduler.scale_model_input(torch.cat([latents] * 2), timestep)
            uncond, cond = unet(scaled, timestep, context).sample.chunk(2)
            latents = scheduler.step(uncond + scale * (cond - uncond), timestep,
                                     latents).prev_sample
        image = vae.decode(latents / pipe.config.vae.scaling_factor).sample[0]
    return ((image / 2 + 0.5).clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()


def test_a_picture_with_attention_to_some_tokens(pipe: Pipeline) -> None:
    """It is another one, nearly the same, and none of this stays behind."""
    plain, some, again = (pipe("a red apple", token_downsampling=step) for step in (1, 2, 1))
    assert "Token downsampling: 2" in some.texts[0] and "ownsampling" not in plain.texts[0]
    pictures = [np.asarray(each.images[0], int) for each in (plain, some, again)]
    assert 0 < np.abs(pictures[0] - pictures[1]).max()
    np.testing.assert_array_equal(pictures[0], pictures[2])
    with pytest.raises(InputError, match="token_downsampling is 0"):
        pipe("a red apple", token_downsampling=0)
    with pytest.raises(InputError, match="token_downsampling is 8, and 2 tokens lie side by side"):
        pipe.job(PictureOptions("a red apple", token_downsampling=8, width=8))
    with pytest.raises(InputError, match="token_downsampling is True"):
        pipe("a red apple", token_downsampling=True)


def test_a_picture_that_can_be_repeated(pipe: Pipeline) -> None:
    """Noise that is moved around the edges moves the picture, in the directions asked for only."""
    result = pipe("a red apple", tiling="xy")
    assert "Tiling: True" in result.texts[0]
    plain, both = (np.asarray(pipe("a red apple", tiling=tiling).images[0], int)
                   for tiling in ("", "xy"))
    assert np.abs(plain - both).max() > 10
    for tiling in ("x", "y", "xy"):
        moved = {}
        for move in ((0, 4), (2, 0)):
            latents = np.random.default_rng(1).standard_normal((1, 4, 8, 8), np.float32)
            given = {"timesteps": np.full(1, 500, np.float32),
                     "context": np.ones((1, 77, 16), np.float32)}
            found = [pipe._submodels.run("unet", (1, 8, 8, 77, False, tiling), latent=latent,
                                         **given)["prediction"]
                     for latent in (latents, np.roll(latents, move, (2, 3)))]
            moved[move] = np.allclose(np.roll(found[0], move, (2, 3)), found[1], atol=1e-4)
        assert moved == {(0, 4): "x" in tiling, (2, 0): "y" in tiling}, tiling
    with pytest.raises(InputError, match="tiling is 'z'; known: x, y, xy"):
        pipe("a red apple", tiling="z")
