"""What is asked for, and asked for again: what a picture began with has to be there."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image
from served import Client
from visits import Visits, expect

pytestmark = pytest.mark.browser


def test_a_picture_whose_beginning_is_gone_says_so(visits: Visits, client: Client) -> None:
    content = io.BytesIO()
    Image.new("RGB", (128, 128), "red").save(content, "PNG")
    client.made(prompt="a red apple", steps=2, strength=0.5,
                image=base64.b64encode(content.getvalue()).decode())
    page = visits.open()
    page.get_by_role("button", name="Again").click()
    expect(page.locator(".problem")).to_contain_text("made of another one, which is not here")
    assert len(client.get("/api/jobs").json["jobs"]) == 1


def test_again_has_other_noise_and_a_little_different_the_same(visits: Visits, client: Client
                                                               ) -> None:
    client.made(prompt="a red apple", steps=2, seed=5)
    page = visits.open()
    asked = []
    for name in ("Again", "A little different"):
        page.locator(".tile[title='a red apple']").first.click()
        with page.expect_response("**/api/jobs") as answer:
            page.get_by_role("button", name=name, exact=True).click()
        asked.append(answer.value.json()["request"])
        client.site.queue.wait(answer.value.json()["id"], 60)
    again, different = asked
    assert again["seed"] == -1 and again["steps"] == different["steps"] == 2
    assert different["seed"] != -1 and different["variation_strength"] == 0.15


def test_what_is_off_is_shown_as_off(visits: Visits) -> None:
    page = visits.open()
    page.get_by_role("button", name="More").click()
    seamless = page.get_by_role("dialog").get_by_label("Seamless")
    expect(seamless.locator("option:checked")).to_have_text("off")
    seamless.select_option("x")
    seamless.select_option("off")
    assert page.evaluate("JSON.parse(localStorage['smalti.asked']).tiling") is None
