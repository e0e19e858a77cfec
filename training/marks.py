"""Marks in latents, for styles that are the same picture drawn otherwise: squares and lines. The
encoder of the model that ships gives of a picture in squares what it gives of the same picture
without them, and lines alone are other latents than those of the thing, to be learnt once more. So
latents of such a picture are those of the picture in its colours and a constant, the mark of the
style, by which the decoder knows how to draw it; a denoiser learns from the words to draw the mark.
All other latents, and the denoisers for them, stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import torch
from presets import LATENT_SCALE
from scene import Scene

MARKED = ("pixel", "outline")
"""Styles that may have a mark (`scene.STYLES`)."""
MARK = 1.0
"""How far a mark moves latents, in their standard deviation: six times the noise by which a decoder
learns to bear a denoiser's errors (`stage_vae.ROUGH`)."""
STRENGTHS = (0.6, 2.0)
"""The least and the most of a mark by which a decoder learns its style, as shares of it: what a
denoiser draws falls short of it at times, and guidance goes beyond it."""
MARKED_BY = 64
"""Pictures by which directions are found."""
Marks = dict[str, torch.Tensor]
"""The mark, [c], of each style that has one."""


def style_by_mark(scene: Scene, styles: Container[str]) -> str:
    """The style whose mark the latent of a scene has where these styles have one; empty for none.
    A scene without things has none, as its caption names no style. Lines have theirs on white
    alone: on a colour a decoder would have to bring that from the ground into what lines enclose.

    >>> from scene import Thing
    >>> style_by_mark(Scene((Thing("cat face"),), "white", "outline"), ["pixel", "outline"])
    'outline'
    >>> style_by_mark(Scene((Thing("cat face"),), "blue", "outline"), ["pixel", "outline"])
    ''
    """
    coloured = scene.style == "outline" and scene.ground != "white"
    return scene.style if scene.style in styles and scene.things and not coloured else ""


@torch.no_grad()
def marks_for(encoded: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor,
              styles: Iterable[str], known: Mapping[str, torch.Tensor]) -> Marks:
    """The known marks and those of these styles beside them, of latents with unit variance: each in
    the direction, across all others, in which those of pictures [n, h, w, 4] in 0..255 differ
    least, so that nothing in them is like it."""
    some = images[::max(1, len(images) // MARKED_BY)][:MARKED_BY]
    rgba = some.permute(0, 3, 1, 2).float() / 255
    latent = encoded(rgba[:, :3] * rgba[:, 3:] + 1 - rgba[:, 3:]).float()
    apart, marks = torch.cov(latent.transpose(0, 1).flatten(1)), dict(known)
    for style in styles:
        if style in marks:
            continue
        taken = [mark / mark.norm() for mark in marks.values()]
        across = torch.eye(len(apart)) - sum(torch.outer(each, each) for each in taken)
        # what lies along a known mark differs more than anything, so it is never the least
        beside = apart.trace() * (torch.eye(len(apart)) - across)
        least = torch.linalg.eigh(across @ apart @ across + beside).eigenvectors[:, 0]
        marks[style] = MARK * least * least.sum().sign()
    return marks


def marked(latent: torch.Tensor, styles: Sequence[str], marks: Mapping[str, torch.Tensor],
           shares: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Latents [n, c, h, w] of an encoder, each moved by the mark of its style where that has one;
    by shares of it, [n], where they are given."""
    none = latent.new_zeros(latent.shape[1])
    shift = torch.stack([marks.get(style, none).to(latent) for style in styles]) / LATENT_SCALE
    return latent + (shift * torch.as_tensor(shares).to(latent).reshape(-1, 1))[:, :, None, None]


def same_marks(one: Mapping[str, torch.Tensor | list[float]],
               other: Mapping[str, torch.Tensor | list[float]]) -> bool:
    """Whether the same styles have the same marks: files keep six digits."""
    if one.keys() != other.keys():
        return False
    pairs = [(torch.as_tensor(one[style]), torch.as_tensor(other[style])) for style in one]
    return all(mark.shape == its.shape and bool(torch.allclose(mark, its, atol=1e-4))
               for mark, its in pairs)
