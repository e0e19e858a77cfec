"""Pictures that FLUX.1 Redux reads, against diffusers' `FluxPriorReduxPipeline`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Pipeline
from smalti.benchmark.agreement import relative_error
from smalti.diffusion.random import NoiseSource
from smalti.diffusion.redux import patches_of
from smalti.models import ReduxConfig

pytestmark = pytest.mark.peers

STEPS, SIDE, ERROR_MAX = 3, 32, 1e-4
PROMPT = "a red apple on a table"


def picture(width: int, height: int, turn: int = 0) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    colours = np.stack([255 * x // width, 255 * y // height, (x + y) * 3 % 256], axis=-1)
    return Image.fromarray(np.roll(colours, turn, axis=2).astype(np.uint8))


def processor(side: int) -> Any:
    """As that of the published folder, but for the size."""
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return SiglipImageProcessorPil(size={"height": side, "width": side}, resample=3,
                                   image_mean=[0.5] * 3, image_std=[0.5] * 3)


def prior(config: ReduxConfig, **more: Any) -> Any:
    """diffusers' pipeline with seeded weights."""
    import diffusers
    import torch
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
    from transformers import SiglipVisionConfig, SiglipVisionModel

    torch.manual_seed(1)
    tower = SiglipVisionModel(SiglipVisionConfig(
        hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers, num_attention_heads=config.heads,
        image_size=config.side, patch_size=config.patch, layer_norm_eps=config.eps)).eval()
    for name, tensor in tower.named_parameters():
        torch.nn.init.normal_(tensor.data, float("norm" in name and "weight" in name), 0.1)
    layers = ReduxImageEncoder(redux_dim=config.hidden_size, txt_in_features=config.out_size)
    return diffusers.FluxPriorReduxPipeline(
        image_encoder=tower, feature_extractor=processor(config.side),
        image_embedder=layers.eval(), **more)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """The two pipelines of diffusers, and folders of them."""
    pipe = theirs.pipeline("flux")
    pipe.set_progress_bar_config(disable=True)
    reader = prior(replace(tiny.REDUX, middle_size=3 * 128), text_encoder=pipe.text_encoder,
                   tokenizer=pipe.tokenizer, text_encoder_2=pipe.text_encoder_2,
                   tokenizer_2=pipe.tokenizer_2)
    root = tmp_path_factory.mktemp("both")
    theirs.save(pipe, root / "model")
    reader.image_encoder.save_pretrained(root / "redux" / "image_encoder")
    reader.image_embedder.save_pretrained(root / "redux" / "image_embedder")
    return pipe, reader, root


def as_files(root: Path) -> list[Path]:
    """The two networks in files of their own, with the names that the published ones have."""
    from safetensors.numpy import load_file

    tower = load_file(root / "redux" / "image_encoder" / "model.safetensors")
    layers = load_file(root / "redux" / "image_embedder" / "diffusion_pytorch_model.safetensors")
    start = "" if any(name.startswith("vision_model.") for name in tower) else "vision_model."
    return [tiny.write(root / "redux.safetensors", layers), tiny.write(
        root / "tower.safetensors", {start + name: value for name, value in tower.items()})]


CASES: dict[str, tuple[list[tuple[int, int]], dict[str, Any], dict[str, Any]]] = {
    # sizes of pictures, what diffusers is told, what we are
    "a picture": ([(60, 40)], {}, {}),
    "a picture of the size": ([(42, 42)], {}, {}),
    "weaker": ([(40, 90)], {"prompt_embeds_scale": 0.7, "pooled_prompt_embeds_scale": 0.5},
               {"redux_strength": (0.7,), "redux_pooled": 0.5, "redux_sum": True}),
    "two": ([(60, 40), (30, 50)], {}, {"redux_sum": True}),
    "three of strengths": (
        [(60, 40), (30, 50), (64, 64)], {"prompt_embeds_scale": [0.5, 0.2, 0.4]},
        {"redux_strength": (0.5, 0.2, 0.4), "redux_sum": True})}


@pytest.mark.parametrize("case", CASES)
def test_a_picture_is_that_of_diffusers(both: tuple[Any, Any, Path], case: str) -> None:
    import torch

    pipe, reader, root = both
    sizes, told, options = CASES[case]
    pictures = [picture(*size, turn) for turn, size in enumerate(sizes)]
    given = pictures if len(pictures) > 1 else pictures[0]
    networks = as_files(root) if case == "two" else [root / "redux"]
    ours = Pipeline.load(root / "model", threads=1, text_encoders=networks)
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    with torch.no_grad():
        prompts = [PROMPT] * len(pictures) if len(pictures) > 1 else PROMPT
        embedded = reader(given, prompt=prompts, **told)
        found = pipe(prompt_embeds=embedded.prompt_embeds, num_inference_steps=STEPS,
                     pooled_prompt_embeds=embedded.pooled_prompt_embeds, guidance_scale=3.5,
                     height=SIDE, width=SIDE, latents=pipe._pack_latents(
                         torch.from_numpy(latents), *latents.shape), output_type="latent").images
    expected = pipe._unpack_latents(found, SIDE, SIDE, pipe.vae_scale_factor).numpy()
    *_, last = ours.steps(PROMPT, redux=given, width=SIDE, height=SIDE, steps=STEPS, seed=7,
                          sampler="euler", **options)
    assert relative_error(last.latents, expected) <= ERROR_MAX
    image = np.asarray(last.result.images[0], np.float64)
    near = np.abs(image - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and image.std() > 1


def test_pictures_side_by_side_are_as_if_appended_there(both: tuple[Any, Any, Path]) -> None:
    """As ComfyUI joins them, which has no part in diffusers: the tokens, times the strength."""
    import torch

    pipe, reader, root = both
    pictures = [picture(60, 40), picture(30, 50, 1)]
    ours = Pipeline.load(root / "model", threads=1, text_encoders=as_files(root))
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    with torch.no_grad():
        context, pooled, _ = reader.encode_prompt(PROMPT, max_sequence_length=512)
        tokens = reader.image_embedder(reader.encode_image(pictures, "cpu", 1)).image_embeds
        whole = torch.cat([context, 0.8 * tokens[:1], 0.3 * tokens[1:]], dim=1)
        found = pipe(prompt_embeds=whole, pooled_prompt_embeds=pooled, num_inference_steps=STEPS,
                     guidance_scale=3.5, height=SIDE, width=SIDE, latents=pipe._pack_latents(
                         torch.from_numpy(latents), *latents.shape), output_type="latent").images
    expected = pipe._unpack_latents(found, SIDE, SIDE, pipe.vae_scale_factor).numpy()
    *_, last = ours.steps(PROMPT, redux=pictures, redux_strength=(0.8, 0.3), width=SIDE,
                          height=SIDE, steps=STEPS, seed=7, sampler="euler")
    assert relative_error(last.latents, expected) <= ERROR_MAX


@pytest.mark.parametrize("strengths", [(0.4,), (2.5,), (0.3, 2.0), (1.0, 0.5, 0.0)])
def test_biases_are_as_comfyui_adds_them(both: tuple[Any, Any, Path],
                                         strengths: tuple[float, ...]) -> None:
    """Its mask grows by each picture: what is there sees the tokens of that with its bias, they see
    all as it is; diffusers' transformer computes it."""
    import torch

    pipe, reader, root = both
    pictures = [picture(60, 40, turn) for turn in range(len(strengths))]
    ours = Pipeline.load(root / "model", threads=1, text_encoders=as_files(root))
    latents = NoiseSource("cpu", (7,), (16, SIDE // 2, SIDE // 2)).draw()
    with torch.no_grad():
        context, pooled, _ = reader.encode_prompt(PROMPT, max_sequence_length=512)
        tokens = reader.image_embedder(reader.encode_image(pictures, "cpu", 1)).image_embeds
        text = context.shape[1]
        mask = torch.zeros(text + (SIDE // 4) ** 2, text + (SIDE // 4) ** 2)
        for strength, more in zip(strengths, tokens, strict=True):
            wider = torch.zeros(len(mask) + len(more), len(mask) + len(more))
            kept = [*range(text), *range(text + len(more), len(wider))]
            wider[np.ix_(kept, kept)] = mask
            wider[kept, text:text + len(more)] = torch.log(torch.tensor(strength))
            mask, text = wider, text + len(more)
        found = pipe(prompt_embeds=torch.cat([context, tokens.flatten(0, 1)[None]], dim=1),
                     pooled_prompt_embeds=pooled, num_inference_steps=STEPS, guidance_scale=3.5,
                     joint_attention_kwargs={"attention_mask": mask[None, None]},
                     height=SIDE, width=SIDE, latents=pipe._pack_latents(
                         torch.from_numpy(latents), *latents.shape), output_type="latent").images
    expected = pipe._unpack_latents(found, SIDE, SIDE, pipe.vae_scale_factor).numpy()
    *_, last = ours.steps(PROMPT, redux=pictures, redux_strength=strengths, redux_bias=True,
                          width=SIDE, height=SIDE, steps=STEPS, seed=7, sampler="euler")
    assert relative_error(last.latents, expected) <= ERROR_MAX
    made = np.asarray(last.result.images[0], np.float64)
    near = np.abs(made - theirs.decoded(pipe, expected)) <= 1
    assert near.mean() >= 0.999 and made.std() > 1


@pytest.mark.parametrize("size", [(42, 42), (500, 300), (20, 90)])
def test_patches_are_those_of_the_published_processor(size: tuple[int, int]) -> None:
    from smalti.models import REDUX

    pixels = processor(384)(picture(*size), return_tensors="np")["pixel_values"][0]
    patches = pixels[:, :378, :378].reshape(3, 27, 14, 27, 14).transpose(1, 3, 0, 2, 4)
    np.testing.assert_allclose(patches_of(picture(*size), REDUX), patches.reshape(729, 588),
                               atol=1e-6)


def test_the_part_is_that_of_transformers_and_diffusers(both: tuple[Any, Any, Path]) -> None:
    import torch

    _, reader, root = both
    ours = Pipeline.load(root / "model", threads=1, text_encoders=[root / "redux"])
    config = ours.config.texts["redux"]
    assert isinstance(config, ReduxConfig) and config.side == 42
    one = picture(50, 70)
    with torch.no_grad():
        expected = reader.image_embedder(reader.encode_image(one, "cpu", 1)).image_embeds.numpy()
    program = ours.program("text_3")
    found = program.run({"patches": patches_of(one, config)[None]})["context"]
    assert relative_error(found, expected) <= ERROR_MAX
