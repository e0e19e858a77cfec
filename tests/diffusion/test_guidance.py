"""Guidance and denoiser: formulas, batches, shapes, and NaN as an error."""

import math

import numpy as np
import pytest

from smalti.diffusion.denoiser import PREDICTIONS, Denoiser
from smalti.diffusion.guidance import (
    KEEP,
    Guidance,
    Guide,
    ImageGuidance,
    Projected,
    SkipLayers,
)
from smalti.diffusion.noise import FlowLevels, NoiseLevels
from smalti.diffusion.option_text import written
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.request import request
from smalti.errors import InputError, NumericsError
from smalti.models.config import SD15

LEVELS = NoiseLevels.scaled_linear()
FLOW = FlowLevels.shifted(3.0)
RNG = np.random.default_rng(0)
COND = RNG.standard_normal((1, 77, 16), dtype=np.float32)
UNCOND = RNG.standard_normal((1, 77, 16), dtype=np.float32)
X = RNG.standard_normal((3, 4, 8, 8), dtype=np.float32)
SIGMA = 2.0


class Recorder:
    """A network that remembers what it was given, and depends on all of it."""

    def __init__(self, gain=1.0):
        self.calls = []
        self.gain = gain

    def __call__(self, latents, timesteps, conditioning):
        self.calls.append((latents, timesteps, conditioning))
        assert latents.dtype == timesteps.dtype == np.float32
        weight = np.full(len(latents), self.gain, np.float32)
        for part in conditioning.values():
            assert part.dtype == np.float32 and len(part) == len(latents)
            weight = weight + part.reshape(len(part), -1).mean(axis=1)
        return latents * weight[:, None, None, None] + np.sin(3 * latents)


def network_output(x, context, gain=1.0):
    """What `Recorder` gives for one context at SIGMA, in float64."""
    scaled = x.astype(np.float64) / math.hypot(SIGMA, 1)
    return scaled * (gain + context.mean()) + np.sin(3 * scaled)


def guidance(network, scale, positive=COND, negative=UNCOND, **options):
    denoiser = Denoiser(network, LEVELS, "epsilon")
    return Guidance(denoiser, {"context": positive}, {"context": negative}, scale, **options)


POSITIVE, NEGATIVE = network_output(X, COND), network_output(X, UNCOND)


def check(denoised, output):
    np.testing.assert_allclose(denoised, X - SIGMA * output, atol=1e-4)
    assert denoised.dtype == np.float32 and denoised.shape == X.shape


def test_tokens_keep_their_norms():
    """Of each square of 2 x 2 pixels with all channels, as diffusers does for Qwen-Image."""
    guided = NEGATIVE + 7.5 * (POSITIVE - NEGATIVE)
    for row in range(0, 8, 2):
        for column in range(0, 8, 2):
            place = (slice(None), slice(None), slice(row, row + 2), slice(column, column + 2))
            norms = [np.sqrt(np.square(each[place]).sum(axis=(1, 2, 3), keepdims=True))
                     for each in (POSITIVE, guided)]
            guided[place] *= norms[0] / norms[1]
    check(guidance(Recorder(), 7.5, normed=(0, 2, 2))(X, SIGMA), guided)
    nothing = np.zeros_like(X)
    assert not guidance(lambda x, *_: 0 * x, 7.5, normed=(0, 2, 2))(nothing, SIGMA).any()


def test_tokens_are_only_shrunk():
    """As diffusers does for LongCat-Image: norms that guidance makes smaller stay so."""
    def made(scale, **options):
        return guidance(Recorder(), scale, **options)(X, SIGMA)

    token = {"normed": (0, 2, 2)}
    for scale, smaller in ((7.5, True), (0.3, False)):
        plain, whole = made(scale), made(scale, **token)
        assert (plain != whole).any()
        np.testing.assert_array_equal(made(scale, **token, shrunk=True),
                                      plain if smaller else whole)


def test_rows_of_a_channel_keep_their_norms():
    """As diffusers does for Lumina-Image 2."""
    guided = NEGATIVE + 7.5 * (POSITIVE - NEGATIVE)
    guided *= np.sqrt(np.square(POSITIVE).sum(3, keepdims=True)
                      / np.square(guided).sum(3, keepdims=True))
    check(guidance(Recorder(), 7.5, normed=(1, 1, 0))(X, SIGMA), guided)


def test_one_batch_of_two():
    network = Recorder()
    denoised = guidance(network, 7.5)(X, SIGMA)
    ((latents, timesteps, conditioning),) = network.calls
    assert latents.shape == (6, 4, 8, 8) and conditioning["context"].shape == (6, 77, 16)
    np.testing.assert_array_equal(timesteps, np.full(6, LEVELS.timestep(SIGMA), np.float32))
    check(denoised, NEGATIVE + 7.5 * (POSITIVE - NEGATIVE))


def test_scale_one_evaluates_the_prompt_only():
    network = Recorder()
    alone = guidance(network, 1.0)
    check(alone(X, SIGMA), POSITIVE)
    assert len(alone.conditionings) == 1 and len(guidance(network, 2).conditionings) == 2
    assert network.calls[0][0].shape == X.shape
    estimates = guidance(network, 1.0, always_both=True).both(X, SIGMA)
    assert network.calls[1][0].shape == (6, 4, 8, 8)
    check(estimates[0], POSITIVE)
    check(estimates[1], NEGATIVE)


def test_scale_zero_is_the_negative_prompt():
    check(guidance(Recorder(), 0.0)(X, SIGMA), NEGATIVE)


def test_all_parts_of_a_conditioning_reach_the_network():
    network = Recorder()
    denoiser = Denoiser(network, LEVELS, "epsilon")
    vectors = [RNG.standard_normal((1, 5), dtype=np.float32) for _ in range(2)]
    rows = [{"context": COND, "vector": vectors[0]}, {"context": UNCOND, "vector": vectors[1]}]
    Guidance(denoiser, *rows, 2.0)(X, SIGMA)
    conditioning = network.calls[0][2]
    np.testing.assert_array_equal(conditioning["vector"], np.repeat(np.concatenate(vectors), 3, 0))
    with pytest.raises(InputError, match=r"\['context', 'vector'\] and \['context'\]"):
        Guidance(denoiser, rows[0], {"context": UNCOND}, 2.0)(X, SIGMA)


def test_one_prompt_per_image():
    conds = np.concatenate([COND, UNCOND, COND])
    denoised = guidance(Recorder(), 1.0, conds)(X, SIGMA)
    np.testing.assert_allclose(denoised[1], X[1] - SIGMA * NEGATIVE[1], atol=1e-5)
    with pytest.raises(InputError, match="2 rows of context for 3 images"):
        guidance(Recorder(), 1.0, conds[:2])(X, SIGMA)


@pytest.mark.parametrize("shape", [(1, 154, 16), (1, 77, 8), (77, 16)])
def test_conditionings_must_fit_together(shape):
    with pytest.raises(InputError, match="context of the prompts has shapes"):
        guidance(Recorder(), 2.0, np.zeros(shape, np.float32))


def test_several_prompts_add_up_with_their_weights():
    """Liu et al. 2022, "Compositional visual generation" (arXiv:2206.01714), equation 11."""
    third = RNG.standard_normal((1, 77, 16), dtype=np.float32)
    network = Recorder()
    both = [({"context": COND}, 0.7), ({"context": third}, -0.2)]
    denoise = Guidance(Denoiser(network, LEVELS, "epsilon"), both, {"context": UNCOND}, 3.0)
    difference = 0.7 * (POSITIVE - NEGATIVE) - 0.2 * (network_output(X, third) - NEGATIVE)
    check(denoise(X, SIGMA), NEGATIVE + 3 * difference)
    assert len(denoise.conditionings) == 3 and network.calls[0][0].shape == (9, 4, 8, 8)


def test_other_prompts_on_the_way():
    denoise = guidance(Recorder(), 2.0)
    denoise(X, SIGMA)
    denoise.condition({"context": UNCOND}, {"context": COND})
    check(denoise(X, SIGMA), POSITIVE + 2 * (NEGATIVE - POSITIVE))


def test_rescale_restores_the_deviation():
    guided = NEGATIVE + 9 * (POSITIVE - NEGATIVE)
    deviation = lambda values: values.std(axis=(1, 2, 3), keepdims=True)  # noqa: E731
    rescaled = guided * deviation(POSITIVE) / deviation(guided)
    check(guidance(Recorder(), 9, guide=Guide(rescale=1.0))(X, SIGMA), rescaled)
    mixed = 0.7 * rescaled + 0.3 * guided
    check(guidance(Recorder(), 9, guide=Guide(rescale=0.7))(X, SIGMA), mixed)


@pytest.mark.parametrize(("options", "message"), [
    ({"rescale": 0.7, "projected": Projected()}, "choose one"),
    ({"rescale": 1.1}, "guidance rescale is 1.1; expected 0 to 1"),
    ({"start": 0.5, "end": 0.5}, "from 0.5 to 0.5 of the way"),
    ({"end": 2}, "expected shares from 0 to 1"),
    ({"skip": SkipLayers(start=0.5)}, "skip-layer guidance counts from 0.5 to 0.2"),
])
def test_guides_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        Guide(**options)


def test_what_a_text_says_of_guidance():
    def labels(guide):
        asked = request(SD15, PictureOptions("", guide=guide), memory_bytes=2**34)
        return {key: value for key, value in written(asked).pairs.items()
                if key in ("APG", "CFG interval", "CFG rescale", "Skip layers", "SLG")}

    assert labels(Guide()) == {}
    assert labels(Guide(projected=Projected(0.0, 15, -0.5), start=0.1)) == {
        "APG": "0 15 -0.5", "CFG interval": "0.1-1"}
    assert labels(Guide(rescale=0.7, end=0.8)) == {"CFG rescale": "0.7", "CFG interval": "0-0.8"}


@pytest.mark.parametrize("rule", [Projected(), Projected(1.0, 0.0, 0.0), Projected(0.5, 2.0, 0.3)])
def test_projected_guidance(rule):
    """Sadat et al. 2024, algorithm 1, in float64, over three steps."""
    denoise = guidance(Recorder(), 6.0, guide=Guide(projected=rule))
    positive, negative = X - SIGMA * POSITIVE, X - SIGMA * NEGATIVE
    running = 0.0
    for _ in range(3):
        running = positive - negative + rule.momentum * running
        expected = []
        for wanted, change in zip(positive, running, strict=True):
            norm = np.linalg.norm(change)
            if rule.norm_max:
                change = change * min(1, rule.norm_max / norm)
            unit = wanted.ravel() / np.linalg.norm(wanted)
            along = (change.ravel() @ unit) * unit.reshape(wanted.shape)
            expected.append(wanted + 5.0 * (change - along + rule.along * along))
        np.testing.assert_allclose(denoise(X, SIGMA), expected, atol=2e-4)


@pytest.mark.parametrize(("time", "rows"), [(0.19, 3), (0.2, 6), (0.6, 6), (0.61, 3)])
def test_guidance_in_an_interval(time, rows):
    """Time as a share of training time from noise on: from 0.2 to 0.6 of the way."""
    network = Recorder()
    guidance(network, 4.0, guide=Guide(start=0.2, end=0.6))(X, LEVELS.after(time))
    assert len(network.calls[0][0]) == rows


def test_the_negative_prompt_is_there_outside_of_the_interval():
    late = Guide(start=0.9)
    estimates = guidance(Recorder(), 4.0, guide=late, always_both=True).both(X, SIGMA)
    check(estimates[0], POSITIVE)
    check(estimates[1], NEGATIVE)


class Layered(Recorder):
    """A network of three layers, each of which adds as much of itself as is kept."""

    def __call__(self, latents, timesteps, conditioning):
        parts = dict(conditioning)
        keep = parts.pop(KEEP, np.ones((len(latents), 3), np.float32))
        output = super().__call__(latents, timesteps, parts)
        self.calls[-1] = (latents, keep)
        return output + latents * (keep * np.float32([0.1, 0.2, 0.4])).sum(1)[:, None, None, None]


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_skip_layer_guidance(scale):
    """Away from what the network gives for the prompt without its layers 1 and 2."""
    network = Layered()
    guide = Guide(skip=SkipLayers((1, 2), 2.5, start=0.2, end=0.6))
    denoise = guidance(network, scale, guide=guide, layers=3)
    within, scaled = LEVELS.after(0.4), X / math.hypot(LEVELS.after(0.4), 1)
    plain = guidance(Layered(), scale)(X, within)
    np.testing.assert_allclose(denoise(X, within), plain - within * 2.5 * 0.6 * scaled, atol=1e-4)
    rows = 3 if scale == 5 else 2
    latents, keep = network.calls[0]
    assert len(latents) == 3 * rows and keep[0].tolist() == [1, 1, 1]
    assert keep[-1].tolist() == [1, 0, 0]
    for time in (0.1, 0.7):
        sigma = LEVELS.after(time)
        np.testing.assert_array_equal(denoise(X, sigma), guidance(Layered(), scale)(X, sigma))
        assert len(network.calls[-1][0]) == 3 * (rows - 1)


def test_image_guidance_has_three_rows():
    neither = RNG.standard_normal((1, 77, 16), dtype=np.float32)
    network = Recorder()
    denoise = guidance(network, 7.0, image=ImageGuidance({"context": neither}, 1.5))
    nothing = network_output(X, neither)
    check(denoise(X, SIGMA), nothing + 1.5 * (NEGATIVE - nothing) + 7 * (POSITIVE - NEGATIVE))
    assert len(denoise.conditionings) == 3 and len(network.calls[0][0]) == 9


# what each kind of network gives for clean latents and noise at a level, from its paper
TARGETS = {
    "epsilon": lambda clean, noise, sigma: noise,
    "v_prediction": lambda clean, noise, sigma: (noise - sigma * clean) / np.hypot(1, sigma),
    "sample": lambda clean, noise, sigma: clean,
    "edm": lambda clean, noise, sigma:
        (clean - 0.25 / (sigma**2 + 0.25) * (clean + sigma * noise))
        * np.sqrt(sigma**2 + 0.25) / (sigma * 0.5),
    "edm_v": lambda clean, noise, sigma: (noise - sigma * clean) / np.hypot(1, sigma),
    "flow": lambda clean, noise, sigma: noise - clean,
}
TIMES = {"edm": lambda sigma: np.log(sigma) / 4, "edm_v": lambda sigma: np.log(sigma) / 4,
         "flow": lambda sigma: 1000 * sigma}


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("sigma", [0.03, 0.9, 14.6])
def test_a_perfect_network_finds_the_clean_latents(prediction, sigma):
    levels = FLOW if prediction == "flow" else LEVELS
    sigma = min(sigma, levels.highest)
    clean, noise = X, RNG.standard_normal(X.shape, dtype=np.float32)
    seen = []

    def network(latents, times, conditioning):
        seen.append((latents, times))
        return TARGETS[prediction](clean, noise, sigma).astype(np.float32)

    x = levels.noised(clean, noise, sigma)
    denoiser = Denoiser(network, levels, prediction)
    denoised = Guidance(denoiser, {}, {}, 1.0)(x, np.float64(sigma))
    np.testing.assert_allclose(denoised, clean, atol=2e-5)
    assert denoised.dtype == np.float32
    (latents, times), = seen
    np.testing.assert_allclose(times, TIMES.get(prediction, levels.timestep)(sigma), rtol=1e-6)
    expected = x if prediction == "flow" else x / np.hypot(sigma, 0.5 if prediction == "edm" else 1)
    np.testing.assert_allclose(latents, expected, atol=1e-5)


def test_time_of_a_flow_network_that_multiplies_itself():
    assert Denoiser(Recorder(), FLOW, "flow", flow_time=1.0).time(0.25) == 0.25


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_errors(bad):
    output = np.zeros_like(X)
    output[0, 1, 2, 3] = bad
    with pytest.raises(NumericsError, match="in 1 of 768 values at noise level 2"):
        guidance(lambda latents, times, conditioning: output, 1.0)(X, 2.0)


def test_unknown_prediction():
    with pytest.raises(InputError, match="known: epsilon, v_prediction"):
        Denoiser(Recorder(), LEVELS, "score")
    with pytest.raises(InputError, match="'flow' with the noise of a diffusion model"):
        Denoiser(Recorder(), LEVELS, "flow")
    with pytest.raises(InputError, match="'epsilon' with the noise of a flow model"):
        Denoiser(Recorder(), FLOW, "epsilon")
