"""Weights on the states of text encoders, against the formulas in float64."""

import warnings

import numpy as np
import pytest

from smalti.diffusion.emphasis import EMPHASES, weighted
from smalti.errors import InputError

RNG = np.random.default_rng(0)
STATES = RNG.standard_normal((2, 77, 8), dtype=np.float32) + np.float32(0.2)
EMPTY = RNG.standard_normal((1, 77, 8), dtype=np.float32)
WEIGHTS = RNG.uniform(0.5, 1.5, (2, 77))


def test_original_restores_the_mean_of_each_chunk():
    found = weighted(STATES, WEIGHTS, EMPTY, "original")
    np.testing.assert_allclose(found.mean((1, 2)), STATES.mean((1, 2)), rtol=1e-5)
    ratio = found / (STATES * WEIGHTS[:, :, None])
    np.testing.assert_allclose(ratio[0], ratio[0, 0, 0], rtol=1e-5)
    assert found.dtype == np.float32


def test_no_norm_and_comfy():
    factors = WEIGHTS[:, :, None]
    np.testing.assert_allclose(weighted(STATES, WEIGHTS, EMPTY, "no norm"), STATES * factors,
                               rtol=1e-6)
    np.testing.assert_allclose(weighted(STATES, WEIGHTS, EMPTY, "comfy"),
                               EMPTY * (1 - factors) + STATES * factors, atol=1e-6)


@pytest.mark.parametrize("how", EMPHASES)
def test_chunks_without_weights_stay_as_they_are(how):
    weights = np.stack([np.ones(77), WEIGHTS[1]])
    found = weighted(STATES, weights, EMPTY, how)
    np.testing.assert_array_equal(found[0], STATES[0])
    assert (found[1] != STATES[1]).any()


def test_states_of_mean_zero_are_no_error():
    states = np.array([[[1.0], [-1.0]]], np.float32)
    found = weighted(states, [[0.0, 0.0]], states, "original")
    np.testing.assert_array_equal(found, np.zeros_like(states))


def test_unknown_way():
    with pytest.raises(InputError, match="'bold'; known: original, no norm, comfy"):
        weighted(STATES, WEIGHTS, EMPTY, "bold")


@pytest.mark.parametrize("how", EMPHASES)
@pytest.mark.parametrize("weight", [1e300, np.inf])
def test_weights_without_a_meaning_are_refused_without_a_warning(how, weight):
    with warnings.catch_warnings(), pytest.raises(InputError, match="weights in the prompt go up"):
        warnings.simplefilter("error")
        weighted(STATES, np.full((2, 77), weight), EMPTY, how)
