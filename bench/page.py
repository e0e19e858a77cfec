"""Pictures of the page for docs/page.md, made in Chromium: python bench/page.py

They are small WebP files in docs/images. Needs Chromium and pip install ".[browser]".
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from served import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BYTES_MAX = 150 << 10
"""Of one picture: a page with five of them is there at once."""
QUALITY = 82
"""Of WebP: text stays sharp."""
DESKTOP, PHONE = (1280, 800), (390, 844)
SETTLED_MS = 400
"""After which nothing moves."""
PROMPTS = ("a red apple", "a yellow sun", "a sailing boat", "a green tree", "a red heart", "a rose",
           "a grey cat", "an owl", "a rocket", "a house", "a rainbow", "a birthday cake",
           "a blue bird", "a butterfly", "a sunflower")
"""What the shipped model draws; the last one is seen large."""
MANY = 300
"""Steps of a picture that is still being made when it is looked at."""
MADE_SHARE = 0.3
"""How much of it is made then."""


def opened(browser: Browser, server: Server, size: tuple[int, int], scheme: str = "light") -> Page:
    """A first visit, with a picture on the stage."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.locator(".stage img.large").wait_for()
    return page


def kept(name: str, *parts: Page | Locator) -> None:
    """Write what pages or elements show, side by side, as a file."""
    shown = []
    for part in parts:
        page = part if hasattr(part, "mouse") else part.page
        page.wait_for_timeout(SETTLED_MS)
        shown.append(Image.open(io.BytesIO(part.screenshot())).convert("RGB"))
    whole = Image.new("RGB", (sum(each.width for each in shown), shown[0].height))
    for number, each in enumerate(shown):
        whole.paste(each, (sum(before.width for before in shown[:number]), 0))
    path = IMAGES / f"page-{name}.webp"
    whole.save(path, quality=QUALITY, method=6)
    print(f"{path.name}: {path.stat().st_size >> 10} kB")
    if path.stat().st_size > BYTES_MAX:
        raise SystemExit(f"{path} has more than {BYTES_MAX >> 10} kB")


def first(browser: Browser, server: Server) -> None:
    """The page as it is seen first, before there is any picture."""
    page = browser.new_page(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.get_by_role("button", name=re.compile(r"^Steps: \d")).wait_for()
    page.get_by_text("This little model comes with Smalti").wait_for()
    kept("first", page)


def finished(browser: Browser, server: Server) -> None:
    """With a picture, and on a phone in light and dark."""
    kept("picture", opened(browser, server, DESKTOP))
    kept("phone", opened(browser, server, PHONE), opened(browser, server, PHONE, "dark"))


def making(browser: Browser, server: Server) -> None:
    """With a picture that is being made, and one that waits."""
    page = opened(browser, server, DESKTOP, "dark")
    ids = [server.submit(prompt=prompt, steps=MANY) for prompt in ("a snowman", "a panda")]
    for job in server.events(ids[0]):
        progress = job["progress"] or {}
        if progress.get("preview") and progress["step"] > MADE_SHARE * MANY:
            break
    page.get_by_alt_text("What it looks like so far").wait_for()
    kept("making", page)
    for id in ids:
        server.ask("DELETE", f"/api/jobs/{id}")


def editing(browser: Browser, server: Server) -> None:
    """The editor, with something painted and the picture extended."""
    page = opened(browser, server, DESKTOP)
    page.get_by_role("button", name="Edit", exact=True).click()
    canvas = page.get_by_role("application")
    page.get_by_role("button", name="Extend to the right").click()
    page.wait_for_timeout(SETTLED_MS)
    box = canvas.bounding_box()
    assert box is not None
    x, y, side = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, box["height"]
    page.mouse.move(x - 0.5 * side, y - 0.2 * side)
    page.mouse.down()
    for right, down in ((-0.35, -0.3), (-0.2, -0.25), (-0.15, -0.1)):
        page.mouse.move(x + right * side, y + down * side, steps=8)
    page.mouse.up()
    kept("editor", page)


def looking_back(browser: Browser, server: Server) -> None:
    """Two pictures compared, and where the time of one went."""
    page = opened(browser, server, DESKTOP)
    gallery = page.get_by_role("region", name="Gallery")
    gallery.get_by_label("a rose").click()
    page.get_by_role("button", name="Compare with another picture").click()
    gallery.get_by_label("a sunflower").click()
    window = page.get_by_role("dialog", name="Compare")
    window.get_by_role("table").wait_for()
    kept("compare", window)
    page.keyboard.press("Escape")
    page.get_by_title("Where does the time go?").click()
    window = page.get_by_role("dialog", name="Where the time went")
    window.get_by_role("button", name=re.compile("^denoise")).click()
    kept("times", window)


SCENES = (first, finished, making, editing, looking_back)


def main(arguments: Sequence[str]) -> None:
    """Make all pictures anew."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server, \
            sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        first(browser, server)
        for seed, prompt in enumerate(PROMPTS, 1):
            server.ended(server.submit(prompt=prompt, seed=seed))
        for scene in SCENES[1:]:
            scene(browser, server)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
