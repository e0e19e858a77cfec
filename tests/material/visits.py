"""Visits to the page of a server in Chromium, of which each is to be without any complaint."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        Locator,
        LocatorAssertions,
        Page,
        Request,
        Response,
    )

DESKTOP, LAPTOP, PHONE = (1440, 900), (1024, 768), (390, 844)
MILLISECONDS = 60_000
"""That anything may take on a computer that is busy with others."""
ARGUMENTS = (
    "--no-sandbox",  # as root; only pages of the test's own server are opened
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-color-profile=srgb", "--font-render-hinting=none",  # the same pixels everywhere
)
VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""

A1111 = """a green tree
Negative prompt: blurry
Steps: 6, Sampler: Euler a, CFG scale: 3, Seed: 5, Size: 128x128, Model: sd_xl_base_1.0"""
"""As A1111 writes it into a PNG file."""


@dataclass
class Visits:
    """Opens pages of a server at `address`, and notes what they complain about.

    `problems` are errors of scripts, messages of errors in the console, violations of the page's
    policy, and requests to other hosts.
    """

    browser: Browser
    address: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    close: list[Callable[[], None]] = field(default_factory=list)

    def open(self, size: tuple[int, int] = DESKTOP, path: str = "/", **options: Any) -> Page:
        """A first visit: nothing is remembered."""
        width, height = size
        context = self.browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(MILLISECONDS)
        context.add_init_script(VIOLATIONS)
        context.on("request", self._asked)
        context.on("response", self._answered)
        context.on("console", lambda said: said.type == "error" and self._noted(said.text))
        context.on("weberror", lambda error: self._noted(str(error.error)))
        self.close.append(context.close)
        page = context.new_page()
        page.goto(self.address + path)
        return page

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.address}/", "blob:", "data:")):
            self._noted(f"asks another host: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self._noted(f"{response.status} for {response.url}")

    def _noted(self, text: str) -> None:
        if text.startswith("Failed to load resource"):
            return  # noted with its address when it was answered
        if not any(each in text for each in self.expected):
            self.problems.append(text)


def create(page: Page) -> Locator:
    """The one button that is coloured."""
    return page.get_by_role("button", name="Create", exact=True)


def large(page: Page) -> Locator:
    """The finished picture on the stage."""
    return page.locator(".stage img.large:not(.preview)")


def expect(found: Locator) -> LocatorAssertions:
    """What is to become true of an element, within a while."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=MILLISECONDS)
    return expected(found)


def set_option(page: Page, chip: str, label: str, value: str) -> None:
    """Write a value into the field that a chip opens."""
    page.get_by_role("button", name=re.compile(f"^{chip}")).first.click()
    page.get_by_role("dialog").get_by_label(label, exact=True).fill(value)
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")


def drop(page: Page, content: bytes, name: str = "tree.png") -> None:
    """Drop a file on the page."""
    page.locator("body").evaluate("""(target, [name, text]) => {
        const content = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([content], name, { type: "image/png" }));
        for (const kind of ["dragover", "drop"]) {
            target.dispatchEvent(new DragEvent(kind,
                { dataTransfer: data, bubbles: true, cancelable: true }));
        }
    }""", [name, base64.b64encode(content).decode()])
