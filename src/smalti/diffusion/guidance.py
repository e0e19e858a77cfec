"""Classifier-free guidance: what the prompt adds, made stronger.

Ho & Salimans 2022 (arXiv:2207.12598): out = negative + scale * (positive - negative). All prompts
of a picture are evaluated in one batch, so that the network's weights are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.diffusion.denoiser import Conditioning, Denoiser
from smalti.diffusion.noise import NoiseLevels
from smalti.errors import InputError

Floats = npt.NDArray[np.float32]
Positive = Conditioning | Sequence[tuple[Conditioning, float]]
"""One prompt, or several with weights (`AND` in a prompt)."""

KEEP = "keep"
"""The part of a conditioning that says how much of what each layer of a network adds is kept,
f32[1 or pictures, layers]; only where `SkipLayers` is in use."""


@dataclass(frozen=True)
class Projected:
    """Adaptive projected guidance: a strong scale without burnt colours.

    Sadat et al. 2024 (arXiv:2410.02416), algorithm 1. Of the guidance the part along the estimate
    itself counts `along` times (eta), its norm is at most `norm_max` (r; 0 is no limit), and it
    carries `momentum` (beta) times that of the steps before.
    """

    along: float = 0.0
    norm_max: float = 15.0
    momentum: float = -0.5


@dataclass(frozen=True)
class SkipLayers:
    """Skip-layer guidance: away from what the network does without some of its layers.

    Stability AI's SD3.5 reference: scale * (positive - skipped) is added from the share `start` to
    the share `end` of training time.
    """

    layers: tuple[int, ...] = (7, 8, 9)
    scale: float = 2.5
    start: float = 0.01
    end: float = 0.2

    def rows(self, rows: Sequence[Conditioning], layers: int) -> list[Conditioning]:
        """The rows, and the first one again without the skipped ones of so many layers."""
        keep = np.ones((1, layers), np.float32)
        without = keep.copy()
        without[:, list(self.layers)] = 0
        return [*({**row, KEEP: keep} for row in rows), {**rows[0], KEEP: without}]


@dataclass(frozen=True)
class Guide:
    """How guidance is done besides its scale; see `Guidance`.

    It counts from the share `start` to the share `end` of training time only; where these are all
    of the way, when it counts is the model's own (`guidance_time=(0, 1)` overrides that). Raises
    InputError for shares that are none, or two limits at once.

    >>> Guide(rescale=0.7, end=0.8).start
    0.0
    """

    rescale: float = 0.0
    projected: Projected | None = None
    start: float = 0.0
    end: float = 1.0
    skip: SkipLayers | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rescale <= 1:
            raise InputError(f"guidance rescale is {self.rescale!r}; expected 0 to 1")
        for what, rule in (("guidance", self), ("skip-layer guidance", self.skip)):
            if rule is not None and not 0 <= rule.start < rule.end <= 1:
                raise InputError(f"{what} counts from {rule.start!r} to {rule.end!r} of the way; "
                                 f"expected shares from 0 to 1, the first below the second")
        if self.rescale and self.projected:
            raise InputError("rescaled and projected guidance both limit what guidance does; "
                             "choose one of them")


@dataclass(frozen=True)
class ImageGuidance:
    """A second scale for the picture that is edited; Brooks et al. 2022 (arXiv:2211.09800).

    `neither` is the conditioning without prompt and without picture; positive and negative have
    the picture: out = neither + scale * (negative - neither) + guidance * (positive - negative).
    """

    neither: Conditioning
    scale: float = 1.5


PLAIN = Guide()


class Guidance:
    """The function `denoise(x, sigma)` that samplers call, with prompts and scale filled in.

    At scale 1 the negative prompt has no influence and is not evaluated, unless `always_both`
    (for samplers that need it: CFG++), and likewise outside of the interval of `guide`
    (Kynkaanniemi et al. 2024, "Applying guidance in a limited interval", arXiv:2404.07724). Its
    `rescale` (phi of Lin et al. 2023, arXiv:2305.08891, section 3.4) is the share to which the
    guided output gets the deviation of the unguided one back. Its `skip` needs the number of
    `layers` of the network, and a network that reads `KEEP`. Where `normed` is not empty, parts of
    so many channels, rows and columns (0 for all) have the norm of the unguided output after
    guidance, at most that where they are only `shrunk`, unless its deviation is rescaled.

    Raises InputError for conditionings that do not fit together.

    >>> from smalti.diffusion.noise import NoiseLevels
    >>> def network(latents, timesteps, conditioning):
    ...     return latents * conditioning["context"].mean(axis=(1, 2))[:, None, None, None]
    >>> denoiser = Denoiser(network, NoiseLevels.scaled_linear(), "sample")
    >>> prompt, negative = np.full((1, 77, 8), 3, np.float32), np.ones((1, 77, 8), np.float32)
    >>> denoise = Guidance(denoiser, {"context": prompt}, {"context": negative}, scale=2.0)
    >>> x = np.full((1, 4, 8, 8), 2**0.5, np.float32)
    >>> round(float(denoise(x, 1.0)[0, 0, 0, 0]), 4)  # 1 + 2 * (3 - 1)
    5.0
    """

    def __init__(self, denoiser: Denoiser, positive: Positive, negative: Conditioning,
                 scale: float, guide: Guide = PLAIN, *, image: ImageGuidance | None = None,
                 always_both: bool = False, layers: int = 0,
                 normed: tuple[int, ...] = (), shrunk: bool = False) -> None:
        self.denoiser = denoiser
        self.scale = float(scale)
        self.guide = guide
        self.image = image
        self.always_both = always_both
        self.layers = layers
        self.normed = normed
        self.shrunk = shrunk
        self._running: Floats | float = 0.0  # momentum of projected guidance
        self.condition(positive, negative)

    def condition(self, positive: Positive, negative: Conditioning) -> None:
        """Go on with other prompts, from the next evaluation on."""
        self._positives = (
            [(positive, 1.0)] if isinstance(positive, Mapping) else list(positive)
        )
        for conditioning, _ in self._positives:
            _check_fit(conditioning, negative)
        self._negative = negative

    @property
    def conditionings(self) -> list[Conditioning]:
        """The most that the network is evaluated with in one batch, per picture."""
        rows = [conditioning for conditioning, _ in self._positives]
        rows += [self._negative] if self.reads_negative else []
        return rows + ([self.image.neither] if self.image else [])

    def rows(self, sigma: float) -> list[Conditioning]:
        """What the network is evaluated with at a noise level, per picture, without the row of
        skip-layer guidance."""
        rows = self.conditionings
        limited = not counts(self.guide, self.denoiser.levels, sigma)
        alone = limited and self._weights == [1.0] and not self.always_both
        return rows[:1] if alone else rows

    @property
    def reads_negative(self) -> bool:
        """Whether the negative prompt has an effect."""
        plain = self.scale == 1.0 and self.image is None and self._weights == [1.0]
        return self.always_both or not plain

    @property
    def _weights(self) -> list[float]:
        return [weight for _, weight in self._positives]

    def __call__(self, x: Floats, sigma: float) -> Floats:
        """The guided estimate of the clean latents of `x` (pictures, channels, h, w)."""
        return self.both(x, sigma)[0]

    def both(self, x: Floats, sigma: float) -> tuple[Floats, Floats]:
        """The guided estimate, and that of the negative prompt alone.

        Where the negative prompt is not evaluated, the second is the first.
        """
        rows = self.rows(sigma)
        skip = self.guide.skip
        if skip is not None and counts(skip, self.denoiser.levels, sigma):
            *outputs, without = self.denoiser.outputs(x, sigma, skip.rows(rows, self.layers))
        else:
            outputs, skip = self.denoiser.outputs(x, sigma, rows), None
        if len(rows) == 1:
            positive = guided = negative = self.denoiser.clean(x, outputs[0], sigma)
        else:
            positive, guided, negative = self._guided(
                x, sigma, outputs, limited=not counts(self.guide, self.denoiser.levels, sigma))
        if skip is not None:
            guided = guided + (positive - self.denoiser.clean(x, without, sigma)) * skip.scale
        return guided, negative

    def _guided(self, x: Floats, sigma: float, outputs: Sequence[Floats],
                limited: bool) -> tuple[Floats, Floats, Floats]:
        """Estimates of the clean latents: with the prompts, with guidance, of the negative prompt.

        Plain guidance works on outputs, which is the same as on estimates but for `rescale`.
        """
        negative = outputs[len(self._positives)]
        difference = sum(
            (output - negative) * weight
            for output, weight in zip(outputs, self._weights, strict=False))
        positive_estimate = self.denoiser.clean(x, negative + difference, sigma)
        estimate = self.denoiser.clean(x, negative, sigma)
        if limited:
            return positive_estimate, positive_estimate, estimate
        projected = self.guide.projected
        if projected is not None:
            made = self._project(projected, positive_estimate, estimate)
            return positive_estimate, made, estimate
        guided = negative + difference * self.scale
        if self.image:
            guided = guided + (negative - outputs[-1]) * (self.image.scale - 1)
        if self.guide.rescale:
            ratio = _deviation(negative + difference) / _deviation(guided)
            guided = guided * (1 + self.guide.rescale * (ratio - 1))
        elif self.normed:
            guided = _with_norms(guided, negative + difference, self.normed, self.shrunk)
        return positive_estimate, self.denoiser.clean(x, guided, sigma), estimate

    def _project(self, rule: Projected, positive: Floats, negative: Floats) -> Floats:
        """Projected guidance of two estimates."""
        difference = (positive - negative) + self._running * rule.momentum
        self._running = difference
        if rule.norm_max:
            difference = difference * np.minimum(1, rule.norm_max / _norm(difference))
        direction = positive / _norm(positive)
        along = direction * (difference * direction).sum(axis=(1, 2, 3), keepdims=True)
        return positive + (difference - along * (1 - rule.along)) * (self.scale - 1)


def counts(rule: Guide | SkipLayers, levels: NoiseLevels, sigma: float) -> bool:
    """Whether a noise level is between the start and the end of a rule.

    >>> levels = NoiseLevels.scaled_linear()
    >>> counts(Guide(end=0.5), levels, 14.6), counts(Guide(end=0.5), levels, 0.1)
    (True, False)
    """
    return levels.after(rule.end) <= sigma <= levels.after(rule.start)


def _check_fit(positive: Conditioning, negative: Conditioning) -> None:
    for name in positive.keys() & negative.keys():
        if positive[name].shape[1:] != negative[name].shape[1:]:
            raise InputError(
                f"{name} of the prompts has shapes {positive[name].shape} and"
                f" {negative[name].shape}; expected the same but for the first axis")


def _norm(values: Floats) -> Floats:
    """Euclidean norm of each picture, (pictures, 1, 1, 1); never 0."""
    norm = np.sqrt(np.square(values).sum(axis=(1, 2, 3), keepdims=True))
    return np.maximum(norm, np.finfo(np.float32).tiny)


def _with_norms(values: Floats, like: Floats, extents: tuple[int, ...], shrunk: bool) -> Floats:
    """Values (pictures, c, h, w) of which each part of so many channels, rows and columns has the
    norm that it has in `like`, or at most that where they are `shrunk`; 0 is all of them."""
    parts = [each for whole, extent in zip(values.shape[1:], extents, strict=True)
             for each in (whole // (extent or whole), extent or whole)]
    parts = [len(values), *parts]
    squared, wanted = (np.square(each).reshape(parts).sum(axis=(2, 4, 6), keepdims=True)
                       for each in (values, like))
    ratio = np.sqrt(wanted / np.maximum(squared, np.finfo(np.float32).tiny))
    ratio = np.minimum(ratio, 1) if shrunk else ratio
    return (values.reshape(parts) * ratio).reshape(values.shape)


def _deviation(values: Floats) -> Floats:
    """Standard deviation of each picture, (pictures, 1, 1, 1); never 0."""
    return np.maximum(values.std(axis=(1, 2, 3), keepdims=True), np.finfo(np.float32).tiny)
