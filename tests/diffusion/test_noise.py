"""Noise levels and schedules against published numbers and their own properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers_k_diffusion import k_diffusion_sampling

from smalti.diffusion.beta import beta_distribution, beta_quantile
from smalti.diffusion.noise import (
    ALIGNED_SD1,
    NOISES,
    FlowLevels,
    NoiseLevels,
    find_schedule,
)
from smalti.errors import InputError
from smalti.families import families
from smalti.families.flow_shift import flux_shift

LEVELS = NoiseLevels.scaled_linear()
KNOWN = {
    "karras": [14.6146412, 9.1029281, 5.478392, 3.1686031, 1.749417, 0.9140723, 0.4469182,
               0.2013983, 0.0819102, 0.0291672, 0],
    "normal": [14.6146412, 7.8398829, 4.6091741, 2.9183071, 1.9501615, 1.3449278, 0.932358,
               0.6249769, 0.3686577, 0.0291672, 0],
    "exponential": [14.6146412, 7.3248702, 3.6712309, 1.840024, 0.9222215, 0.4622182, 0.2316641,
                    0.1161103, 0.0581946, 0.0291672, 0],
    "sgm_uniform": [14.6146412, 8.3071722, 5.0924076, 3.3250691, 2.2797303, 1.6155803, 1.1628645,
                    0.8318837, 0.5711889, 0.3437048, 0],
    "simple": [14.6146412, 8.3028032, 5.0877632, 3.3210831, 2.2764631, 1.6128862, 1.1605783,
               0.8298595, 0.5692849, 0.3416738, 0],
}  # fmt: skip
TO_THE_LOWEST = ("normal", "karras", "exponential", "kl_optimal")
FEWER = ("beta", "ddim_uniform")  # each trained level once


def test_levels_of_stable_diffusion():
    assert len(LEVELS.sigmas) == 1000
    np.testing.assert_allclose(
        [LEVELS.lowest, LEVELS.sigmas[500], LEVELS.highest],
        [0.029167158, 1.618278826, 14.614641229],
        rtol=2e-6,
    )
    np.testing.assert_allclose(1 / (LEVELS.highest**2 + 1), 0.0046600985, rtol=2e-6)


@pytest.mark.parametrize("name", KNOWN)
def test_ten_steps(name):
    sigmas = find_schedule(name).sigmas(LEVELS, 10)
    np.testing.assert_allclose(sigmas, KNOWN[name], rtol=3e-6)


@pytest.mark.parametrize("name", NOISES)
@settings(deadline=None)
@given(steps=st.integers(1, 1000))
def test_schedules_fall_from_the_highest_level_to_zero(name, steps):
    sigmas = find_schedule(name).sigmas(LEVELS, steps)
    assert sigmas[-1] == 0
    assert (np.diff(sigmas) < 0).all()
    assert len(sigmas) == steps + 1 or name in FEWER and len(sigmas) <= steps
    if name not in ("ddim_uniform", "align_your_steps"):
        np.testing.assert_allclose(sigmas[0], LEVELS.highest, rtol=1e-12)
    if name in TO_THE_LOWEST and steps > 1:
        np.testing.assert_allclose(sigmas[-2], LEVELS.lowest, rtol=1e-9)


@given(timestep=st.floats(0, 999))
def test_timestep_and_sigma_are_inverse(timestep):
    assert abs(float(LEVELS.timestep(LEVELS.sigma(timestep))) - timestep) < 1e-6


def test_timesteps_at_trained_levels_and_beyond():
    np.testing.assert_allclose(LEVELS.timestep(LEVELS.sigmas), np.arange(1000), atol=1e-9)
    middle = np.sqrt(LEVELS.sigmas[3] * LEVELS.sigmas[4])
    assert abs(LEVELS.timestep(middle) - 3.5) < 1e-9
    assert LEVELS.timestep(1000.0) == 999 and LEVELS.timestep(1e-9) == 0


@pytest.mark.parametrize("steps", [0, -1, 1001])
def test_senseless_steps(steps):
    with pytest.raises(InputError, match="expected 1 to 1000"):
        find_schedule("karras").sigmas(LEVELS, steps)


def test_spellings():
    assert find_schedule("Karras") is find_schedule(" karras")
    assert find_schedule("Uniform") is find_schedule("normal") is NOISES["Normal"]
    assert find_schedule("SGM Uniform").name == "sgm_uniform"
    assert find_schedule("flux") is find_schedule("ddim_trailing") is NOISES["trailing"]
    for name, schedule in NOISES.items():
        assert find_schedule(schedule.label).name == name
    with pytest.raises(InputError, match="'cosine'; known: normal, karras"):
        find_schedule("cosine")
    assert "cosine" not in NOISES and 3 not in NOISES


def test_zero_terminal_snr():
    levels = NoiseLevels.scaled_linear(zero_terminal_snr=True)
    np.testing.assert_allclose(levels.highest, 4518.7637, rtol=1e-7)
    np.testing.assert_allclose(levels.lowest, LEVELS.lowest, rtol=1e-9)
    assert (np.diff(levels.sigmas) > 0).all()


def test_levels_of_continuous_models():
    levels = NoiseLevels.log_spaced(0.002, 120.0)
    np.testing.assert_allclose([levels.lowest, levels.highest], [0.002, 120])
    np.testing.assert_allclose(levels.sigma(499.5), np.sqrt(0.002 * 120))


def test_flow_levels():
    """Esser et al. 2024, equation 23; Black Forest Labs' schedule of four steps."""
    sd3 = FlowLevels.shifted(3.0)
    expected = [1, .9642857, .9230769, .875, .8181818, .75, .6666667, .5625, .4285714, .25, 0]
    np.testing.assert_allclose(NOISES["simple"].sigmas(sd3, 10), expected, atol=5e-8)
    np.testing.assert_allclose(NOISES["trailing"].sigmas(sd3, 10), expected, atol=5e-8)
    flux = FlowLevels.shifted(flux_shift(1024, 1024, 4))
    np.testing.assert_allclose(NOISES["flux"].sigmas(flux, 4), [1, .9045308, .7595109, .5128441, 0],
                               atol=5e-8)
    np.testing.assert_allclose(NOISES["flux"].sigmas(FlowLevels.shifted(), 4), [1, .75, .5, .25, 0])
    sizes = [(512, 512), (768, 768), (1024, 1024), (1280, 768)]
    np.testing.assert_allclose([np.log(flux_shift(*size, 20)) for size in sizes],
                               [.63, .8466667, 1.15, 1.1066667], rtol=1e-7)
    with pytest.raises(InputError, match="flow shift is -1"):
        FlowLevels.shifted(-1)


@given(timestep=st.floats(0, 999), shift=st.floats(0.1, 10))
def test_timestep_and_sigma_of_flow_models_are_inverse(timestep, shift):
    levels = FlowLevels.shifted(shift)
    assert abs(float(levels.timestep(levels.sigma(timestep))) - timestep) < 1e-6
    np.testing.assert_allclose(levels.sigma(np.arange(1000)), levels.sigmas, rtol=1e-12)
    assert levels.timestep(0) == 0


@pytest.mark.parametrize("name", NOISES)
@settings(deadline=None)
@given(steps=st.integers(1, 300), shift=st.floats(0.5, 10))
def test_schedules_of_flow_models(name, steps, shift):
    if name == "align_your_steps":
        with pytest.raises(InputError, match="no walk of align_your_steps is known"):
            NOISES[name].sigmas(FlowLevels.shifted(shift), steps)
        return
    sigmas = NOISES[name].sigmas(FlowLevels.shifted(shift), steps)
    assert sigmas[-1] == 0 and (np.diff(sigmas) < 0).all() and sigmas[0] <= 1 + 1e-12


def test_limits_as_fractions_of_the_way():
    levels = FlowLevels.shifted(3.0)
    assert levels.after(0) == np.inf and levels.after(1) == 0
    assert 0.74 < levels.after(0.5) < 0.76
    assert LEVELS.after(0.2) > LEVELS.after(0.8) > 0


def test_noised_latents():
    clean, noise = np.full((1, 2), 3, np.float32), np.full((1, 2), 5, np.float32)
    found = FlowLevels.shifted().noised(clean, noise, np.float64(0.25))
    assert found.dtype == np.float32 and found.tolist() == [[3.5, 3.5]]
    assert LEVELS.noised(clean, noise, 2.0).tolist() == [[13, 13]]


def test_aligned_steps():
    """Ten steps are the published table, its last level being the step to 0; as in diffusers."""
    aligned = families()["sdxl"].aligned
    levels = NoiseLevels.scaled_linear(aligned=aligned)
    np.testing.assert_allclose(NOISES["ays"].sigmas(levels, 10), (*aligned[:-1], 0))
    twenty = NOISES["ays"].sigmas(LEVELS, 20)
    np.testing.assert_allclose(twenty[:-1:2], ALIGNED_SD1[:-1])
    np.testing.assert_allclose(twenty[1], np.sqrt(ALIGNED_SD1[0] * ALIGNED_SD1[1]))


def test_linear_quadratic_as_written_in_mochi():
    steps, small = 12, 0.025
    linear = steps // 2
    quadratic = steps - linear
    difference = linear - small * steps
    a = difference / (linear * quadratic**2)
    b = small / linear - 2 * difference / quadratic**2
    expected = [step * small / linear for step in range(linear)]
    expected += [a * step**2 + b * step + a * linear**2 for step in range(linear, steps)]
    found = NOISES["linear_quadratic"].sigmas(LEVELS, steps) / LEVELS.highest
    np.testing.assert_allclose(found, 1 - np.array([*expected, 1.0]), atol=1e-12)


def test_levels_of_distilled_models():
    """SD-Turbo's own steps 999, 899, ...; of LCM's 50 (19, 39, ..., 999) equally spaced ones."""
    found = LEVELS.timestep(NOISES["turbo"].sigmas(LEVELS, 4)[:-1])
    np.testing.assert_allclose(found, [999, 899, 799, 699])
    found = LEVELS.timestep(NOISES["lcm"].sigmas(LEVELS, 8)[:-1])
    np.testing.assert_allclose(found, [999, 879, 759, 639, 499, 379, 259, 139])


def test_levels_as_given():
    schedule = find_schedule("14.6, 7.8,1e-1,0")
    assert schedule.name == schedule.label == "14.6,7.8,1e-1,0" and schedule.fixed_steps == 3
    assert schedule.sigmas(LEVELS, 50, drop_penultimate=True).tolist() == [14.6, 7.8, 0.1, 0]
    for wrong in ("1,2,0", "3,2,1", "3,x,0", "3,,0", "nan,0", "inf,0", "0,0", ",", "3,2,0,-1"):
        with pytest.raises(InputError, match="noise levels are"):
            find_schedule(wrong)
    with pytest.raises(InputError, match="1002 noise levels; expected at most 1001"):
        find_schedule(",".join(str(level) for level in range(1001, -1, -1)))


def test_beta_distribution_in_closed_form():
    x = np.linspace(0, 1, 101)
    np.testing.assert_allclose(beta_distribution(x, 3, 1), x**3, atol=1e-14)
    np.testing.assert_allclose(beta_distribution(x, 1, 4), 1 - (1 - x) ** 4, atol=1e-14)
    arcsine = 2 / np.pi * np.arcsin(np.sqrt(x))
    np.testing.assert_allclose(beta_distribution(x, 0.5, 0.5), arcsine, atol=1e-14)


@settings(deadline=None)
@given(share=st.floats(0, 1), a=st.floats(0.2, 20), b=st.floats(0.2, 20))
def test_beta_quantile_is_the_inverse(share, a, b):
    found = beta_quantile(share, a, b)
    assert 0 <= found <= 1
    below = beta_distribution(max(found - 1e-15, 0), a, b)
    above = beta_distribution(min(found + 1e-15, 1), a, b)
    assert below - 1e-9 <= share <= above + 1e-9


@pytest.mark.peers
@pytest.mark.parametrize(("a", "b"), [(0.6, 0.6), (0.5, 1.0), (2.0, 5.0)])
def test_beta_quantile_agrees_with_scipy(a, b):
    from scipy.stats import beta

    shares = np.arange(1, 1000) / 1000
    np.testing.assert_allclose(beta_quantile(shares, a, b), beta.ppf(shares, a, b), rtol=1e-9)


@pytest.mark.peers
def test_exponential_agrees_with_k_diffusion():
    sampling = k_diffusion_sampling()
    for name in ("exponential", "polyexponential", "karras"):
        peer = getattr(sampling, f"get_sigmas_{name}")(12, LEVELS.lowest, LEVELS.highest)
        found = find_schedule(name).sigmas(LEVELS, 12)
        np.testing.assert_allclose(found, peer.numpy(), rtol=1e-5)


@pytest.mark.peers
@pytest.mark.parametrize(("name", "spacing"), [("ddim_uniform", "leading"),
                                               ("simple", "trailing"), ("trailing", "trailing")])
def test_spacing_agrees_with_diffusers(name, spacing):
    from diffusers import DDIMScheduler

    peer = DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                         timestep_spacing=spacing, steps_offset=1)
    for steps in (1, 4, 10, 50):
        peer.set_timesteps(steps)
        found = LEVELS.timestep(NOISES[name].sigmas(LEVELS, steps)[:-1])
        np.testing.assert_allclose(found, peer.timesteps.numpy(), atol=1e-6)


@pytest.mark.peers
def test_beta_schedule_agrees_with_scipy():
    """ComfyUI's `beta_scheduler`, with scipy's quantiles."""
    from scipy.stats import beta

    for steps in (1, 12, 30, 200):
        ramp = 1 - np.linspace(0, 1, steps, endpoint=False)
        chosen = np.rint(beta.ppf(ramp, 0.6, 0.6) * 999).astype(int)
        expected = [LEVELS.sigmas[index] for index in dict.fromkeys(chosen)]
        np.testing.assert_allclose(NOISES["beta"].sigmas(LEVELS, steps)[:-1], expected)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["normal", "karras"])
def test_agrees_with_diffusers(name):
    from diffusers import EulerDiscreteScheduler

    peer = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        use_karras_sigmas=name == "karras",
    )
    for steps in (2, 7, 25):  # for a single step diffusers starts at the lowest level
        peer.set_timesteps(steps)
        expected = peer.sigmas.numpy()
        ours = find_schedule(name).sigmas(LEVELS, steps)
        # diffusers interpolates sigma, not log sigma, between training steps
        np.testing.assert_allclose(ours, expected, rtol=1e-4)
