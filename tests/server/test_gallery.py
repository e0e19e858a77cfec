"""Pictures of the gallery in other formats: what is transparent stays so, or becomes white."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from smalti.diffusion.made_picture import MadePicture
from smalti.diffusion.metadata import carried
from smalti.server.gallery import encoded, is_transparent

CLEAR = (16, 8)
"""The size of what can be seen through, the upper half, where colours are black."""


def png(mode: str, opacity: int = 0) -> bytes:
    picture = Image.new(mode, (16, 16), "red")
    if mode == "RGBA":
        picture.paste((0, 0, 0, opacity), (0, 0, *CLEAR))
    stream = io.BytesIO()
    MadePicture.of(picture, "a red square, Steps: 2").save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(("kind", "flat", "mode"), [
    ("PNG", False, "RGBA"), ("WEBP", False, "RGBA"), ("JPEG", False, "RGB"), ("PNG", True, "RGB"),
    ("WEBP", True, "RGB"), ("JPEG", True, "RGB")])
def test_what_is_transparent_stays_so_or_becomes_white(kind: str, flat: bool, mode: str) -> None:
    content = encoded(png("RGBA"), kind, 90, flat)
    assert is_transparent(png("RGBA")) and (kind != "PNG" or is_transparent(content) != flat)
    with Image.open(io.BytesIO(content)) as shown:
        assert (shown.format, shown.mode, "Steps: 2" in carried(shown)) == (kind, mode, True)
        above, below = shown.getpixel((8, 3)), shown.getpixel((8, 13))
    assert below[0] > 240 and max(below[1:3]) < 16
    assert above[3] == 0 if mode == "RGBA" else min(above) > 240


@pytest.mark.parametrize("content", [png("RGB"), png("RGBA", opacity=255)])
def test_what_is_opaque_is_known_as_such(content: bytes) -> None:
    assert not is_transparent(content) and encoded(content, "PNG", 90) == content
