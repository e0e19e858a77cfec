"""Quantiles of the beta distribution, for the noise schedule of that name.

The distribution function is the regularised incomplete beta function I_x(a, b), here by the
continued fraction of NIST's Digital Library of Mathematical Functions (dlmf.nist.gov/8.17.E22),
evaluated by Lentz's method. It rises, so that halving intervals inverts it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TERMS_MAX = 1000  # of a continued fraction, which ends when a term changes nothing
HALVINGS = 60  # of the interval from 0 to 1, which is as fine as floats are near 1


def beta_distribution(x: npt.ArrayLike, a: float, b: float) -> Floats:
    """The probability that a Beta(a, b) number is at most x in [0, 1]; a, b > 0. Elementwise.

    >>> beta_distribution([0.0, 0.25, 1.0], 2, 1).round(12).tolist()  # x^2
    [0.0, 0.0625, 1.0]
    """
    x = np.asarray(x, np.float64)
    mirrored = x > (a + 1) / (a + b + 2)  # the fraction converges fast below this point only
    lower = _lower(np.where(mirrored, 1 - x, x), np.where(mirrored, b, a),
                   np.where(mirrored, a, b))
    return np.where(mirrored, 1 - lower, lower)


def _lower(x: Floats, a: Floats, b: Floats) -> Floats:
    """I_x(a, b) for small x: x^a (1 - x)^b / (a B(a, b)) over 1 + d1/(1 + d2/(1 + ...))."""
    first, second = float(a.flat[0]), float(b.flat[0])  # B is the same for both ways around
    scale = math.lgamma(first + second) - math.lgamma(first) - math.lgamma(second)
    value = above = np.ones_like(x)
    below = np.zeros_like(x)
    for term in range(1, TERMS_MAX):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + d * below)
        above = 1 + d / above
        value = value * above * below
        if (np.abs(above * below - 1) < 1e-15).all():
            break
    return math.exp(scale) * x**a * (1 - x) ** b / (a * value)


def beta_quantile(share: npt.ArrayLike, a: float, b: float) -> Floats:
    """The x below which a Beta(a, b) number is with probability `share`. Elementwise.

    >>> beta_quantile([0.0625, 0.25], 2, 1).round(12).tolist()
    [0.25, 0.5]
    """
    share = np.asarray(share, np.float64)
    low, high = np.zeros_like(share), np.ones_like(share)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        before = beta_distribution(middle, a, b) < share
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    return high
