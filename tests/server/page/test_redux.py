"""Pictures that the prompt takes on: the chip is there where Redux lies beside a model."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
import tiny_families as tiny
from PIL import Image
from served import Client, opened, served
from visits import Visits, create, expect

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with a tiny FLUX.1 in several files, and the two of Redux."""
    root = tmp_path_factory.mktemp("reading")
    tiny.write_parts(root, tiny.FAMILIES["flux"])
    tiny.redux_files(root / "style_models")
    with served(opened(tmp_path_factory.mktemp("pictures"), root)) as found:
        yield found


def test_pictures_of_redux_are_asked_for(visits: Visits, client: Client) -> None:
    page = visits.open()
    chip = page.get_by_role("button", name="Pictures that the prompt takes on")
    expect(chip).to_have_count(0)
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^flux")).click()
    chip.click()
    panel = page.get_by_role("dialog", name="Pictures that the prompt takes on")
    drawing = io.BytesIO()
    Image.new("RGB", (24, 16), "red").save(drawing, "PNG")
    for count in (1, 2):
        with page.expect_file_chooser() as chooser:
            panel.get_by_role("button", name="Open a picture…").click()
        chooser.value.set_files([
            {"name": "look.png", "mimeType": "image/png", "buffer": drawing.getvalue()}])
        expect(panel.get_by_role("img")).to_have_count(count)
    panel.get_by_role("button", name="Remove picture 2").click()
    expect(panel.get_by_role("img")).to_have_count(1)
    panel.get_by_label("Redux strength", exact=True).fill("0.5")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(chip).to_contain_text("Redux")
    with page.expect_response(lambda answer: answer.request.method == "POST"
                              and answer.url.endswith("/api/jobs")) as answered:
        create(page).click()
    sent, job = answered.value.request.post_data_json, answered.value.json()
    assert len(sent["redux"]) == 1 and sent["redux_strength"] == [0.5]
    told = client.get(f"/api/jobs/{job['id']}").json["request"]
    assert (told["redux"], told["redux_strength"]) == (None, [0.5])
    client.ask("DELETE", f"/api/jobs/{job['id']}")
