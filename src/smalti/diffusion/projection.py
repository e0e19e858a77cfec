"""What a picture will be, while it is made, at no cost: each latent pixel becomes one colour.

The channels of an autoencoder's latents mean nearly the same everywhere in a picture, so a matrix
and an offset tell its colours at the size of the latents, without any weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image

from smalti.dataclass import dataclass
from smalti.diffusion.images import opaque
from smalti.diffusion.result import to_image
from smalti.models.config import FLUX_VAE, SD3_VAE, SD_VAE, SDXL_VAE, VaeConfig

Kind = tuple[int, tuple[int, ...], float, float]
"""What autoencoders that share a latent space have in common, in all that their files tell."""


@dataclass(frozen=True)
class Projection:
    """Colours in [-1, 1] of latents: `factors` f32[channels, 3] and `offset` f32[3].

    >>> gray = Projection(np.ones((1, 3), np.float32), np.zeros(3, np.float32))
    >>> gray(np.zeros((1, 2, 4), np.float32)).getpixel((0, 0))
    (128, 128, 128)
    """

    factors: np.ndarray
    offset: np.ndarray

    def __call__(self, latent: np.ndarray) -> Image.Image:
        """The RGB picture of a latent [channels, h, w] in model space, w x h pixels large."""
        colours = np.tensordot(self.factors, latent, axes=(0, 0)) + self.offset[:, None, None]
        return to_image(np.nan_to_num(colours))

    @classmethod
    def fitted(cls, latent: np.ndarray, picture: Image.Image) -> Projection:
        """The one that is nearest, by least squares, to what a decoder made of a latent."""
        channels, height, width = latent.shape
        small = opaque(picture).resize((width, height), Image.Resampling.BOX)
        known = np.concatenate([latent.reshape(channels, -1), np.ones((1, height * width))]).T
        wanted = np.asarray(small, np.float64).reshape(-1, 3) / 127.5 - 1
        found = np.linalg.lstsq(known, wanted, rcond=1e-6)[0].astype(np.float32)
        return cls(found[:-1], found[-1])


def kind_of(vae: VaeConfig) -> Kind:
    """What kind of latents an autoencoder has."""
    return vae.z_channels, vae.block_channels, vae.scaling_factor, vae.shift_factor


def published(vae: VaeConfig) -> Projection | None:
    """The projection for an autoencoder; None where none is known."""
    return PROJECTIONS.get(kind_of(vae))


def _matrix(*rows: tuple[float, float, float],
            offset: tuple[float, float, float] = (0, 0, 0)) -> Projection:
    return Projection(np.array(rows, np.float32), np.array(offset, np.float32))


# Least squares by the authors of InvokeAI, Apache License 2.0: invoke-ai/InvokeAI,
# invokeai/app/util/step_callback.py at 01d6f09b, SD 3's (of 3.5, which has the autoencoder of 3)
# rounded; SD's go back to E. Rucipe, Kevin Turner and torridgristle,
# https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204. Not checked with
# the autoencoders themselves. Others fitted the same anew (ComfyUI, comfy/latent_formats.py at
# 040a3243): the cosine between their factors and these is 0.95 for SD, 0.95 for SDXL, 0.97 for
# Flux, and 0.79 for SD 3, where theirs have a large offset and these none: its previews are the
# least sure.
SD = _matrix((0.3444, 0.1385, 0.0670), (0.1247, 0.4027, 0.1494), (-0.3192, 0.2513, 0.2103),
             (-0.1307, -0.1874, -0.7445))
SDXL = _matrix((0.3816, 0.4930, 0.5320), (-0.3753, 0.1631, 0.1739), (0.1770, 0.3588, -0.2048),
               (-0.4350, -0.2644, -0.4289))
SD3 = _matrix(
    (-0.0524, 0.0325, 0.0749), (-0.0581, 0.0076, 0.0573), (0.1614, 0.0127, -0.0377),
    (0.1442, 0.0846, 0.1594), (0.0489, 0.0056, -0.0669), (0.0519, 0.1922, 0.0626),
    (0.1539, 0.0482, 0.0710), (-0.0860, 0.0901, 0.1089), (-0.1240, -0.0677, 0.0034),
    (-0.0440, 0.0783, 0.0226), (0.0310, 0.0638, 0.0775), (-0.0132, 0.0855, -0.0877),
    (0.0646, 0.0591, 0.1326), (-0.0786, -0.0226, -0.1276), (-0.0992, -0.0801, -0.0626),
    (-0.0339, -0.0804, -0.0608))
FLUX = _matrix(
    (-0.0412, 0.0149, 0.0521), (0.0056, 0.0291, 0.0768), (0.0342, -0.0681, -0.0427),
    (-0.0258, 0.0092, 0.0463), (0.0863, 0.0784, 0.0547), (-0.0017, 0.0402, 0.0158),
    (0.0501, 0.1058, 0.1152), (-0.0209, -0.0218, -0.0329), (-0.0314, 0.0083, 0.0896),
    (0.0851, 0.0665, -0.0472), (-0.0534, 0.0238, -0.0024), (0.0452, -0.0026, 0.0048),
    (0.0892, 0.0831, 0.0881), (-0.1117, -0.0304, -0.0789), (0.0027, -0.0479, -0.0043),
    (-0.1146, -0.0827, -0.0598))

# Least squares over 18 pictures of the model that ships, by its decoder of before, which made
# 128x128 of the same latents (8 steps, guidance 4; three on coloured grounds), and the latents that
# they were made of. For ten others 0.086 of [-1, 1] off in the mean, where the best matrix for
# those is 0.075 off.
SHIPPED = _matrix(
    (-0.3639, 0.0870, -0.1156), (0.2710, -0.1154, 0.1899), (0.0912, -0.0019, -0.3230),
    (0.4062, 0.4648, 0.4177), (0.0358, 0.0222, 0.0270), (0.1328, 0.1246, 0.0319),
    (0.0073, 0.0522, -0.0116), (0.0570, 0.0131, 0.0116), (-0.0024, 0.0030, -0.0446),
    (0.0244, 0.0722, -0.0546), (-0.0031, -0.0561, -0.0283), (-0.0700, -0.0461, 0.0200),
    offset=(0.6486, 0.5591, 0.5165))
SHIPPED_KIND: Kind = (12, (16, 16, 32, 64, 64), 0.18215, 0.0)

PROJECTIONS: Mapping[Kind, Projection] = {
    kind_of(SD_VAE): SD, kind_of(SDXL_VAE): SDXL, kind_of(SD3_VAE): SD3, kind_of(FLUX_VAE): FLUX,
    SHIPPED_KIND: SHIPPED}
"""By the kind of latents: Stable Diffusion 1.x and 2.x, SDXL, 3 and 3.5, Flux and Chroma, and the
model that ships."""
