"""What was made is found again, compared, used again; a picture from elsewhere brings its settings.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from served import Client
from visits import A1111, Visits, create, drop, expect, large

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

@pytest.fixture(scope="module", autouse=True)
def made(client: Client) -> list[dict]:
    """Three pictures, the newest last."""
    return [client.made(prompt=prompt, steps=steps, seed=seed)["pictures"][0]
            for prompt, steps, seed in (("a red apple", 2, 1), ("a yellow sun", 3, 2),
                                        ("a red boat", 3, 3))]


def gallery(page: Page) -> Locator:
    return page.get_by_role("region", name="Gallery")


def test_a_search_finds_pictures_and_their_settings_are_used_again(visits: Visits) -> None:
    page = visits.open()
    tiles = gallery(page).locator(".tile")
    expect(tiles).to_have_count(3)
    page.get_by_role("heading", name="Smalti").click()  # out of the prompt
    page.keyboard.press("/")
    expect(page.get_by_label("Search the gallery")).to_be_focused()
    page.keyboard.type("red")
    expect(tiles).to_have_count(2)
    gallery(page).get_by_label("a red apple").click()
    expect(large(page)).to_have_attribute("alt", "a red apple")
    page.get_by_role("button", name="Settings of this picture").click()
    settings = page.get_by_role("complementary", name="Settings of this picture")
    expect(settings).to_contain_text("a red apple")
    settings.get_by_role("button", name="Use Steps").click()
    expect(page.get_by_role("button", name="Steps: 2")).to_be_visible()
    settings.get_by_role("button", name="Use all").click()
    expect(page.get_by_role("button", name="Seed: 1")).to_be_visible()


def test_a_png_of_another_program_brings_its_settings(visits: Visits) -> None:
    page = visits.open()
    expect(create(page)).to_be_enabled()
    file, text = io.BytesIO(), PngInfo()
    text.add_text("parameters", A1111)
    Image.new("RGB", (128, 128)).save(file, "PNG", pnginfo=text)
    drop(page, file.getvalue())
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a green tree")
    expect(page.get_by_label("Negative prompt", exact=True)).to_have_value("blurry")
    for chip in ("Steps: 6", "Seed: 5", "Guidance: 3"):
        expect(page.get_by_role("button", name=chip)).to_be_visible()


def test_a_picture_without_settings_is_what_the_next_one_begins_with(visits: Visits) -> None:
    visits.expected.append("422")  # which is how the page learns that it carries none
    page = visits.open()
    expect(create(page)).to_be_enabled()
    file = io.BytesIO()
    Image.new("RGB", (300, 200), "green").save(file, "PNG")
    drop(page, file.getvalue(), "lawn.png")
    chip = page.get_by_role("button", name="The picture to begin with")
    expect(chip).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Size: 320 × 192"))).to_be_visible()
    page.reload()
    expect(chip).to_be_visible()
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_role("button", name="The picture to begin with")).to_be_visible()
    chip.click()
    page.get_by_role("button", name="Remove").click()
    expect(chip).to_have_count(0)
    expect(page.get_by_role("button", name="Size: 256 × 256")).to_be_visible()
    expect(other.get_by_role("button", name="The picture to begin with")).to_have_count(0)


def test_two_pictures_are_compared_with_a_divider(visits: Visits) -> None:
    page = visits.open()
    gallery(page).get_by_label("a red apple").click()
    page.get_by_role("button", name="Compare with another picture").click()
    gallery(page).get_by_label("a red boat").click()
    window = page.get_by_role("dialog", name="Compare")
    row = window.get_by_role("row", name=re.compile("^Steps"))
    expect(row.get_by_role("cell").first).to_have_text("2")
    expect(row.get_by_role("cell").last).to_have_text("3")
    divider = window.get_by_role("slider")
    expect(divider).to_be_focused()
    left = window.get_by_alt_text("Left: a red apple")
    before = left.evaluate("(each) => getComputedStyle(each).clipPath")
    page.keyboard.press("ArrowRight")
    expect(divider).to_have_value("51")
    assert left.evaluate("(each) => getComputedStyle(each).clipPath") != before
    page.keyboard.press("Escape")
    expect(window).to_have_count(0)


def test_the_stages_of_a_picture_open_into_their_kernels(visits: Visits) -> None:
    page = visits.open()
    gallery(page).get_by_label("a red boat").click()
    page.get_by_title("Where does the time go?").click()
    window = page.get_by_role("dialog", name="Where the time went")
    expect(window).to_contain_text("in all")
    window.get_by_role("button", name=re.compile("^denoise")).click()
    expect(window.get_by_role("columnheader", name="Expected")).to_be_visible()
    assert window.get_by_role("row").count() > 2
