"""A Chromium for all tests, a server with the model that ships for those of a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from served import Client, opened, served
from visits import ARGUMENTS, Visits

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("Chromium is not here: apt-get install chromium", pytrace=False)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail('playwright is not here: pip install ".[browser]"', pytrace=False)
    with sync_playwright() as found:
        browser = found.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    """A server, asked by a program: its gallery has what the tests of a file made."""
    with served(opened(tmp_path_factory.mktemp("pictures"), models)) as found:
        yield found


@pytest.fixture
def visits(chromium: Browser, client: Client) -> Iterator[Visits]:
    """Visits to the page; at the end none of them may have had a complaint."""
    found = Visits(chromium, f"http://127.0.0.1:{client.port}")
    yield found
    for close in found.close:
        close()
    assert not found.problems
