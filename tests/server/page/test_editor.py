"""What is painted is made anew and the rest stays; pictures become larger; tools undo and redo."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from served import Client
from visits import PHONE, Visits, create, expect, large, set_option

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

UNCHANGED = 2
"""Levels of 255 that a pixel may differ by where nothing is painted: it is stored as it was."""


@pytest.fixture
def made(client: Client) -> dict:
    """The newest picture of the gallery, which the stage shows."""
    return client.made(prompt="a red apple", steps=3)["pictures"][0]


def open_editor(page: Page) -> Locator:
    """The canvas of the editor, over the picture on the stage."""
    page.get_by_role("button", name="Edit", exact=True).click()
    canvas = page.get_by_role("application", name="The picture and its mask")
    expect(canvas).to_be_focused()
    return canvas


def stroke(canvas: Locator, *places: tuple[float, float]) -> None:
    """Paint from place to place, given as shares of the canvas around its middle."""
    box, mouse = canvas.bounding_box(), canvas.page.mouse
    assert box is not None
    side = min(box["width"], box["height"])
    points = [(box["x"] + box["width"] / 2 + x * side, box["y"] + box["height"] / 2 + y * side)
              for x, y in places]
    mouse.move(*points[0])
    mouse.down()
    for point in points[1:]:
        mouse.move(*point, steps=8)
    mouse.up()


def status(page: Page) -> Locator:
    return page.locator(".editor-status [role=status]")


def pixels(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"), np.int16)


def newest(client: Client) -> np.ndarray:
    picture = client.get("/api/pictures?limit=1").json["pictures"][0]
    return pixels(client.get(picture["file"]).content)


def test_what_is_painted_is_made_anew_and_the_rest_stays(
        visits: Visits, client: Client, made: dict) -> None:
    page = visits.open()
    canvas = open_editor(page)
    stroke(canvas, (-0.3, -0.3), (-0.1, -0.3), (-0.1, -0.1))
    expect(status(page)).to_contain_text("% is made anew")
    page.get_by_role("button", name="Use", exact=True).click()
    expect(canvas).to_have_count(0)
    expect(page.get_by_role("button", name="The picture to begin with")).to_be_visible()
    page.get_by_label("Prompt", exact=True).fill("a blue bird")
    set_option(page, "Steps", "Steps", "4")
    create(page).click()
    expect(large(page)).to_have_attribute("alt", "a blue bird")
    before, after = pixels(client.get(made["file"]).content), newest(client)
    change = np.abs(after - before).max(axis=2)
    assert change[:128, :128].max() > 20, "nothing was made anew where it was painted"
    assert change[160:, :].max() <= UNCHANGED and change[:, 180:].max() <= UNCHANGED


def test_a_picture_is_extended_and_what_was_there_stays(
        visits: Visits, client: Client, made: dict) -> None:
    page = visits.open()
    canvas = open_editor(page)
    page.get_by_label("Extend by").fill("64")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Extend to the right").click()
    expect(status(page)).to_contain_text("320×256")
    page.keyboard.press("Control+Enter")
    expect(canvas).to_have_count(0)
    page.get_by_label("Prompt", exact=True).fill("two red apples")
    set_option(page, "Steps", "Steps", "3")
    create(page).click()
    expect(large(page)).to_have_attribute("alt", "two red apples")
    before, after = pixels(client.get(made["file"]).content), newest(client)
    assert after.shape == (256, 320, 3)
    assert np.abs(after[:, :192] - before[:, :192]).max() <= UNCHANGED
    assert np.abs(after[:, 256:] - before[:, ::-1][:, :64]).max() > 20, "the new part is a mirror"


def test_the_tools_do_what_they_say_by_keys_alone(visits: Visits, made: dict) -> None:
    page = visits.open()
    canvas = open_editor(page)
    said, press = status(page), page.keyboard.press
    expect(said).to_contain_text("nothing masked")
    press("f")
    expect(said).to_contain_text("100 % is made anew")
    press("Control+z")
    expect(said).to_contain_text("nothing masked")
    press("Control+Shift+z")
    expect(said).to_contain_text("100 %")
    press("e")
    press("Enter")
    expect(said).to_contain_text("98 %")  # a circle of 38 pixels in 256 x 256
    press("i")
    expect(said).to_contain_text("2 %")
    press("Delete")
    expect(said).to_contain_text("nothing masked")
    press("b")
    for key in ("]", "]", "ArrowLeft", "Shift+ArrowUp", "Enter"):
        press(key)
    expect(said).to_contain_text("4 %")  # a circle of 56 pixels
    press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("Esc once more")
    press("Escape")
    expect(canvas).to_have_count(0)
    expect(page.get_by_role("button", name="Edit", exact=True)).to_be_focused()


def test_the_wheel_sizes_the_brush_and_with_ctrl_the_picture(visits: Visits, made: dict) -> None:
    page = visits.open()
    canvas = open_editor(page)
    canvas.hover()
    size = page.get_by_role("slider", name="Size")
    zoom = page.get_by_role("button", name="Show all")
    before, shown = int(size.input_value()), zoom.inner_text()
    page.mouse.wheel(0, -100)
    expect(size).not_to_have_value(str(before))
    assert int(size.input_value()) > before
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(zoom).not_to_have_text(shown)
    page.keyboard.press("0")
    expect(zoom).to_have_text(shown)


def test_fingers_paint_and_two_of_them_move_the_picture(visits: Visits, made: dict) -> None:
    page = visits.open(PHONE, has_touch=True, is_mobile=True)
    canvas = open_editor(page)
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = page.context.new_cdp_session(page)

    def touches(kind: str, *points: tuple[float, float]) -> None:
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [
            {"x": x + dx, "y": y + dy, "id": number}
            for number, (dx, dy) in enumerate(points)]})

    touches("touchStart", (-30, 0))
    touches("touchMove", (30, 0))
    touches("touchEnd")
    expect(status(page)).to_contain_text("% is made anew")
    painted, zoom = status(page).inner_text(), page.get_by_role("button", name="Show all")
    shown = zoom.inner_text()
    touches("touchStart", (-20, 0))
    touches("touchStart", (-20, 0), (20, 0))
    touches("touchMove", (-60, 0), (60, 0))
    touches("touchEnd")
    expect(zoom).not_to_have_text(shown)
    expect(status(page)).to_have_text(painted)  # two fingers have painted nothing


def test_a_file_is_opened_in_the_editor_and_what_is_none_is_refused_in_a_sentence(
        visits: Visits, made: dict) -> None:
    page = visits.open()
    open_editor(page)
    drop(page, "notes.png", b"no picture at all")
    expect(page.get_by_role("alert")).to_contain_text("“notes.png” is no picture")
    cut = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(cut, "PNG")
    drop(page, "cut.png", cut.getvalue()[:40])
    expect(page.get_by_role("alert")).to_contain_text("“cut.png” cannot be read")
    whole = io.BytesIO()
    Image.new("RGB", (200, 120), "red").save(whole, "WEBP")
    drop(page, "red.webp", whole.getvalue())
    expect(status(page)).to_contain_text("320×192")  # as many pixels as the model is made for


def drop(page: Page, name: str, content: bytes) -> None:
    """Drop a file on what floats over the page."""
    page.get_by_role("dialog").evaluate("""(target, [name, text]) => {
        const content = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([content], name));
        target.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
    }""", [name, base64.b64encode(content).decode()])
