"""Noise levels and schedules against published numbers and their own properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.diffusion.noise import NOISES, NoiseLevels, find_schedule
from smalti.errors import InputError

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
