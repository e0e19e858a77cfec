"""From pixels to latents: the autoencoder's other half, in tiles where memory is short."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smalti.diffusion.decoding import fitting_side, overlap
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.tiles import tiles
from smalti.families.autoencoder import scaling

Floats = np.ndarray
PART = "vae_encoder"


def encoded(models: Submodels, pixels: Floats) -> Floats:
    """The mean f32[z, height / f, width / f] that the autoencoder gives for pixels f32[3 or 4,
    height, width] in [-1, 1], in its own space; see `to_model_space`. One that reads opacity, too,
    is given opaque pixels where these have none."""
    vae = models.checkpoint.config.vae
    opacity = np.ones((vae.image_channels - len(pixels), *pixels.shape[1:]), np.float32)
    pixels = np.concatenate([pixels, opacity])
    height, width = (extent // vae.downscale for extent in pixels.shape[1:])
    side = fitting_side(models, height, width, PART)

    def encode(part: Floats) -> Floats:
        models.progress("encoding")
        (moments,) = models.run(PART, part.shape[1:], image=part[None]).values()
        return moments[0, :vae.z_channels]

    if side < max(height, width):
        models.say(f"memory was short for the picture at once: it was encoded in tiles "
                   f"of {side * vae.downscale} pixels")
    found = in_tiles(encode, pixels, side, vae.downscale)
    models.done(PART)
    return found


def to_model_space(models: Submodels, mean: Floats) -> Floats:
    """The latents that a denoiser works on, from those of the autoencoder."""
    shift, factor = scaling(models.checkpoint.config.vae)
    return (mean - shift) * factor


def in_tiles(encode: Callable[[Floats], Floats], pixels: Floats, side: int,
             factor: int) -> Floats:
    """What `encode` makes of [c, h, w], a `factor`-th as large, in tiles that give `side` pixels.

    >>> pixels = np.arange(96.0).reshape(1, 6, 16)
    >>> found = in_tiles(lambda part: part[:, ::2, ::2], pixels, 2, 2)
    >>> np.allclose(found, pixels[:, ::2, ::2])
    True
    """
    height, width = (extent // factor for extent in pixels.shape[1:])
    result = np.zeros(0, np.float32)
    for top, bottom, down in tiles(height, side, overlap(side)):
        for left, right, across in tiles(width, side, overlap(side)):
            part = encode(np.ascontiguousarray(
                pixels[:, factor * top:factor * bottom, factor * left:factor * right]))
            if not result.size:  # the first tile tells how many channels there are
                result = np.zeros((len(part), height, width), np.float32)
            result[:, top:bottom, left:right] += part * down[:, None] * across
    return result
