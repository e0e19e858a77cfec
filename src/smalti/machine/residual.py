"""Residuals: corrections of a calibrated timing model, learned from the calibration's samples.

A timing model errs alike for similar problems, so the logarithm of measured over predicted time is
modelled as a Gaussian process. Its features are what the model knows of a problem: its sizes, its
predicted time, and the predicted rates of arithmetic and memory, which show tiles and waves that
are not full. The correction is a sum of similarities to the samples, so far from all samples it
vanishes; and it is bounded.

The length scale of the similarity and the share of noise are those that best predict samples left
out, one at a time. This needs no second fit: the error at sample i when predicted from all others
is (A⁻¹ y)ᵢ / (A⁻¹)ᵢᵢ with A the covariance of the samples (Rasmussen and Williams, "Gaussian
Processes for Machine Learning", 2006, section 5.4.2). If that gains little, nothing is corrected.
"""

from __future__ import annotations

import numpy as np

from smalti.dataclass import dataclass

SAMPLES_MIN = 20
"""With fewer measurements nothing is corrected: a guess."""
REACHES = (1.0, 2.0, 4.0, 8.0)
"""Length scales that are tried, in standard deviations of the samples' features."""
NOISES = (0.1, 0.3, 1.0, 3.0)
"""Variances of the noise that are tried; the variance of the process is 1."""
GAIN_MIN = 0.03
"""A correction is kept only if it reduces the error at left-out samples by at least this share."""
CERTAINTY = 1.5
"""A correction is kept only if its gain is at least so many standard errors above 0."""
CHOICE_MAX = 400
"""The most samples used to choose length scale and noise; the correction is learned from all."""
CORRECTION_MAX = float(np.log(2.0))


@dataclass(frozen=True)
class Residual:
    """A correction factor between 1/2 and 2 for predicted times.

    `places` [samples, features] are the features of the samples, `scales` [features] their standard
    deviations, `reach` the length scale in these. The logarithm of the factor is the sum over
    samples of `weights` [samples] times the similarity to the sample. Far from every sample the
    factor is 1.
    """

    places: np.ndarray
    scales: np.ndarray
    weights: np.ndarray
    reach: float

    def factor(self, places: np.ndarray) -> np.ndarray:
        """The factors [n] by which to multiply predictions for problems with the features `places`
        [n, features]."""
        likeness = _likeness(places / self.scales, self.places / self.scales, self.reach)
        return np.exp(np.clip(likeness @ self.weights, -CORRECTION_MAX, CORRECTION_MAX))


def relative(misses: np.ndarray) -> float:
    """The mean relative error of predictions, given the logarithms of measured over predicted time.

    >>> round(relative(np.log([2.0, 0.5])), 2)
    0.75
    """
    return float(_relative(misses).mean())


def _relative(misses: np.ndarray) -> np.ndarray:
    return np.abs(np.expm1(-misses))


def learned(places: np.ndarray, misses: np.ndarray) -> Residual | None:
    """The correction learned from samples; None if it would not reduce the error at left-out
    samples.

    `places` [samples, features] are the features of the samples, `misses` [samples] the logarithms
    of measured over predicted time.

    >>> sizes = np.linspace(0, 6, 50)
    >>> found = learned(sizes[:, None], 0.3 * np.sin(sizes))
    >>> np.round(np.log(found.factor(np.array([[1.5], [4.5], [99.0]]))), 1).tolist()
    [0.3, -0.3, 0.0]
    """
    if len(misses) < SAMPLES_MIN:
        return None
    deviations = places.std(0)
    scales = np.where(deviations > 1e-6, deviations, 1.0)
    known = places / scales
    some = np.random.default_rng(0).permutation(len(misses))[:CHOICE_MAX]
    left, reach, noise, shift = min(
        (option for reach in REACHES for option in _options(known[some], misses[some], reach)),
        key=lambda option: relative(option[0]))
    before = _relative(misses[some])
    gains = before - _relative(left)
    if gains.mean() < max(GAIN_MIN * before.mean(), CERTAINTY * gains.std() / np.sqrt(len(some))):
        return None
    among = _likeness(known, known, reach) + noise * np.eye(len(misses))
    return Residual(places, scales, np.linalg.solve(among, misses + shift), reach)


def _options(places: np.ndarray, misses: np.ndarray,
             reach: float) -> list[tuple[np.ndarray, float, float, float]]:
    """(errors at left-out samples, reach, noise, shift) for each of `NOISES`.

    `shift` is added to all misses. It is needed because a Gaussian process predicts means of
    logarithms; with measurements of which some were disturbed, the prediction with the least
    relative error is nearer to the undisturbed ones.
    """
    values, vectors = np.linalg.eigh(_likeness(places, places, reach))
    ones = np.ones(len(misses))
    found = []
    for noise in NOISES:
        inverse = (vectors / (np.clip(values, 0, None) + noise)) @ vectors.T
        left, left_of_ones = (inverse @ np.stack([misses, ones], 1) / np.diag(inverse)[:, None]).T
        shift = _center(left)
        found.append((left - shift * (1 - left_of_ones), reach, noise, shift))
    return found


def _center(misses: np.ndarray) -> float:
    """The constant whose subtraction leaves the least relative error: a weighted median."""
    ordered = np.sort(misses)
    weight = np.cumsum(np.exp(-ordered))
    return float(ordered[np.searchsorted(weight, weight[-1] / 2)])


def _likeness(places: np.ndarray, others: np.ndarray, reach: float) -> np.ndarray:
    """The covariance of misses at two sets of places: Matérn's with smoothness 3/2 (functions that
    are differentiable once)."""
    squares = (places**2).sum(1)[:, None] + (others**2).sum(1) - 2 * places @ others.T
    distance = np.sqrt(3 * np.clip(squares, 0, None)) / reach
    return (1 + distance) * np.exp(-distance)
