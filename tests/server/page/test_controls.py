"""ControlNets: chosen, given a picture, weighed, and in the picture that is made."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from served import Client, opened, served
from tiny_controlnet import write_controlnet
from visits import Visits, create, expect, large, set_option

from smalti.models import ZImageControlNetConfig, z_image_controlnet_graph

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    """A server with a ControlNet for the tiny model, and one for another."""
    root = tmp_path_factory.mktemp("equipped")
    shutil.copytree(models, root, dirs_exist_ok=True)
    write_controlnet(root / "models" / "ControlNet" / "edges")
    union = ZImageControlNetConfig(64, heads=2, mlp_size=170, blocks=1, axes=(8, 12, 12))
    weights = z_image_controlnet_graph(union, union, 1, 2, 2, 1).parameters
    save_file({name.removeprefix("control_model."): np.zeros(value.shape, np.float32)
               for name, value in weights.items() if name.startswith("control_model.")},
              root / "models" / "ControlNet" / "union.safetensors")
    with served(opened(tmp_path_factory.mktemp("pictures"), root)) as found:
        yield found


def test_a_controlnet_reads_a_picture_and_counts_as_it_was_set(
        visits: Visits, client: Client) -> None:
    page = visits.open()
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^tiny")).click()
    set_option(page, "Steps", "Steps", "2")
    page.get_by_role("button", name="ControlNets").click()
    panel = page.get_by_role("dialog", name="ControlNets")
    drawing = io.BytesIO()
    Image.new("RGB", (24, 16), "white").save(drawing, "PNG")
    with page.expect_file_chooser() as chooser:
        panel.get_by_role("button", name="Open a picture…").click()
    chooser.value.set_files([{"name": "notes.png", "mimeType": "image/png", "buffer": b"none"}])
    expect(panel.get_by_role("alert")).to_contain_text("“notes.png” is no picture")
    with page.expect_file_chooser() as chooser:
        panel.get_by_role("button", name="Open a picture…").click()
    chooser.value.set_files([
        {"name": "lines.png", "mimeType": "image/png", "buffer": drawing.getvalue()}])
    expect(panel.get_by_alt_text("What the ControlNet reads")).to_be_visible()
    offered = panel.get_by_role("combobox", name="ControlNet").get_by_role("option")
    expect(offered).to_have_count(1)  # not the one for Z-Image
    panel.get_by_role("slider", name="Strength").press("ArrowLeft")
    panel.get_by_role("slider", name="To").press("ArrowLeft")
    panel.get_by_role("checkbox", name="Read the edges of the picture").check()
    page.keyboard.press("Escape")
    create(page).click()
    expect(large(page)).to_be_visible()
    job, = client.get("/api/jobs?limit=1").json["jobs"]
    asked, = job["request"]["controls"]
    assert (asked["strength"], asked["end"], asked["edges"]) == (0.95, 0.95, True)
    assert "Weight: 0.95, Guidance Start: 0, Guidance End: 0.95" in job["pictures"][0]["text"]
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^emoji")).click()
    page.get_by_role("button", name="ControlNets").click()
    expect(panel.get_by_role("alert")).to_contain_text("It does not fit the model")
    panel.get_by_role("button", name="Remove this ControlNet").click()
    expect(panel.get_by_alt_text("What the ControlNet reads")).to_have_count(0)
