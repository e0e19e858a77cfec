"""Files of pictures are the same, whichever zlib packs them."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smalti.diffusion.made_picture import MadePicture, encoded

PILLOW = {"wbits": 15, "memLevel": 9}
"""How Pillow calls zlib."""


def data_of(png: bytes) -> bytes:
    """The packed pixels in a PNG file: what is in its chunks IDAT."""
    at, found = 8, b""
    while at < len(png):
        size = int.from_bytes(png[at:at + 4], "big")
        if png[at + 4:at + 8] == b"IDAT":
            found += png[at + 8:at + 8 + size]
        at += 12 + size
    return found


@pytest.mark.parametrize("text", ["", "a red apple"])
def test_png_files_have_runs_and_no_other_matches(text: str) -> None:
    """By which any zlib gives these bytes: Python's here, Pillow's own in the file."""
    rows = np.cumsum(np.random.default_rng(0).integers(-3, 4, (90, 70, 3)), axis=1) + 128
    plain = Image.fromarray(np.tile(rows.clip(0, 255).astype(np.uint8), (3, 2, 1)))
    picture = MadePicture.of(plain, text) if text else plain
    packed = data_of(encoded(picture, Path("picture.png")))
    engine = zlib.compressobj(strategy=zlib.Z_RLE, **PILLOW)
    assert packed == engine.compress(zlib.decompress(packed)) + engine.flush()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(
        encoded(picture, Path("picture.png"))))), np.asarray(plain))


def test_who_asks_for_smaller_files_has_them() -> None:
    picture, sizes = MadePicture.of(Image.linear_gradient("L").convert("RGB"), "grey"), []
    for asked in ({}, {"compress_level": 9}):
        stream = io.BytesIO()
        picture.save(stream, "PNG", **asked)
        sizes.append(len(stream.getvalue()))
    assert sizes[1] < sizes[0]
