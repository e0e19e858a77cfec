"""Quantiles of the beta distribution, for the noise schedule of that name.

The distribution function is the regularised incomplete beta function I_x(a, b), here by the
continued fraction of NIST's Digital Library of Mathematical Functions (dlmf.nist.gov/8.17.E22),
evaluated by Lentz's method. It rises, and its slope is known, so that Newton's method inverts it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TERMS_MAX = 1000  # of a continued fraction, which ends when a term changes nothing
FINEST = 1e-15  # a step that is the last: the one behind it would be lost in rounding
STEPS_MAX = 100  # as many as halve the interval from 0 to 1 down to that, with a step between each


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

    By Newton's method, kept inside of an interval that is halved where a step of it leads out, or
    is not at most half of the one before.

    >>> beta_quantile([0.0625, 0.25], 2, 1).round(12).tolist()
    [0.25, 0.5]
    """
    share = np.asarray(share, np.float64)
    low, high = np.zeros_like(share), np.ones_like(share)
    left = (share > 0) & (share < 1)
    x, moved = np.where(left, 0.5, share), np.ones_like(share)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    for _ in range(STEPS_MAX):
        miss = beta_distribution(x, a, b) - share
        low, high = np.where(miss < 0, x, low), np.where(miss < 0, high, x)
        with np.errstate(all="ignore"):  # the density may be 0 or infinite
            newton = x - miss / (scale * x ** (a - 1) * (1 - x) ** (b - 1))
        near = (low <= newton) & (newton <= high) & (np.abs(newton - x) <= moved / 2)
        other = np.where(left, np.where(near, newton, (low + high) / 2), x)
        x, moved = other, np.abs(other - x)
        left &= moved > FINEST
        if not left.any():
            break
    return x
