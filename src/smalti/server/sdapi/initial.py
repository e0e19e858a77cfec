"""What img2img of A1111's API begins with, and what of it is made anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from smalti.diffusion.images import opaque
from smalti.diffusion.options import SIDE_MAX
from smalti.errors import InputError
from smalti.server.asked import as_base64, picture

STRENGTH = 0.75
BLUR = 4
FILL, ORIGINAL = 0, 1
RADII = (256, 64, 16, 4, 2, 1)
"""Of the blurs, in pixels, that carry colours under a mask: far ones first, near ones over them."""

TURN = threading.Lock()
"""One picture is filled at a time, whatever clients send at once."""

Change = Callable[[Image.Image], Image.Image]


def init_image(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a picture that begins with another one. Raises InputError."""
    images = fields["init_images"]
    if not isinstance(images, list) or not images:
        raise InputError(f"init_images is {images!r:.80}; expected a list of one picture")
    if len(images) > 1:
        raise InputError("init_images holds several pictures; expected one")
    mode = fields.get("resize_mode", 0)
    if mode not in (0, 1):
        raise InputError(f"resize_mode is {mode!r:.80}; expected 0, resize, or 1, crop and resize")
    fit = _cropped(fields) if mode == 1 else None
    found = {"image": _changed(images[0], "init_images", fit),
             "strength": fields.get("denoising_strength", STRENGTH)}
    if fields.get("mask") is None:
        return found
    fill = fields.get("inpainting_fill")
    if fill not in (FILL, ORIGINAL, None):
        raise InputError(f"inpainting_fill is {fill!r:.80}; expected 1: what is under the mask is "
                         f"where the new picture begins, or 0: colours from around it are")
    invert = ImageOps.invert if fields.get("inpainting_mask_invert") else None
    found |= {"mask": _changed(fields["mask"], "mask", fit, invert),
              "mask_blur": fields.get("mask_blur", BLUR)}
    if fill != ORIGINAL:  # nor where it is not said: that is A1111's own default
        found["image"] = as_base64(filled(picture(found["image"], "init_images"),
                                          picture(found["mask"], "mask")))
    if fields.get("inpaint_full_res", True):
        found |= {"only_masked": True, "padding": fields.get("inpaint_full_res_padding", 0)}
    return found


def _cropped(fields: Mapping[str, Any]) -> Change:
    """A picture cut to the sides that are asked for, and resized."""
    width, height = (fields.get(side, 512) for side in ("width", "height"))
    if not all(isinstance(side, int) and 1 <= side <= SIDE_MAX for side in (width, height)):
        raise InputError(f"width and height are {width!r:.40} and {height!r:.40}; expected whole "
                         f"numbers")
    return lambda shown: ImageOps.fit(shown, (width, height), Image.Resampling.LANCZOS)


def _changed(text: object, what: str, fit: Change | None, then: Change | None = None) -> Any:
    """A picture in base64, changed where it has to be."""
    if fit is None and then is None:
        return text
    shown = picture(text, what)
    if then is not None:
        shown = then(shown.convert("L"))
    return as_base64(shown if fit is None else fit(shown))


def filled(shown: Image.Image, mask: Image.Image) -> Image.Image:
    """A picture in which colours from around it flow under a mask.

    >>> mask = Image.new("L", (8, 8))
    >>> mask.paste(255, (2, 2, 6, 6))
    >>> red = Image.new("RGB", (8, 8), "red")
    >>> holed = red.copy()
    >>> holed.paste((0, 0, 255), (2, 2, 6, 6))
    >>> filled(holed, mask).getpixel((4, 4))
    (255, 0, 0)
    """
    whole = opaque(shown)
    known = np.asarray(mask.convert("L").resize(whole.size)) == 0
    if known.all() or not known.any():
        return whole
    pixels = np.asarray(whole)
    kept = Image.fromarray(pixels * known[..., None])
    weight = Image.fromarray(np.where(known, 255, 0).astype(np.uint8))
    with TURN:
        result = np.broadcast_to(pixels[known].mean(axis=0, dtype=np.float64), pixels.shape)
        result = result.astype(np.float32)
        for radius in RADII:
            blur = ImageFilter.GaussianBlur(radius)
            share = np.asarray(weight.filter(blur), np.float32)[..., None] / 255
            result *= 1 - share
            result += np.asarray(kept.filter(blur), np.float32)
    result = np.where(known[..., None], pixels, result)
    return Image.fromarray(np.rint(result).astype(np.uint8))
