"""How it looks, and to whom: light and dark, on a phone, to somebody who does not see it."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from served import Client
from visits import DESKTOP, LAPTOP, PHONE, Visits, create, expect, large

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

GRAVE = ("serious", "critical")
DARK_MAX, LIGHT_MIN = 60, 200
"""Of 255, how light the ground of a page is that is called dark or light."""


@pytest.fixture(scope="module", autouse=True)
def made(client: Client) -> list[dict]:
    """A few pictures, a job that failed, and none that run."""
    client.made(prompt="a boat", width=100)
    return [client.made(prompt="a red apple", steps=2, seed=seed)["pictures"][0]
            for seed in range(4)]


def findings(page: Page) -> list[str]:
    """What axe-core finds that keeps somebody from using the page."""
    from axe_playwright_python.sync_playwright import Axe

    page.wait_for_timeout(250)  # what fades in is then there in its full colour
    found = Axe().run(page)
    return [f"{rule['id']} ({rule['impact']}): {node['html'][:200]} {node['any'][:1]}"
            for rule in found.response["violations"] if rule["impact"] in GRAVE
            for node in rule["nodes"]]


def lightness(page: Page) -> int:
    """Of what most of the page shows, 0 to 255."""
    with Image.open(io.BytesIO(page.screenshot())) as shown:
        return int(np.median(np.asarray(shown.convert("L"))))


def overflow(page: Page) -> list[str]:
    """Elements that reach beyond the right edge of the window, where nothing scrolls them."""
    return page.evaluate("""() => [...document.querySelectorAll("body *")].filter((each) => {
        const box = each.getBoundingClientRect();
        if (box.width === 0 || box.right <= innerWidth + 1 || box.left >= innerWidth) return false;
        for (let up = each.parentElement; up; up = up.parentElement) {
            if (getComputedStyle(up).overflowX !== "visible") return false;
        }
        return true;
    }).map((each) => each.outerHTML.slice(0, 120))""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_grave(visits: Visits, size: tuple[int, int], scheme: str) -> None:
    page = visits.open(size, color_scheme=scheme)
    expect(large(page)).to_be_visible()
    assert not findings(page), "with a picture"
    page.get_by_role("button", name="Edit", exact=True).click()
    expect(page.get_by_role("application")).to_be_visible()
    assert not findings(page), "with the editor"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave_in_what_floats(visits: Visits, scheme: str) -> None:
    page = visits.open(color_scheme=scheme)
    expect(large(page)).to_be_visible()
    for opened in ("Help and keys", "More", "Steps: "):
        page.get_by_role("button", name=opened).first.click()
        assert not findings(page), opened
        page.keyboard.press("Escape")
    page.get_by_title("Where does the time go?").click()
    page.get_by_role("button", name=re.compile("^denoise")).click()
    assert not findings(page), "where the time went"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compare with another picture").click()
    page.get_by_role("region", name="Gallery").locator(".tile").nth(2).click()
    expect(page.get_by_role("dialog", name="Compare").get_by_text("What differs")).to_be_visible()
    assert not findings(page), "comparing"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_grave_on_an_empty_page(
        visits: Visits, scheme: str, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    monkeypatch.setattr(client.site.archive, "pictures", lambda *args, **options: [])
    monkeypatch.setattr(client.site.archive, "jobs", lambda *args, **options: [])
    page = visits.open(color_scheme=scheme)
    expect(page.get_by_text("Your first picture is one click away")).to_be_visible()
    assert not findings(page)


def test_dark_and_light_follow_the_system_until_one_is_chosen(visits: Visits) -> None:
    page = visits.open(color_scheme="dark")
    expect(create(page)).to_be_visible()
    assert lightness(page) <= DARK_MAX
    page.emulate_media(color_scheme="light")
    assert lightness(page) >= LIGHT_MIN
    page.get_by_role("button", name="Light or dark").click()
    page.get_by_role("button", name="Dark", exact=True).click()
    page.wait_for_timeout(250)
    assert lightness(page) <= DARK_MAX
    page.reload()
    expect(create(page)).to_be_visible()
    assert lightness(page) <= DARK_MAX


ZOOMED = (DESKTOP[0] // 2, DESKTOP[1] // 2)
"""What a desktop shows at 200 %."""


@pytest.mark.parametrize("size", [DESKTOP, LAPTOP, ZOOMED, PHONE],
                         ids=["desktop", "laptop", "zoomed", "phone"])
def test_nothing_is_cut_off(visits: Visits, size: tuple[int, int]) -> None:
    page = visits.open(size)
    expect(large(page)).to_be_visible()
    assert not overflow(page)
    box, window = create(page).bounding_box(), page.viewport_size
    assert box is not None and window is not None
    assert box["y"] + box["height"] <= window["height"], "Create is below the edge"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_has_queue_and_gallery_as_sheets(visits: Visits) -> None:
    page = visits.open(PHONE, has_touch=True, is_mobile=True)
    expect(large(page)).to_be_visible()
    gallery = page.get_by_role("region", name="Gallery")
    expect(gallery).not_to_be_in_viewport()
    page.get_by_role("button", name="Gallery", exact=True).tap()
    expect(gallery).to_be_in_viewport()
    gallery.locator(".tile").nth(2).tap()
    expect(large(page)).to_be_in_viewport()


def test_windows_fit_on_a_phone(visits: Visits) -> None:
    page = visits.open(PHONE, has_touch=True, is_mobile=True)
    expect(large(page)).to_be_visible()
    page.get_by_title("Where does the time go?").tap()
    page.get_by_role("button", name=re.compile("^denoise")).tap()
    expect(page.get_by_role("columnheader", name="Kernel")).to_be_visible()
    assert fits(page), "where the time went"
    page.get_by_role("button", name="Close", exact=True).tap()
    page.get_by_role("button", name="Compare with another picture").tap()
    page.get_by_role("region", name="Gallery").locator(".tile").nth(2).tap()
    expect(page.get_by_text("What differs")).to_be_visible()
    assert fits(page), "comparing"


def fits(page: Page) -> bool:
    """Whether the window over the page is within the screen."""
    box, screen = page.get_by_role("dialog").bounding_box(), page.viewport_size
    assert box is not None and screen is not None
    return box["x"] >= 0 and box["x"] + box["width"] <= screen["width"] and \
        box["y"] >= 0 and box["y"] + box["height"] <= screen["height"]


def test_a_screen_reader_hears_how_far_it_is(visits: Visits) -> None:
    page = visits.open()
    create(page).click()
    expect(page.get_by_role("status").last).to_have_text("The picture is made")
