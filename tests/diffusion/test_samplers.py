"""Samplers against exact solutions, against diffusers' schedulers, and against themselves."""

import math

import numpy as np
import pytest

from smalti.diffusion.denoiser import Denoiser
from smalti.diffusion.guidance import Guidance
from smalti.diffusion.noise import NoiseLevels, find_schedule
from smalti.diffusion.random import NoiseSource
from smalti.diffusion.samplers import SAMPLERS, find_sampler, initial_latents
from smalti.errors import InputError

LEVELS = NoiseLevels.scaled_linear()
SHAPE = (2, 4, 8, 8)
DATA_STD = 0.7


def gaussian(x, sigma):
    """The exact denoiser of data that is normal with standard deviation DATA_STD."""
    return x * (DATA_STD**2 / (DATA_STD**2 + sigma**2))


def no_noise():
    raise AssertionError("a deterministic sampler drew noise")


def start(seed=0):
    source = NoiseSource("cpu", (seed, seed + 1), SHAPE[1:])
    return source.draw(), source.draw


def walk(name, denoise, steps, schedule="karras", seed=0):
    first, draw = start(seed)
    sigmas = find_schedule(schedule).sigmas(LEVELS, steps)
    sampler = find_sampler(name)
    noise = draw if sampler.random else no_noise
    return list(sampler(denoise, initial_latents(first, sigmas), sigmas, noise, LEVELS))


@pytest.mark.parametrize(("name", "order"), [("euler", 1), ("dpm++_2m", 2)])
def test_order_of_convergence(name, order):
    """dx/dsigma = (x - D)/sigma has the solution x ~ sqrt(DATA_STD^2 + sigma^2) here."""
    sigmas_of = find_schedule("karras")
    errors = []
    for steps in (40, 80):
        sigmas = sigmas_of.sigmas(LEVELS, steps)
        first, _ = start()
        x = initial_latents(first, sigmas)
        ends = list(find_sampler(name)(gaussian, x, sigmas, no_noise, LEVELS))
        before_last = ends[-2]
        scale = math.hypot(DATA_STD, before_last.sigma_next) / math.hypot(DATA_STD, sigmas[0])
        errors.append(np.abs(before_last.x - x * scale).max())
    assert errors[0] / errors[1] > 0.8 * 2**order


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_denoiser_that_knows_the_answer_gives_it(name):
    answer = np.linspace(-1, 1, math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    last = walk(name, lambda x, sigma: answer, 6)[-1]
    np.testing.assert_allclose(last.x, answer, atol=1e-6)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("schedule", ["normal", "karras"])
def test_steps_say_what_happened(name, schedule):
    steps = walk(name, gaussian, 5, schedule)
    sigmas = find_schedule(schedule).sigmas(LEVELS, 5)
    assert [step.index for step in steps] == list(range(5))
    assert [step.sigma for step in steps] == list(sigmas[:-1])
    assert [step.sigma_next for step in steps] == list(sigmas[1:])
    for step in steps:
        assert step.x.dtype == step.denoised.dtype == np.float32 and step.x.shape == SHAPE
    np.testing.assert_allclose(steps[-1].x, steps[-1].denoised, atol=1e-6)


@pytest.mark.parametrize("name", SAMPLERS)
def test_one_step_is_the_estimate(name):
    (step,) = walk(name, gaussian, 1)
    np.testing.assert_allclose(step.x, step.denoised, atol=1e-5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_bytes(name):
    runs = [walk(name, gaussian, 8, seed=seed)[-1].x.tobytes() for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("name", SAMPLERS)
def test_start_is_left_as_it_is(name):
    first, draw = start()
    sigmas = find_schedule("karras").sigmas(LEVELS, 3)
    x = initial_latents(first, sigmas)
    kept = x.copy()
    list(find_sampler(name)(gaussian, x, sigmas, draw, LEVELS))
    np.testing.assert_array_equal(x, kept)


def test_samplers_can_be_stopped():
    calls = []
    first, draw = start()
    sigmas = find_schedule("karras").sigmas(LEVELS, 10)
    steps = find_sampler("euler_a")(
        lambda x, sigma: calls.append(sigma) or gaussian(x, sigma), first, sigmas, draw, LEVELS
    )
    next(steps)
    steps.close()
    assert len(calls) == 1


def test_ancestral_steps_keep_the_variance():
    """With the exact denoiser of normal data, the end is normal with its standard deviation."""
    source = NoiseSource("cuda", (0,), (4, 64, 64))
    sigmas = find_schedule("karras").sigmas(LEVELS, 200)
    x = initial_latents(source.draw(), sigmas)
    *_, last = find_sampler("euler_a")(gaussian, x, sigmas, source.draw, LEVELS)
    assert abs(float(last.x.std()) - DATA_STD) < 0.02


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Euler", "euler"),
        ("Euler a", "euler_a"),
        ("euler_ancestral", "euler_a"),
        ("sample_euler_ancestral", "euler_a"),
        ("DPM++ 2M", "dpm++_2m"),
        ("dpmpp_2m", "dpm++_2m"),
        ("dpm++2m", "dpm++_2m"),
    ],
)
def test_spellings(spelling, name):
    assert find_sampler(spelling).name == name
    assert find_sampler(find_sampler(spelling).label).name == name


def test_unknown_name_lists_known_ones():
    with pytest.raises(InputError, match=r"'heun'; known: euler, euler_a, dpm\+\+_2m"):
        find_sampler("heun")


def peer_scheduler(name, prediction):
    import diffusers

    settings = {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "prediction_type": prediction,
    }
    if name == "euler_a":
        return diffusers.EulerAncestralDiscreteScheduler(**settings)
    settings["use_karras_sigmas"] = True
    if name == "euler":
        return diffusers.EulerDiscreteScheduler(**settings)
    # "zero" ends at sigma 0, and then the last step has to be of first order, as in k-diffusion
    return diffusers.DPMSolverMultistepScheduler(
        **settings, final_sigmas_type="zero", lower_order_final=True, euler_at_final=True
    )


@pytest.mark.peers
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_agrees_with_diffusers(name, prediction, monkeypatch):
    import torch

    peer = peer_scheduler(name, prediction)
    peer.set_timesteps(12)
    network = lambda latents: np.tanh(latents) * np.float32(0.8)  # noqa: E731
    sigmas = peer.sigmas.numpy().astype(np.float64)
    first, _ = start()
    fresh = [start(seed)[0] for seed in range(10, 30)]
    denoiser = Denoiser(lambda latents, times, conditioning: network(latents), LEVELS, prediction)
    denoise = Guidance(denoiser, {}, {}, 1.0)
    ours = list(find_sampler(name)(
        denoise, initial_latents(first, sigmas), sigmas, iter(fresh).__next__, LEVELS))

    drawn = iter(fresh)
    module = "diffusers.schedulers.scheduling_euler_ancestral_discrete.randn_tensor"
    monkeypatch.setattr(module, lambda *args, **kinds: torch.from_numpy(next(drawn)))
    variance_preserving = name == "dpm++_2m"
    scale = 1 / math.hypot(1, sigmas[0]) if variance_preserving else 1.0
    x = torch.from_numpy(initial_latents(first, sigmas)) * scale
    for index, timestep in enumerate(peer.timesteps):
        output = torch.from_numpy(network(peer.scale_model_input(x, timestep).numpy()))
        x = peer.step(output, timestep, x).prev_sample
        after = math.hypot(1, sigmas[index + 1]) if variance_preserving else 1.0
        np.testing.assert_allclose(x.numpy() * after, ours[index].x, atol=2e-4, rtol=2e-4)
