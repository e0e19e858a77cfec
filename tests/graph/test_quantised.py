"""Quantised weights: words and what they mean, against arithmetic on codes."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.graph.quantised import FORMATS, Quantised, of_eight_bits, quantised


def random_of(dtype: str, groups: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray,
                                                                np.ndarray | None]:
    """Codes of the whole range, scales and minima."""
    random, form = np.random.default_rng(seed), FORMATS[dtype]
    most = 1 << form.bits
    low = 0 if form.minimum else -most // 2
    codes = random.integers(low, low + most, (groups, form.group))
    scales, minima = random.standard_normal((2, groups), np.float32)
    return codes, scales, minima if form.minimum else None


@pytest.mark.parametrize("dtype", FORMATS)
def test_words_mean_scale_times_code_plus_minimum(dtype: str) -> None:
    form, (codes, scales, minima) = FORMATS[dtype], random_of(dtype, 6)
    found = Quantised.of(dtype, codes, scales, minima, (2, 3 * form.group))
    assert found.words.shape == (6, form.words)
    assert found.words.nbytes == form.element_bytes * codes.size
    expected = scales[:, None] * codes.astype(np.float32)
    if minima is not None:
        expected += minima[:, None]
    np.testing.assert_array_equal(found.floats(), expected.reshape(2, -1))


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_is_off_by_half_a_scale(dtype: str) -> None:
    form = FORMATS[dtype]
    values = np.random.default_rng(1).standard_normal((8, 4 * form.group), np.float32)
    found = quantised(values, dtype)
    groups, scales = values.reshape(-1, form.group), found.heads[:, :1]
    error = np.abs(found.floats().reshape(groups.shape) - groups)
    assert (error <= 0.50001 * scales).all() and error.max() > 0.4 * scales.min()
    again = quantised(found.floats(), dtype)  # what can be held is
    np.testing.assert_allclose(again.floats(), found.floats(), rtol=0, atol=1e-6)


def test_zeros_stay_zeros_and_eight_bits_have_the_same_groups() -> None:
    for dtype, form in FORMATS.items():
        assert not quantised(np.zeros((2, form.group)), dtype).floats().any()
        wide = FORMATS[of_eight_bits(dtype)]
        assert (wide.bits, wide.group, wide.minimum) == (8, form.group, form.minimum)
