"""A mark in latents for a style that the encoder does not see. The encoder of the model that ships
gives of a picture in squares what it gives of the same picture without them. So latents of such
pictures are those of the picture without squares and a constant, the mark, by which the decoder
knows that it has to draw squares; a denoiser learns from the words to draw the mark. All other
latents, and the denoisers for them, stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from presets import LATENT_SCALE

MARK = 1.0
"""How far a mark moves latents, in their standard deviation: six times the noise by which a decoder
learns to bear a denoiser's errors (`stage_vae.ROUGH`)."""
STRENGTHS = (0.6, 2.0)
"""The least and the most of a mark by which a decoder learns to draw squares, as shares of it: what
a denoiser draws falls short of it at times, and guidance goes beyond it."""
MARKED_BY = 64
"""Pictures by which the direction is found."""


@torch.no_grad()
def mark_for(encoded: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """The mark, [c], of latents with unit variance: the direction in which those of pictures
    [n, h, w, 4] in 0..255 differ least, so that nothing in them is like it."""
    some = images[::max(1, len(images) // MARKED_BY)][:MARKED_BY]
    rgba = some.permute(0, 3, 1, 2).float() / 255
    latent = encoded(rgba[:, :3] * rgba[:, 3:] + 1 - rgba[:, 3:]).float()
    least = torch.linalg.eigh(torch.cov(latent.transpose(0, 1).flatten(1))).eigenvectors[:, 0]
    return MARK * least * least.sum().sign()


def marked(latent: torch.Tensor, which: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    """Latents [n, c, h, w] of an encoder, each moved by a share `which`, [n], of the mark."""
    shift = mark.to(latent)[:, None, None] / LATENT_SCALE
    return latent + which.to(latent)[:, None, None, None] * shift


def same_mark(one: torch.Tensor | list[float] | None, other: torch.Tensor | list[float] | None
              ) -> bool:
    """Whether two marks are one, or both are none: files keep six digits."""
    if one is None or other is None:
        return one is other
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    return one.shape == other.shape and bool(torch.allclose(one, other, atol=1e-4))
