"""What a walk from a picture starts from, and what of it is known all along.

Any model can make a part of a picture anew: its estimate of the clean latents is replaced by those
of the picture where the mask is 0 (Lugmayr et al. 2022, "RePaint", arXiv:2201.09865, without its
repetitions). Some read the picture besides, as channels behind those of the latents, or as tokens:

    edit     z latents of the picture, not scaled in UNets but for EDM (InstructPix2Pix)
    control  z latents of the picture (FLUX.1 Canny and Depth)
    inpaint  the mask, z latents of the picture without what is masked (Stable Diffusion)
    fill     the same latents, f x f pixels of the mask as channels (FLUX.1 Fill)
    reference  latents of the picture, of FLUX.2 and Qwen-Image-Edit also of others, which become
               tokens; may be left out, but of Qwen-Image-Edit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from PIL import Image

from smalti.dataclass import dataclass
from smalti.diffusion.conditioning import Prompts
from smalti.diffusion.denoiser import BESIDE, Conditioning
from smalti.diffusion.encoding import encoded, to_model_space
from smalti.diffusion.guidance import ImageGuidance
from smalti.diffusion.images import as_pixels
from smalti.diffusion.img2img import Img2Img
from smalti.diffusion.init_image import HALF, InitImage, as_read
from smalti.diffusion.noise import NoiseLevels
from smalti.diffusion.purpose import EDIT, REFERRING, TEXT, purpose
from smalti.diffusion.samplers import initial_latents
from smalti.diffusion.samplers.walk import Denoise
from smalti.diffusion.submodels import Submodels
from smalti.errors import InputError
from smalti.models.config import ModelConfig
from smalti.models.flux import REFERENCE

Floats = np.ndarray


@dataclass(frozen=True)
class Start:
    """What a walk starts from: latents `clean` [z, h, w] or [pictures, z, h, w], which are changed
    as `change` says, or noise alone without them.

    Where `mask` [h, w] is 0 they are known all along, which is None where nothing is. `beside` is
    what the network reads besides, by the names of its inputs; `pictures` are what text encoders
    may read with the prompts.
    """

    change: Img2Img | None = None
    clean: Floats | None = None
    mask: Floats | None = None
    beside: Conditioning = field(default_factory=dict)
    pictures: Sequence[Image.Image] = ()

    def steps(self, steps: int) -> int:
        """The steps, of so many from noise to picture, that are done: the last ones."""
        return steps if self.change is None else self.change.steps(steps)

    def noised(self, noise: Floats, sigmas: Sequence[float], levels: NoiseLevels) -> Floats:
        """The latents at the first of these levels."""
        if self.clean is None:
            return initial_latents(noise, sigmas)
        return levels.noised(self.clean, noise, sigmas[0])

    def known(self, denoise: Denoise) -> Denoise:
        """`denoise` with what is known."""
        if self.mask is None or self.clean is None:
            return denoise
        return KnownLatents(denoise, self.clean, self.mask)

    def steered(self, prompts: Prompts) -> Prompts:
        """The prompts, with what the network reads besides."""
        return prompts.beside(self.beside) if self.beside else prompts

    def image_guidance(self, negative: Conditioning) -> ImageGuidance | None:
        """How the picture steers, where it does so with a strength of its own."""
        if self.change is None or self.change.image_guidance is None:
            return None
        return ImageGuidance({**negative, BESIDE: np.zeros_like(self.beside[BESIDE])},
                             self.change.image_guidance)


FROM_NOISE = Start()


@dataclass(frozen=True)
class KnownLatents:
    """`denoise` of latents whose clean ones are known where `mask` [h, w] is 0."""

    denoise: Denoise
    clean: Floats
    mask: Floats

    def __call__(self, x: Floats, sigma: float) -> Floats:
        return self._joined(self.denoise(x, sigma))

    def both(self, x: Floats, sigma: float) -> tuple[Floats, Floats]:
        """With guidance, and for the negative prompt alone."""
        guided, negative = self.denoise.both(x, sigma)
        return self._joined(guided), self._joined(negative)

    def _joined(self, estimate: Floats) -> Floats:
        return estimate * self.mask + self.clean * (1 - self.mask)


def check_purpose(config: ModelConfig, source: InitImage | None, larger: bool) -> None:
    """Raise InputError for a model that changes a picture where none is given, and for a picture
    where a second, `larger` pass is to be."""
    if source is not None and larger:
        raise InputError("hires is for pictures that are made from noise alone; of a picture that "
                         "is given, ask for a larger width and height")
    if source is None and config.denoiser.needs_reference:
        raise InputError("this model changes pictures, and none is given; with a prompt alone it "
                         "makes none; give an image, or use a model for text to image")
    if source is None and purpose(config) not in (TEXT, REFERRING):
        found, latent = config.denoiser.in_channels, config.vae.z_channels
        raise InputError(f"this model reads {found} channels, {latent} of the picture that it makes"
                         f" and others of one that it is given; with a prompt alone it makes none;"
                         f" give an image, or use a model for text to image")


def start(models: Submodels, source: InitImage, filled: bool = False) -> Start:
    """Encode what a walk starts from, and what the network reads besides. Where the picture is
    `filled` by a ControlNet, that alone is told what is known of it, as some models are."""
    config, change = models.checkpoint.config, source.change
    kind, factor = purpose(config), config.vae.downscale
    if kind == REFERRING:
        return _referring(models, source)
    if filled and change.strength == 1:
        return Start(change)
    pixels = source.pixels()
    mean = encoded(models, pixels)
    latents, masked = to_model_space(models, mean), source.masked()
    clean = None if kind != TEXT and change.strength == 1 and source.mask is None else latents
    known = None if source.mask is None else largest(masked, factor)
    if kind == TEXT:
        return Start(change, latents, None if filled else known)
    if kind in (EDIT, "control"):
        scaled = kind != EDIT or config.prediction.startswith("edm")
        return Start(change, clean, known, {BESIDE: (latents if scaled else mean)[None]})
    hidden = (masked > HALF).astype(np.float32)
    seen = to_model_space(models, encoded(models, pixels * (1 - hidden)))
    channels = ([largest(hidden, factor)[None], seen] if kind == "inpaint" else
                [seen, as_channels(hidden, factor)])
    return Start(change, None if change.strength == 1 else latents,
                 beside={BESIDE: np.concatenate(channels)[None]})


def _referring(models: Submodels, source: InitImage) -> Start:
    """The same for a network that reads pictures as tokens: the first is the one that is changed,
    of which no latents are needed but where it shows through. There it is stretched, as its mask
    is, and as what is made is put back."""
    config, change = models.checkpoint.config, source.change
    found: dict[tuple[int, tuple[int, int]], Floats] = {}

    def latents(number: int, size: tuple[int, int]) -> Floats:
        if (number, size) not in found:
            pixels = (source.pixels() if number == 0 and source.mask is not None else
                      as_pixels(as_read(read[number], size, config)))
            found[number, size] = to_model_space(models, encoded(models, pixels))
        return found[number, size]

    read, made = [source.shown, *source.others], (source.width, source.height)
    beside = {f"{REFERENCE}{number}": latents(number, size)[None]
              for number, size in enumerate(source.read_by(config))}
    begun = change.strength < 1 or source.mask is not None
    known = None if source.mask is None else largest(source.masked(), config.vae.downscale)
    return Start(change, latents(0, made) if begun else None, known, beside, read)


def largest(mask: Floats, factor: int) -> Floats:
    """The largest value of each block of `factor` x `factor` pixels: what a latent pixel shows is
    made anew where any of it is.

    >>> largest(np.eye(4), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    height, width = mask.shape
    return mask.reshape(height // factor, factor, width // factor, factor).max(axis=(1, 3))


def as_channels(mask: Floats, factor: int) -> Floats:
    """The pixels of each block as channels [factor * factor, h, w], row by row.

    >>> as_channels(np.arange(4.0).reshape(2, 2), 2).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    height, width = (extent // factor for extent in mask.shape)
    blocks = mask.reshape(height, factor, width, factor).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(blocks).reshape(factor * factor, height, width)
