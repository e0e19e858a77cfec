"""Samplers against exact solutions, and against themselves; peers are in a file of their own."""

import math

import numpy as np
import pytest

from smalti.diffusion.noise import NOISES, FlowLevels, NoiseLevels
from smalti.diffusion.random import NoiseSource
from smalti.diffusion.samplers import SAMPLERS, find_sampler, initial_latents, split_label
from smalti.errors import InputError

LEVELS = {"diffusion": NoiseLevels.scaled_linear(), "flow": FlowLevels.shifted(3.0)}
SHAPE = (2, 4, 8, 8)
DATA_STD, DATA_MEAN = 0.7, 0.4
RANDOM = [name for name, sampler in SAMPLERS.items() if sampler.random]
kinds = pytest.mark.parametrize("kind", LEVELS)
samplers = pytest.mark.parametrize("name", SAMPLERS)


class Estimate:
    """A denoiser made of one function of x and sigma, with the same one for no prompt."""

    def __init__(self, function):
        self.function = function
        self.sigmas = []

    def __call__(self, x, sigma):
        self.sigmas.append(sigma)
        return self.function(x, sigma)

    def both(self, x, sigma):
        return self(x, sigma), self.function(x, sigma)


def gaussian(kind):
    """The exact denoiser of data that is normal with DATA_MEAN and DATA_STD."""
    alpha = LEVELS[kind].alpha

    def function(x, sigma):
        share = alpha(sigma) * DATA_STD**2 / (alpha(sigma) ** 2 * DATA_STD**2 + sigma**2)
        return np.float32(DATA_MEAN) + (x - np.float32(alpha(sigma) * DATA_MEAN)) * share

    return Estimate(function)


def no_noise():
    raise AssertionError("a deterministic sampler drew noise")


def start(seed=0):
    source = NoiseSource("cpu", (seed, seed + 1), SHAPE[1:])
    return source.draw(), source.draw


def walk(name, denoise, steps, schedule="karras", seed=0, kind="diffusion"):
    first, draw = start(seed)
    sampler = find_sampler(name)
    sigmas = sampler.sigmas(schedule, LEVELS[kind], steps)
    noise = draw if sampler.random else no_noise
    return list(sampler(denoise, initial_latents(first, sigmas), sigmas, noise, LEVELS[kind]))


# by how much the error falls when there are twice as many steps, as a power of 2; multistep methods
# start with Euler's step, whose error stays
ORDERS = {"euler": 1, "ddim": 1, "euler_cfg++": 1, "gradient_estimation": 1, "heun": 2, "dpm2": 2,
          "dpm++_2m": 2, "dpm++_2m_cfg++": 2, "res_multistep": 2, "lms": 2, "ipndm_v": 2,
          "deis": 2, "uni_pc": 3, "uni_pc_bh2": 3}


@pytest.mark.parametrize("name", ORDERS)
@kinds
def test_order_of_convergence(name, kind):
    """x - alpha mean is proportional to sqrt(alpha^2 DATA_STD^2 + sigma^2) along the exact way."""
    alpha = LEVELS[kind].alpha
    high, low = (10.0, 0.1) if kind == "diffusion" else (0.95, 0.1)
    deviation = [math.hypot(alpha(sigma) * DATA_STD, sigma) for sigma in (high, low)]
    first, _ = start()
    errors = []
    for steps in (40, 80):
        sigmas = np.append(np.geomspace(high, low, steps + 1), 0)
        x = first * np.float32(deviation[0]) + np.float32(alpha(high) * DATA_MEAN)
        *_, found, _ = SAMPLERS[name](gaussian(kind), x.astype(np.float64), sigmas, no_noise,
                                      LEVELS[kind])
        exact = first.astype(np.float64) * deviation[1] + alpha(low) * DATA_MEAN
        errors.append(np.abs(found.x - exact).max())
    assert errors[0] < 0.1 / 4 ** (ORDERS[name] - 1)
    assert errors[1] < max(errors[0] / (0.8 * 2 ** ORDERS[name]), 2e-5)


def test_every_deterministic_sampler_converges():
    assert {*ORDERS, "ipndm"} == set(SAMPLERS) - set(RANDOM)


@pytest.mark.sampled
@samplers
@kinds
def test_a_denoiser_that_knows_the_answer_gives_it(name, kind):
    answer = np.linspace(-1, 1, math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    last = walk(name, Estimate(lambda x, sigma: answer), 6, kind=kind)[-1]
    np.testing.assert_allclose(last.x, answer, atol=1e-5)


@pytest.mark.sampled
@samplers
@kinds
@pytest.mark.parametrize("schedule", ["normal", "karras"])
def test_steps_say_what_happened(name, kind, schedule):
    denoise = gaussian(kind)
    steps = walk(name, denoise, 5, schedule, kind=kind)
    sampler = SAMPLERS[name]
    sigmas = sampler.sigmas(schedule, LEVELS[kind], 5)
    assert [step.index for step in steps] == list(range(5))
    assert [step.sigma for step in steps] == list(sigmas[:-1])
    assert [step.sigma_next for step in steps] == list(sigmas[1:])
    assert len(denoise.sigmas) == 4 * sampler.evaluations + 1
    for step in steps:
        assert step.x.dtype == step.denoised.dtype == np.float32 and step.x.shape == SHAPE
    if name != "lms":
        np.testing.assert_allclose(steps[-1].x, steps[-1].denoised, atol=1e-5)


@pytest.mark.sampled
@samplers
@kinds
def test_one_step_is_the_estimate(name, kind):
    (step,) = walk(name, gaussian(kind), 1, kind=kind)
    np.testing.assert_allclose(step.x, step.denoised, atol=1e-5)


@samplers
def test_same_seed_same_bytes(name):
    runs = [walk(name, gaussian("diffusion"), 8, seed=seed)[-1].x.tobytes() for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.sampled
@samplers
@kinds
def test_start_is_left_as_it_is(name, kind):
    first, draw = start()
    sigmas = NOISES["karras"].sigmas(LEVELS[kind], 3)
    x = initial_latents(first, sigmas)
    kept = x.copy()
    list(find_sampler(name)(gaussian(kind), x, sigmas, draw, LEVELS[kind]))
    np.testing.assert_array_equal(x, kept)


def test_samplers_can_be_stopped():
    denoise = gaussian("diffusion")
    first, draw = start()
    sigmas = NOISES["karras"].sigmas(LEVELS["diffusion"], 10)
    steps = find_sampler("euler_a")(denoise, first, sigmas, draw, LEVELS["diffusion"])
    next(steps)
    steps.close()
    assert len(denoise.sigmas) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in RANDOM if name not in ("lcm", "tcd")])
@kinds
def test_fresh_noise_keeps_mean_and_variance(name, kind):
    """With the exact denoiser of normal data, the end is normal with its mean and deviation.

    Level by level too: latents at sigma have deviation sqrt(alpha^2 DATA_STD^2 + sigma^2).
    """
    levels = LEVELS[kind]
    source = NoiseSource("cuda", (0,), (4, 64, 64))
    sigmas = NOISES["karras" if kind == "diffusion" else "trailing"].sigmas(levels, 120)
    x = levels.noised(source.draw() * np.float32(DATA_STD) + np.float32(DATA_MEAN),
                      source.draw(), sigmas[0])
    for step in SAMPLERS[name](gaussian(kind), x, sigmas, source.draw, levels):
        if step.index % 30 == 29:
            alpha = levels.alpha(step.sigma_next)
            deviation = math.hypot(alpha * DATA_STD, step.sigma_next)
            assert abs(float(step.x.std()) / deviation - 1) < 0.05
            assert abs(float(step.x.mean()) - alpha * DATA_MEAN) < 0.04 * deviation


@pytest.mark.parametrize("name", ["lcm", "tcd"])
@kinds
def test_few_steps_of_a_perfect_consistency_model_keep_the_distribution(name, kind):
    """Such a model gives the end of the exact way from x: its deviation is that of the data."""
    levels = LEVELS[kind]

    def function(x, sigma):
        deviation = math.hypot(levels.alpha(sigma) * DATA_STD, sigma)
        return (x - np.float32(levels.alpha(sigma) * DATA_MEAN)) * (DATA_STD / deviation) \
            + np.float32(DATA_MEAN)

    source = NoiseSource("cuda", (0,), (4, 64, 64))
    sigmas = SAMPLERS[name].sigmas("automatic", levels, 4)
    x = levels.noised(source.draw() * np.float32(DATA_STD) + np.float32(DATA_MEAN),
                      source.draw(), sigmas[0])
    *_, last = SAMPLERS[name](Estimate(function), x, sigmas, source.draw, levels)
    if name == "lcm":
        assert abs(float(last.x.std()) / DATA_STD - 1) < 0.03
    assert abs(float(last.x.mean()) - DATA_MEAN) < 0.03


@pytest.mark.parametrize(("name", "plain"), [("euler_a", "euler"), ("dpm2_a", "dpm2")])
@kinds
def test_without_noise_an_ancestral_sampler_is_the_plain_one(name, plain, kind):
    levels, (first, draw) = LEVELS[kind], start()
    sigmas = SAMPLERS["euler"].sigmas("normal", levels, 6)
    x = initial_latents(first, sigmas)
    *_, last = SAMPLERS[name](gaussian(kind), x, sigmas, draw, levels, 0.0)
    *_, expected = SAMPLERS[plain](gaussian(kind), x, sigmas, no_noise, levels)
    np.testing.assert_allclose(last.x, expected.x, atol=2e-5)


def test_more_noise_is_drawn_with_a_larger_eta():
    """Ways from one x to the same level; of TCD and of ancestral samplers."""
    levels, (first, _) = LEVELS["diffusion"], start()
    for name in (name for name, sampler in SAMPLERS.items() if sampler.eta is not None):
        sigmas = SAMPLERS["euler"].sigmas("normal", levels, 4)
        x, spread = initial_latents(first, sigmas), []
        for eta in (0.0, 0.3, 0.7, 1.0):
            ends = [next(SAMPLERS[name](gaussian("diffusion"), x, sigmas, start(seed)[1], levels,
                                        eta)).x for seed in (1, 2)]
            spread.append(float(np.abs(ends[0] - ends[1]).mean()))
        assert spread[0] < 1e-3 and spread == sorted(spread) and spread[-1] > 1


def test_noise_of_a_step_and_of_its_first_half_are_of_one_path():
    """The noise of a whole step of DPM++ SDE goes on from that of its first half, as in a Brownian
    tree over sigma: their correlation is sqrt of the share of the first half."""
    drawn = iter(np.random.default_rng(0).standard_normal((2, 1, 1, 200, 200), dtype=np.float32))
    seen = []
    denoise = Estimate(lambda x, sigma: seen.append(x) or np.zeros_like(x))
    zeros = np.zeros((1, 1, 200, 200), np.float32)
    first, _ = SAMPLERS["dpm++_sde"](denoise, zeros, [4.0, 1.0, 0.0], drawn.__next__,
                                     LEVELS["diffusion"])
    halfway = seen[1]
    np.testing.assert_allclose(halfway.std(), 2 * math.sqrt(1 - 1 / 4), rtol=0.02)
    np.testing.assert_allclose(first.x.std(), math.sqrt(1 - 1 / 16), rtol=0.02)
    correlation = np.corrcoef(halfway.ravel(), first.x.ravel())[0, 1]
    np.testing.assert_allclose(correlation, math.sqrt((4 - 2) / (4 - 1)), atol=0.02)


def test_negative_prompt_of_cfgpp():
    """Chung et al. 2024: x' = D + (x - D of the negative prompt) sigma' / sigma."""

    class Two(Estimate):
        def both(self, x, sigma):
            return x * np.float32(0.5), x * np.float32(0.25)

    x, _ = start()
    step, _ = SAMPLERS["euler_cfg++"](Two(None), x, [2.0, 1.0, 0.0], no_noise, LEVELS["diffusion"])
    np.testing.assert_allclose(step.x, x * (0.5 + 0.75 / 2), rtol=1e-6)


def test_levels_of_a_sampler():
    levels = LEVELS["diffusion"]
    plain = NOISES["karras"].sigmas(levels, 11)
    np.testing.assert_array_equal(SAMPLERS["dpm2"].sigmas("karras", levels, 10),
                                  np.delete(plain, -2))
    np.testing.assert_array_equal(SAMPLERS["dpm2"].sigmas("automatic", levels, 10),
                                  np.delete(plain, -2))
    assert SAMPLERS["dpm2"].sigmas("9, 3, 1, 0", levels, 20).tolist() == [9, 3, 1, 0]
    assert len(SAMPLERS["dpm2"].sigmas("karras", levels, 1000)) == 1001
    for name, sampler in SAMPLERS.items():
        assert sampler.chosen("automatic", flow=False) in NOISES, name
        assert sampler.chosen("Automatic", flow=True) == "trailing"
    assert find_sampler("DPM++ 3M SDE").chosen("Automatic", flow=False) == "exponential"


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
        ("dpm++2s_a", "dpm++_2s_a"),
        ("sample_dpm_2_ancestral", "dpm2_a"),
        ("dpmpp_2m_sde_gpu", "dpm++_2m_sde"),
        ("UniPC", "uni_pc"),
        ("uni_pc_bh2", "uni_pc_bh2"),
        ("DDIM CFG++", "euler_cfg++"),
        ("euler_ge", "gradient_estimation"),
    ],
)
def test_spellings(spelling, name):
    assert find_sampler(spelling).name == name


@pytest.mark.parametrize(("label", "parts"), [
    ("DPM++ 2M SDE Exponential", ("DPM++ 2M SDE", "Exponential")),
    ("dpm2 a karras", ("dpm2 a", "karras")),
    ("DPM++ 2M", ("DPM++ 2M", None)),
    ("DPM++ 9M Karras", ("DPM++ 9M Karras", None)),
    ("Karras", ("Karras", None)),
    ("", ("", None)),
])
def test_labels_that_once_named_both(label, parts):
    assert split_label(label) == parts


def test_labels_are_spellings_and_no_spelling_is_given_twice():
    for name, sampler in SAMPLERS.items():
        assert find_sampler(sampler.label).name == name
    spellings = [alias for item in SAMPLERS.values() for alias in (item.name, *item.aliases)]
    assert len(spellings) == len(set(spellings))


def test_unknown_name_lists_known_ones():
    with pytest.raises(InputError, match=r"'dpm_fast'; known: euler, euler_a, ddim"):
        find_sampler("dpm_fast")
