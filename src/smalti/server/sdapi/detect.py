"""Preprocessors of ControlNet's extension: what becomes of a picture before a ControlNet reads it.

Those that need no network are here; all others are refused by name.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageFilter

from smalti.dataclass import dataclass
from smalti.diffusion.edges import HIGH, LOW, canny
from smalti.diffusion.images import opaque
from smalti.errors import InputError

Pixels = np.ndarray
RESOLUTION = 512
"""Pixels of the shorter side in which a picture is looked at, where nothing else is said."""
RESOLUTION_MIN, RESOLUTION_MAX = 64, 2048
PIXELS_MAX = RESOLUTION_MAX * RESOLUTION_MAX
"""That a module looks at: for the edges of these it takes half a gigabyte."""
TURN = threading.Lock()
"""One picture is looked at at a time, whatever clients send at once."""
DEFAULT = -1
"""A number that says: what is usual."""
GRADIENT_MAX = 2040
"""Of a picture of bytes: the sum of both Sobel windows."""
SIGMA_MAX = 128.0
"""Of a blur, in pixels: twice what the extension lets people choose."""
SAMPLING_MAX = 64.0
"""Pixels that become one, along a side, as the extension has it."""


@dataclass(frozen=True)
class Preprocessor:
    """`make` gives a picture of one, by two numbers from 0 to `most`, which are `usual` where none
    are given; it looks at it in its own size where it is not `sized`."""

    make: Callable[[Image.Image, float, float], Image.Image]
    usual: tuple[float, float] = (0, 0)
    most: float = math.inf
    sized: bool = True
    aliases: tuple[str, ...] = ()


def _edges(picture: Image.Image, low: float, high: float) -> Image.Image:
    return Image.fromarray(canny(np.asarray(picture), low, high)).convert("RGB")


def _inverted(picture: Image.Image, *_: float) -> Image.Image:
    return Image.fromarray(255 - np.asarray(picture))


def _above(picture: Image.Image, least: float, _: float) -> Image.Image:
    """White where a channel is above a threshold."""
    white = (np.asarray(picture) > least).any(axis=2)
    return Image.fromarray(np.where(white, 255, 0).astype(np.uint8)).convert("RGB")


def _blurred(picture: Image.Image, sigma: float, _: float) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(sigma))


def _sampled(picture: Image.Image, factor: float, _: float) -> Image.Image:
    """With fewer pixels, each the mean of those it stands for."""
    size = [max(1, int(extent / max(1.0, factor))) for extent in picture.size]
    return picture.resize((size[0], size[1]), Image.Resampling.BOX)


PREPROCESSORS = {
    "none": Preprocessor(lambda picture, *_: picture, sized=False),
    "canny": Preprocessor(_edges, (LOW, HIGH), GRADIENT_MAX),
    "invert (from white bg & black line)": Preprocessor(_inverted, sized=False,
                                                        aliases=("invert",)),
    "threshold": Preprocessor(_above, (127, 0), 255, aliases=("binary",)),
    "blur_gaussian": Preprocessor(_blurred, (9, 0), SIGMA_MAX),
    "tile_resample": Preprocessor(_sampled, (1, 0), SAMPLING_MAX, sized=False,
                                  aliases=("tile",)),
    "inpaint_global_harmonious": Preprocessor(lambda picture, *_: picture, sized=False,
                                              aliases=("inpaint",)),
}
"""By the names that the extension shows."""


def preprocessor(name: object) -> str:
    """The name of a preprocessor, however it is spelled. Raises InputError with all that there are.

    >>> preprocessor("Canny"), preprocessor(""), preprocessor("invert")
    ('canny', 'none', 'invert (from white bg & black line)')
    """
    said = (name or "none") if isinstance(name, str | None) else name
    for known, each in PREPROCESSORS.items():
        if isinstance(said, str) and said.lower() in (known, *each.aliases):
            return known
    raise InputError(f"the module {name!r:.80} is not there; there are "
                     f"{', '.join(PREPROCESSORS)}; other pictures are to be prepared before, and "
                     f"given with the module none")


def detected(picture: Image.Image, module: object, resolution: object = DEFAULT,
             first: object = DEFAULT, second: object = DEFAULT) -> Image.Image:
    """What a preprocessor makes of a picture, with its two numbers. Raises InputError."""
    made = PREPROCESSORS[preprocessor(module)]
    short = number("processor_res", resolution, RESOLUTION, RESOLUTION_MIN, RESOLUTION_MAX)
    numbers = [number(f"threshold_{letter}", given, usual, 0, made.most)
               for letter, given, usual in zip("ab", (first, second), made.usual, strict=True)]
    seen = opaque(picture)
    if made.sized:
        factor = short / min(seen.size)
        size = [max(1, round(extent * factor)) for extent in seen.size]
        if size[0] * size[1] > PIXELS_MAX:
            raise InputError(f"a picture of {seen.width} x {seen.height} becomes one of "
                             f"{size[0]} x {size[1]} for the module; expected at most "
                             f"{PIXELS_MAX >> 20} million pixels; cut it, or give a smaller "
                             f"processor_res")
        seen = seen.resize((size[0], size[1]), Image.Resampling.BOX if factor < 1 else
                           Image.Resampling.BICUBIC)
    with TURN:
        return made.make(seen, *numbers)


def number(what: str, given: object, usual: float, least: float, most: float) -> float:
    """A number, or the usual one. Raises InputError for one out of range."""
    if given is None or given == DEFAULT:
        return usual
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise InputError(f"{what} is {given!r:.80}; expected a number from {least:g} to {most:g}, "
                         f"or -1 for what is usual")
    return given
