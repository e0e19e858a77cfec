"""A second pass at a larger size, and pictures a little different from another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny
from PIL import Image

from smalti import Pipeline
from smalti.diffusion.hires import Hires, enlarged
from smalti.diffusion.img2img import Img2Img
from smalti.diffusion.random import NoiseSource
from smalti.diffusion.variation import spherical
from smalti.errors import InputError
from smalti.graph import Graph, evaluate
from smalti.nn import from_tokens, patches

OPTIONS = {"steps": 4, "sampler": "euler"}


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


def test_a_second_pass_goes_on_from_enlarged_latents(pipe: Pipeline) -> None:
    steps = list(pipe.steps("a red apple", hires=1.5, hires_strength=0.5, **OPTIONS))
    assert [(step.index, step.total) for step in steps] == [(n, 6) for n in range(6)]
    first, last = steps[3], steps[5]
    assert first.latents.shape[2:] == (8, 8) and last.latents.shape[2:] == (12, 12)
    assert [step.result is None for step in steps] == [True] * 5 + [False]
    (image,) = last.result.images
    assert image.size == (24, 24)
    (plain,) = pipe("a red apple", **OPTIONS).images
    alone = list(pipe.steps("a red apple", **OPTIONS))[-1]
    np.testing.assert_array_equal(alone.latents, first.latents)
    assert plain.size == (16, 16)
    text = last.result.texts[0]
    assert "Size: 16x16" in text
    assert ("Denoising strength: 0.5, Hires upscale: 1.5, Hires steps: 2, Hires upscaler: Latent,"
            in text)


def test_the_weaker_the_second_pass_the_nearer_to_the_first(pipe: Pipeline) -> None:
    levels = {"noise": "14.6,3,0.001,0"}
    steps = list(pipe.steps("a red apple", hires=2, hires_strength=0.4, sampler="euler", **levels))
    assert len(steps) == 4  # int(3 * 0.4) of the levels
    np.testing.assert_allclose(steps[3].latents, enlarged(steps[2].latents, 16, 16), atol=0.02)


def test_steps_of_the_second_pass_are_those_asked_for(pipe: Pipeline) -> None:
    for strength, count in ((0.3, 3), (0.7, 5), (1.0, 2)):
        steps = list(pipe.steps("a red apple", hires=2, hires_strength=strength,
                                hires_steps=count, **OPTIONS))
        assert len(steps) == 4 + count


def test_levels_of_another_number_of_steps_are_those_of_the_first_pass(pipe: Pipeline) -> None:
    """Those of models that were distilled are for their own number."""
    levels = {"noise": "14.6,3,1,0.5,0", "sampler": "euler", "hires": 2, "hires_strength": 0.5}
    for asked, count in ((None, 2), (2, 2), (3, 3)):
        steps = list(pipe.steps("a red apple", hires_steps=asked, **levels))
        assert len(steps) == 4 + count
        assert (steps[-count].sigma == pytest.approx(0.5)) == (count == 2)


def test_every_number_of_steps_can_be_had() -> None:
    wrong = [(steps, strength) for steps in range(1, 61) for strength in np.arange(1, 101) / 100
             if Img2Img(strength).steps(Hires(2, 1, 1, strength, steps).schedule_steps) != steps]
    assert not wrong


def test_a_network_may_enlarge_the_picture(pipe: Pipeline) -> None:
    class Doubling:
        """Stands for an upscaler."""

        name = "doubling"

        def __call__(self, image: Image.Image) -> Image.Image:
            return image.resize((2 * image.width, 2 * image.height), Image.Resampling.NEAREST)

        def end(self) -> None:
            ended.append(self.name)

    ended: list[str] = []
    pipe._upscaler = lambda given: given
    try:
        options = {"hires": 2, "hires_strength": 0.25, **OPTIONS}
        result = pipe("a red apple", hires_upscaler=Doubling(), **options)
    finally:
        del pipe._upscaler
    assert result.images[0].size == (32, 32)
    assert ended == ["doubling"]
    assert "Hires upscaler: doubling" in result.texts[0] and "upscale" in result.timings
    assert result.images[0].tobytes() != pipe("a red apple", **options).images[0].tobytes()


def test_latents_are_enlarged_as_a_plane_is() -> None:
    y, x = np.mgrid[:6, :8].astype(np.float32)
    found = enlarged((2 * x + 3 * y)[None], 12, 24)
    assert found.dtype == np.float32
    places = (np.arange(24) + 0.5) / 3 - 0.5
    np.testing.assert_allclose(found[0, 5, 3:-3], (2 * places + 3 * 2.25)[3:-3], rtol=1e-6)


def test_latents_of_squares_are_enlarged_as_the_pixels_of_these() -> None:
    """As FLUX.2 has them: channel c of a square of 2 x 2 pixels is at 4 c to 4 c + 3."""
    whole = np.random.default_rng(0).standard_normal((2, 3, 8, 12), np.float32)
    graph = Graph()
    for name, shape in {"small": (2, 3, 8, 12), "large": (2, 3, 12, 24)}.items():
        _, _, height, width = shape
        graph.output(name, from_tokens(patches(graph.input(f"{name} pixels", shape), 2),
                                       height // 2, width // 2))
    wanted = evaluate(graph, {"small pixels": whole, "large pixels": enlarged(whole, 12, 24)}, {})
    np.testing.assert_array_equal(enlarged(wanted["small"], 6, 12, patch=2), wanted["large"])


@pytest.mark.parametrize(("options", "message"), [
    ({"hires": 1}, "hires is 1; expected a number above 1, up to 8"),
    ({"hires": "2"}, "hires is '2'; expected a number"),
    ({"hires": 2, "hires_strength": 0}, "hires_strength is 0; expected a number above 0, up to 1"),
    ({"hires": 2, "hires_steps": 0}, "hires_steps is 0; expected a whole number from 1 to 700"),
    ({"hires_steps": 5}, "hires_steps is given, but no hires"),
    ({"hires": 2, "hires_upscaler": "no-such.pth"}, "no-such.pth"),
    ({"hires": 2, "image": Image.new("RGB", (16, 16))}, "hires is for pictures that are made from"),
    ({"hires": 8, "width": 2048, "height": 2048},
     "which makes 16384x16384 of 2048x2048; .* expected hires of at most 2,"),
    ({"variation_strength": 1.5}, "variation_strength is 1.5; expected a number from 0 to 1"),
    ({"variation_seed": 5}, "variation_seed is given, but variation_strength is 0"),
    ({"variation_seed": "x", "variation_strength": 0.5}, "variation_seed is 'x'; expected a whole"),
])
def test_what_cannot_be_is_said(pipe: Pipeline, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipe.steps("a red apple", **options)


# ---------------------------------------------------------------------- variations

def test_variations_lie_between_two_seeds(pipe: Pipeline) -> None:
    def pixels(**options: Any) -> np.ndarray:
        return np.asarray(pipe("a red apple", **OPTIONS, **options).images[0], float)

    start, end = pixels(seed=7), pixels(seed=9)
    near = pixels(seed=7, variation_seed=9, variation_strength=0.05)
    assert 0 < np.abs(near - start).mean() < np.abs(near - end).mean()
    np.testing.assert_allclose(pixels(seed=7, variation_seed=9, variation_strength=1), end, atol=1)


def test_a_batch_of_variations_is_of_one_seed(pipe: Pipeline) -> None:
    result = pipe("a red apple", seed=7, variation_seed=20, variation_strength=0.3, batch_size=2,
                  **OPTIONS)
    assert result.seeds == (7, 7)
    assert "Seed: 7," in result.texts[1] and "Variation seed: 21, Variation seed strength: 0.3" in (
        result.texts[1])
    alone = pipe("a red apple", seed=7, variation_seed=21, variation_strength=0.3, **OPTIONS)
    assert result.images[1].tobytes() == alone.images[0].tobytes()
    assert result.images[0].tobytes() != alone.images[0].tobytes()


def test_noise_between_two_noises_is_noise() -> None:
    start, end = (NoiseSource("cpu", (seed,), (4, 64, 64)).draw() for seed in (1, 2))
    for share in (0.1, 0.5, 0.9):
        mixed = spherical(start, end, share)
        assert mixed.dtype == np.float32
        assert abs(mixed.std() - 1) < 0.02 and abs(mixed.mean()) < 0.02
    np.testing.assert_array_equal(spherical(start, start, 0.5), start)


def test_a_second_pass_beyond_the_positions_is_refused_before_anything_runs(
        family_files: tiny.Files) -> None:
    config = tiny.FAMILIES["sd3"]
    most = config.vae.downscale * config.denoiser.side_max
    pipe = Pipeline.load(family_files["sd3"], threads=1)
    half = {"width": most // 2, "height": most // 2, "steps": 1}
    with pytest.raises(InputError, match=f"{2 * most}x{2 * most} of .* at most {most} pixels a "
                                         f"side; expected hires of at most 2, or make the first"):
        pipe.steps("a red apple", hires=4, **half)
    with pytest.raises(InputError, match=f"height is .*; expected a whole number .* to {most} pix"):
        pipe.steps("a red apple", width=most, height=most + 16)
    pipe.steps("a red apple", hires=2, **half)
    assert not list(pipe._submodels.residents)


def test_a_refiner_with_fewer_positions_refuses_larger_pictures(tmp_path: Path) -> None:
    config = tiny.FAMILIES["sd3"]
    small = replace(config, denoiser=replace(config.denoiser, positions=8))
    paths = [tiny.write_whole(tmp_path / f"{name}.safetensors", each)
             for name, each in (("base", config), ("small", small))]
    most = config.vae.downscale * small.denoiser.side_max
    pipe = Pipeline.load(paths[0], refiner=paths[1], threads=1)
    with pytest.raises(InputError, match=f"the refiner makes pictures of at most {most} pixels"):
        pipe.steps("", width=2 * most, height=most)
    with pytest.raises(InputError, match="the refiner makes .* leave hires out, or"):
        pipe.steps("", width=most, height=most, hires=1.5)
