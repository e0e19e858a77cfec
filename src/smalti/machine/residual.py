"""What a calibrated timing model still misses, learned from the samples it was calibrated with.

Problems that are alike are missed alike, so the logarithm of measured over expected time is taken
for a Gaussian process over what the model knows of a problem: its sizes, what it is expected to
take, and the rates at which it is expected to compute and to move bytes, in which tiles and waves
that are not full show. The prediction is a sum of likenesses to the samples, so it falls to nothing
far from all of them, and it is bounded.

How far likeness reaches and how much of a miss is noise is what predicts samples best that were
left out, one by one, which takes no second fit: what is missed at sample i by all others is
(A⁻¹ y)ᵢ / (A⁻¹)ᵢᵢ with A the covariance of the samples (Rasmussen and Williams, "Gaussian Processes
for Machine Learning", 2006, section 5.4.2). Where that gains little, nothing is corrected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAMPLES_MIN = 20
"""With fewer measurements nothing is corrected: a guess."""
REACHES = (1.0, 2.0, 4.0, 8.0)
"""Distances, in standard deviations of the samples' features, over which problems are alike."""
NOISES = (0.1, 0.3, 1.0, 3.0)
"""Variances of what likeness does not explain, the process having 1."""
GAIN_MIN = 0.03
"""Share of the error that a correction has to take away from left-out samples to be kept."""
CERTAINTY = 1.5
"""Standard errors that what it takes away has to be above 0."""
CHOICE_MAX = 400
"""Samples that reach and noise are chosen by; the correction itself is learned from all."""
CORRECTION_MAX = float(np.log(2.0))


@dataclass(frozen=True)
class Residual:
    """A factor between a half and two, from what the model missed at the samples.

    `places` [samples, features] and `scales` [features] say where the samples are and what a
    standard deviation is, `weights` [samples] what each adds to the logarithm of the factor per
    likeness to it, which falls over the distance `reach`. Far from every sample the factor is 1.
    """

    places: np.ndarray
    scales: np.ndarray
    weights: np.ndarray
    reach: float

    def factor(self, places: np.ndarray) -> np.ndarray:
        """What to multiply predictions at `places` [n, features] by: [n]."""
        likeness = _likeness(places / self.scales, self.places / self.scales, self.reach)
        return np.exp(np.clip(likeness @ self.weights, -CORRECTION_MAX, CORRECTION_MAX))


def relative(misses: np.ndarray) -> float:
    """The mean relative error of predictions that miss by these logarithms of measured over
    expected.

    >>> round(relative(np.log([2.0, 0.5])), 2)
    0.75
    """
    return float(_relative(misses).mean())


def _relative(misses: np.ndarray) -> np.ndarray:
    return np.abs(np.expm1(-misses))


def learned(places: np.ndarray, misses: np.ndarray) -> Residual | None:
    """The correction for samples at `places` [samples, features] whose logarithms of measured over
    expected time are `misses` [samples]; None where it would not lower the error of left-out ones.

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
    """(what is missed at left-out samples, reach, noise, shift) for each noise.

    `shift` is added to all misses: the mean logarithm of times that something disturbed now and
    then is not the prediction with the least relative error, which is nearer to the undisturbed.
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
    """The constant whose taking away leaves the least relative error: a weighted median."""
    ordered = np.sort(misses)
    weight = np.cumsum(np.exp(-ordered))
    return float(ordered[np.searchsorted(weight, weight[-1] / 2)])


def _likeness(places: np.ndarray, others: np.ndarray, reach: float) -> np.ndarray:
    """Covariance of misses at two sets of places: Matérn's, of once differentiable functions."""
    squares = (places**2).sum(1)[:, None] + (others**2).sum(1) - 2 * places @ others.T
    distance = np.sqrt(3 * np.clip(squares, 0, None)) / reach
    return (1 + distance) * np.exp(-distance)
