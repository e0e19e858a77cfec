"""Guidance and denoiser: formulas, batches, shapes, and NaN as an error."""

import numpy as np
import pytest

from smalti.diffusion.denoiser import Denoiser
from smalti.diffusion.guidance import Guidance
from smalti.diffusion.noise import NoiseLevels
from smalti.errors import InputError, NumericsError

LEVELS = NoiseLevels.scaled_linear()
RNG = np.random.default_rng(0)
COND = RNG.standard_normal((1, 77, 16), dtype=np.float32)
UNCOND = RNG.standard_normal((1, 77, 16), dtype=np.float32)
X = RNG.standard_normal((3, 4, 8, 8), dtype=np.float32)


class Recorder:
    """A network that remembers what it was given, and depends on all of it."""

    def __init__(self):
        self.calls = []

    def __call__(self, latents, timesteps, context):
        self.calls.append((latents, timesteps, context))
        assert latents.dtype == timesteps.dtype == context.dtype == np.float32
        weight = context.mean(axis=(1, 2)) + timesteps / 1000
        return latents * weight[:, None, None, None]


def test_one_batch_of_two():
    unet = Recorder()
    output = Guidance(unet, COND, UNCOND, 7.5)(X, 500.25)
    ((latents, timesteps, context),) = unet.calls
    assert latents.shape == (6, 4, 8, 8) and context.shape == (6, 77, 16)
    np.testing.assert_array_equal(timesteps, np.full(6, 500.25, np.float32))
    cond = X * (COND.mean() + np.float32(0.50025))
    uncond = X * (UNCOND.mean() + np.float32(0.50025))
    np.testing.assert_allclose(output, uncond + 7.5 * (cond - uncond), atol=1e-5)
    assert output.dtype == np.float32 and output.shape == X.shape


def test_scale_one_evaluates_the_prompt_only():
    unet = Recorder()
    guided = Guidance(unet, COND, UNCOND, 1.0)
    alone = guided(X, 10)
    assert guided.batch_factor == 1 and Guidance(unet, COND, UNCOND, 2).batch_factor == 2
    assert unet.calls[0][0].shape == X.shape
    near = Guidance(unet, COND, UNCOND, 1.0 + 1e-6)(X, 10)
    np.testing.assert_allclose(alone, near, atol=1e-4)


def test_scale_zero_is_the_negative_prompt():
    output = Guidance(Recorder(), COND, UNCOND, 0.0)(X, 0)
    np.testing.assert_allclose(output, X * UNCOND.mean(), atol=1e-6)


def test_equal_prompts_make_the_scale_irrelevant():
    outputs = [Guidance(Recorder(), COND, COND, scale)(X, 0) for scale in (1.0, 3.0, 9.0)]
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)
    np.testing.assert_allclose(outputs[0], outputs[2], atol=1e-5)


def test_one_prompt_per_image():
    conds = np.concatenate([COND, UNCOND, COND])
    output = Guidance(Recorder(), conds, UNCOND, 1.0)(X, 0)
    np.testing.assert_allclose(output[1], X[1] * UNCOND.mean(), atol=1e-6)
    with pytest.raises(InputError, match="2 prompt embeddings for 3 images"):
        Guidance(Recorder(), conds[:2], UNCOND, 1.0)(X, 0)


@pytest.mark.parametrize("shape", [(1, 154, 16), (1, 77, 8), (77, 16)])
def test_embeddings_must_fit_together(shape):
    with pytest.raises(InputError, match="prompt embeddings"):
        Guidance(Recorder(), np.zeros(shape, np.float32), UNCOND, 2.0)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("sigma", [0.03, 1.0, 14.6])
def test_a_perfect_network_finds_the_clean_latents(prediction, sigma):
    clean, noise = X, RNG.standard_normal(X.shape, dtype=np.float32)
    scale = np.hypot(1, sigma)
    # Salimans & Ho 2022: v = alpha * noise - sigma * clean at alpha = 1/s, sigma = sigma/s
    velocity = (noise - sigma * clean) / scale
    target = noise if prediction == "epsilon" else velocity.astype(np.float32)
    seen = []

    def network(latents, timestep):
        seen.append((latents, timestep))
        return target

    denoised = Denoiser(network, LEVELS, prediction)(clean + np.float32(sigma) * noise, sigma)
    np.testing.assert_allclose(denoised, clean, atol=2e-5)
    assert denoised.dtype == np.float32
    latents, timestep = seen[0]
    np.testing.assert_allclose(latents, (clean + sigma * noise) / scale, atol=1e-5)
    assert timestep == pytest.approx(float(LEVELS.timestep(sigma)))


def test_numpy_sigma_leaves_float32():
    denoise = Denoiser(lambda latents, timestep: latents, LEVELS, "v_prediction")
    assert denoise(X, np.float64(2.0)).dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_errors(bad):
    output = np.zeros_like(X)
    output[0, 1, 2, 3] = bad
    with pytest.raises(NumericsError, match="in 1 of 768 values at noise level 2"):
        Denoiser(lambda latents, timestep: output, LEVELS, "epsilon")(X, 2.0)


def test_unknown_prediction():
    with pytest.raises(InputError, match="known: epsilon, v_prediction"):
        Denoiser(lambda latents, timestep: latents, LEVELS, "flow")
