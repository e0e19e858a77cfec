"""Decoding of picture files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from smalti.errors import InputError
from smalti.frontend.onnx.registry import HostNodeCall, host

FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
MODES = {"RGB": ("RGB", slice(None)), "BGR": ("RGB", slice(None, None, -1)),
         "Grayscale": ("L", slice(None))}


@host("ImageDecoder")
def decoded(call: HostNodeCall) -> list[np.ndarray]:
    """The picture [h, w, channels] in a file given as bytes; an empty array if there is none."""
    order = call.text("pixel_format")
    if order not in MODES or call[0].dtype != np.uint8:
        raise InputError(f"{call[0].dtype} as {order!r}; bytes as one of {list(MODES)} are "
                         f"expected")
    mode, channels = MODES[order]
    try:
        with Image.open(io.BytesIO(call[0].tobytes()), formats=FORMATS) as image:
            pixels = np.array(image.convert(mode))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return [np.zeros((0, 0, len(mode)), np.uint8)]
    return [np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1)[..., channels])]
