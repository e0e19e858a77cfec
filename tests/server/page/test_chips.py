"""Options as the model that is chosen takes them, and what is told of pictures and settings."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_families
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from served import Client, opened, served
from visits import A1111, Visits, create, drop, expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    """A server that has a model in several files, too, and has made a picture of a size that its
    model was not made for. It makes no others: here counts what is asked for."""
    root = tmp_path_factory.mktemp("both")
    shutil.copytree(models, root, dirs_exist_ok=True)
    tiny_families.write_parts(root / "models", tiny_families.FAMILIES["chroma"])
    with served(opened(tmp_path_factory.mktemp("pictures"), root)) as found:
        found.made(prompt="a boat", steps=1, width=512, height=512)
        found.post("/api/jobs/pause")
        yield found


def known(page: Page, **told: Any) -> None:
    """Have the page know something else of its models, also when it hears of them anew, such as
    when their hashes are known."""
    page.evaluate("""async (told) => {
        const { models } = await import("/page/state.js");
        const { effect } = await import("/page/vendor/signals.js");
        window.endKnown?.();
        window.endKnown = effect(() => {
            const other = ([name, value]) => models.value.some((each) => each[name] !== value);
            if (!Object.entries(told).some(other)) return;
            models.value = models.value.map((each) => ({ ...each, ...told }));
        });
    }""", told)


def choose(page: Page, name: str) -> None:
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile(f"^{name}")).click()


def sent(page: Page) -> dict[str, Any]:
    """The request that Create sends."""
    with page.expect_response("**/api/jobs") as answer:
        create(page).click()
    return dict(answer.value.json()["request"])


def test_only_what_means_something_to_a_model_is_offered_and_sent(visits: Visits) -> None:
    page = visits.open()
    page.get_by_role("button", name="More").click()
    window = page.get_by_role("dialog", name="All settings")
    window.get_by_label("Seamless").select_option("x")
    expect(window.get_by_label("Skipped layers")).to_have_count(0)
    expect(window.get_by_label("Distilled guidance", exact=True)).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Seamless: x")).to_be_visible()
    assert sent(page)["tiling"] == "x"
    page.get_by_label("Prompt", exact=True).fill("a (cat:1.3)")
    expect(page.locator(".mark-strong")).to_have_count(1)
    choose(page, "chroma")
    expect(page.locator(".mark-strong")).to_have_count(0)
    expect(page.get_by_role("button", name="Seamless: x")).to_have_count(0)
    assert "tiling" not in sent(page)
    page.keyboard.press("Escape")


def test_what_needs_another_option_says_so_and_is_not_sent_without(visits: Visits) -> None:
    page = visits.open()
    page.get_by_role("button", name="More").click()
    window = page.get_by_role("dialog", name="All settings")
    window.get_by_label("Second pass: strength", exact=True).fill("0.5")
    page.keyboard.press("Tab")
    expect(window).to_contain_text("It counts together with “Larger in a second pass” only.")
    page.keyboard.press("Escape")
    assert "hires_strength" not in sent(page)


def test_a_model_in_several_files_is_chosen_like_others(visits: Visits) -> None:
    page = visits.open()
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    one = page.get_by_role("dialog").get_by_role("button", name=re.compile("^chroma"))
    expect(one).to_be_enabled()
    expect(one).to_contain_text("with t5xxl, ae")


def test_a_picture_is_read_by_a_model_for_that(visits: Visits) -> None:
    visits.expected.append("422")  # which is how the page learns that it carries no settings
    page = visits.open()
    expect(create(page)).to_be_enabled()
    known(page, purpose="reference")
    file = io.BytesIO()
    Image.new("RGB", (128, 128), "green").save(file, "PNG")
    drop(page, file.getvalue())
    chip = page.get_by_role("button", name="The picture to begin with")
    expect(chip).to_have_text("Reads 1")
    chip.click()
    expect(page.get_by_role("dialog")).to_contain_text("This model reads the picture")
    page.keyboard.press("Escape")
    assert "strength" not in sent(page)


def test_several_pictures_are_read_by_a_model_for_that(visits: Visits) -> None:
    visits.expected.append("422")
    page = visits.open()
    expect(create(page)).to_be_enabled()
    known(page, purpose="reference", pictures=3)
    files = []
    for colour in ("green", "red", "blue"):
        file = io.BytesIO()
        Image.new("RGB", (128, 128), colour).save(file, "PNG")
        files.append(file.getvalue())
    drop(page, files[0])
    page.get_by_role("button", name="The picture to begin with").press("Enter")
    others = page.get_by_role("group", name="Pictures that are read besides")
    for number, content in enumerate(files[1:], 2):
        with page.expect_file_chooser() as chooser:
            others.get_by_role("button", name="Add a picture").press("Enter")
        chooser.value.set_files([{"name": "b.png", "mimeType": "image/png", "buffer": content}])
        expect(others.get_by_alt_text(f"Picture {number}")).to_be_visible()
        expect(page.locator("[aria-live]").filter(has_text=f"Picture {number} is added")
               ).to_have_count(1)
    expect(others.get_by_role("button", name="Add a picture")).to_have_count(0)
    assert asked_pictures(page) == files
    others.get_by_role("button", name="Remove picture 2").press("Enter")
    expect(others.get_by_alt_text("Picture 3")).to_have_count(0)
    expect(others).to_be_focused()
    assert asked_pictures(page) == [files[0], files[2]]
    page.get_by_role("dialog").get_by_role("button", name="Remove", exact=True).press("Enter")
    expect(others.get_by_alt_text("Picture 2")).to_have_count(0)
    assert asked_pictures(page) == files[2:]
    known(page, purpose="reference", pictures=1)  # of another model
    expect(others).to_have_count(0)


def asked_pictures(page: Page) -> list[bytes]:
    """The pictures of the request that Create sends."""
    image = page.evaluate("""async () => {
        const { request } = await import("/page/actions.js");
        return request().image;
    }""")
    return [base64.b64decode(each) for each in ([image] if isinstance(image, str) else image)]


def test_settings_that_are_taken_over_tell_what_is_not_here(visits: Visits) -> None:
    page = visits.open()
    expect(create(page)).to_be_enabled()
    file, text = io.BytesIO(), PngInfo()
    text.add_text("parameters", f"{A1111}, Refiner: sd_xl_refiner [0123456789], ENSD: 31337")
    Image.new("RGB", (128, 128)).save(file, "PNG", pnginfo=text)
    drop(page, file.getvalue())
    said = page.locator(".noted")
    expect(said).to_contain_text("The settings of tree.png are taken over.")
    expect(said).to_contain_text("made by the model sd_xl_base_1.0, which is not here")
    expect(said).to_contain_text("made with the refiner sd_xl_refiner")
    expect(said).to_contain_text("left out: ENSD")
    said.get_by_role("button", name="Close").click()
    expect(said).to_have_count(0)


def test_what_the_engine_warns_of_stands_under_the_picture(visits: Visits) -> None:
    page = visits.open()
    page.locator(".tile[title='a boat']").first.click()
    expect(page.locator(".warnings")).to_contain_text("This model was made for pictures of")


def test_devices_tell_their_numbers_and_limits(visits: Visits) -> None:
    page = visits.open()
    expect(create(page)).to_be_enabled()
    page.evaluate("""async () => {
        const { devices } = await import("/page/state.js");
        devices.value = { working: ["vulkan:0,text=cpu"], loading: { precision: "int8",
            memory: "6GB", gpu_memory: "4GB" }, devices: [
            { id: "cpu", name: "A processor", kind: "cpu", cores: 8, memory_bytes: 2 ** 34 },
            { id: "vulkan:0", name: "A card", kind: "discrete", memory_bytes: 2 ** 33 }] };
    }""")
    page.get_by_role("button", name="Device: A card, text on A processor").click()
    window = page.get_by_role("dialog")
    expect(window).to_contain_text("8 bits in large products")
    expect(window).to_contain_text("Models may take 6GB of main memory, 4GB of that of GPUs.")
