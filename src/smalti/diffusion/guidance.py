"""Classifier-free guidance: what the prompt adds, made stronger.

Ho & Salimans 2022 (arXiv:2207.12598): out = uncond + scale * (cond - uncond). Both are evaluated
in one batch of two, so that the network's weights are read once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from smalti.errors import InputError

Floats = npt.NDArray[np.float32]
UNet = Callable[[Floats, Floats, Floats], Floats]
"""(latents (n, 4, h, w), timesteps (n,), context (n, 77, d)) -> (n, 4, h, w), all float32."""


class Guidance:
    """A network with prompts and guidance scale filled in.

    `cond` and `uncond` are embeddings of prompt and negative prompt, (1 or batch, 77, d). At scale
    1 the negative prompt has no influence and is not evaluated. Raises `InputError` for shapes that
    do not fit together.

    >>> def unet(latents, timesteps, context):
    ...     return latents * context.mean(axis=(1, 2))[:, None, None, None]
    >>> prompt, negative = np.full((1, 77, 8), 3, np.float32), np.ones((1, 77, 8), np.float32)
    >>> guided = Guidance(unet, prompt, negative, scale=2.0)
    >>> float(guided(np.ones((1, 4, 8, 8), np.float32), 999.0)[0, 0, 0, 0])  # 1 + 2 * (3 - 1)
    5.0
    """

    def __init__(self, unet: UNet, cond: Floats, uncond: Floats, scale: float) -> None:
        if cond.ndim != 3 or cond.shape[1:] != uncond.shape[1:]:
            raise InputError(
                f"prompt embeddings have shapes {cond.shape} and {uncond.shape};"
                " expected (batch, positions, width) for both, with the same positions and width"
            )
        self.unet = unet
        self.cond = cond
        self.uncond = uncond
        self.scale = float(scale)

    @property
    def batch_factor(self) -> int:
        """How many network evaluations there are per image: 2, or 1 at scale 1."""
        return 1 if self.scale == 1.0 else 2

    def __call__(self, latents: Floats, timestep: float) -> Floats:
        """The guided output of the network for `latents` (batch, 4, h, w)."""
        batch = len(latents)
        if self.scale == 1.0:
            return self.unet(latents, _repeated(timestep, batch), _for_batch(self.cond, batch))
        both = np.concatenate([latents, latents])
        contexts = np.concatenate([_for_batch(self.cond, batch), _for_batch(self.uncond, batch)])
        cond, uncond = np.split(self.unet(both, _repeated(timestep, 2 * batch), contexts), 2)
        return uncond + (cond - uncond) * self.scale


def _repeated(timestep: float, count: int) -> Floats:
    return np.full(count, timestep, np.float32)


def _for_batch(embedding: Floats, batch: int) -> Floats:
    """One embedding for every image, or one each."""
    if len(embedding) not in (1, batch):
        raise InputError(f"{len(embedding)} prompt embeddings for {batch} images; expected 1 each")
    return np.broadcast_to(embedding, (batch, *embedding.shape[1:]))
