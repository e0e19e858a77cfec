"""The chart: lengths in proportion, the same shapes as SVG and PNG."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from PIL import Image

from smalti.benchmark.chart import OURS, Box, Group, Words, chart, png, svg

GROUPS = [Group("UNet <step>", (("Smalti", 1.0), ("PyTorch", 4.0))),
          Group("TinyCNN", (("Smalti", 3e-5), ("OpenVINO", 1e-5), ("PyTorch", 6e-5)))]
DRAWING = chart(GROUPS, "Title", "subtitle")
SPACE = "{http://www.w3.org/2000/svg}"


def bars() -> list[Box]:
    """Boxes that are no keys of the legend."""
    legend = 3
    return [shape for shape in DRAWING.shapes if isinstance(shape, Box)][legend:]


def test_bars_are_in_proportion_within_a_group() -> None:
    found = bars()
    assert len(found) == 5
    assert found[1].width / found[0].width == pytest.approx(4)
    assert found[4].width / found[3].width == pytest.approx(6)
    assert found[1].width == found[4].width
    assert [box.color == OURS for box in found] == [True, False, True, False, False]
    assert found[1].color == found[4].color != found[3].color


def test_everything_lies_on_the_page_and_nothing_overlaps() -> None:
    found = bars()
    for above, below in zip(found, found[1:], strict=False):
        assert above.y + above.height < below.y
    for shape in DRAWING.shapes:
        assert 0 <= shape.x < DRAWING.width and 0 <= shape.y < DRAWING.height
    assert found[-1].y + found[-1].height <= DRAWING.height


def test_times_stand_behind_their_bars() -> None:
    words = [shape.text for shape in DRAWING.shapes if isinstance(shape, Words)]
    assert words[-3:] == ["30.0 us", "10.0 us", "60.0 us"] and "4.00 s" in words


def test_svg_is_well_formed_and_has_every_shape() -> None:
    root = ElementTree.fromstring(svg(DRAWING))
    assert root.get("viewBox") == f"0 0 {DRAWING.width} {DRAWING.height}"
    texts = [element.text for element in root.iter(f"{SPACE}text")]
    assert "UNet <step>" in texts
    page = 1
    assert len(list(root.iter(f"{SPACE}rect"))) + len(texts) == len(DRAWING.shapes) + page


def test_png_has_the_colours_where_the_bars_are() -> None:
    with Image.open(io.BytesIO(png(DRAWING, scale=2))) as image:
        assert image.size == (2 * DRAWING.width, 2 * DRAWING.height)
        for box in bars():
            middle = int(2 * box.x + box.width), int(2 * box.y + box.height)
            assert "#{:02x}{:02x}{:02x}".format(*image.getpixel(middle)) == box.color
        assert image.getpixel((2 * DRAWING.width - 1, 0)) == (255, 255, 255)
