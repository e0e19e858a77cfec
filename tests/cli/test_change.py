"""`smalti generate` of pictures that are changed, and made as other pictures were."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.test_commands import refused, run
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tiny_adapters import write_adapter
from tiny_model import TINY

from smalti.cli.generate import generate
from smalti.cli.picture_options import OWN, flags
from smalti.diffusion.options import OPTIONS


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.linear_gradient("L").resize((16, 24)).save(tmp_path / "in.png")
    return tmp_path / "in.png"


def test_generate_changes_a_picture(model_path: Path, picture: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    result = run("generate", "a red apple", "-o", path, "-m", model_path, "--threads", 1,
                 "--image", picture, "--strength", 0.7)
    assert result.exit_code == 0, result.output
    with Image.open(path) as made:
        assert made.size == (16, 24)
        assert "Denoising strength: 0.7," in made.text["parameters"]


def test_generate_makes_what_is_masked_anew(model_path: Path, picture: Path,
                                            tmp_path: Path) -> None:
    path, mask = tmp_path / "out.png", tmp_path / "mask.png"
    drawn = Image.new("L", (16, 24))
    drawn.paste(255, (4, 4, 8, 8))
    drawn.save(mask)
    result = run("generate", "a red apple", "-o", path, "-m", model_path, "--threads", 1,
                 "--image", picture, "--mask", mask, "--mask-blur", 0, "--only-masked",
                 "--padding", 2, "--extend", 4, 0, 0, 0)
    assert result.exit_code == 0, result.output
    with Image.open(path) as made, Image.open(picture) as original:
        assert made.size == (20, 24)
        below = made.crop((4, 12, 20, 24))
        assert below.tobytes() == original.convert("RGB").crop((0, 12, 16, 24)).tobytes()
        text = made.text["parameters"]
    assert "Mask blur: 0, Inpaint area: Only masked, Masked area padding: 2," in text


def test_generate_varies_and_enlarges(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    result = run("generate", "a red apple", "-o", path, "-m", model_path, "--threads", 1,
                 "--variation-seed", 5, "--variation-strength", 0.2, "--hires", 1.5,
                 "--hires-strength", 0.4, "--hires-steps", 1, "--step-cache", 1)
    assert result.exit_code == 0, result.output
    with Image.open(path) as made:
        assert made.size == (24, 24) and "out.png: 24x24, seed 7" in result.output
        assert "of 4 evaluations left out, each with a change of at most" in result.output
        text = made.text["parameters"]
    assert "Variation seed: 5, Variation seed strength: 0.2, Denoising strength: 0.4," in text
    assert "Hires upscale: 1.5, Hires steps: 1, Hires upscaler: Latent," in text


def test_generate_refuses_what_cannot_be_changed(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(b"no picture")
    refused(run("generate", "x", "-o", tmp_path / "out.png", "-m", model_path, "--image",
                tmp_path / "in.png"), "in.png cannot be read as a picture")


def test_several_pictures_are_for_models_that_read_them(model_path: Path, picture: Path,
                                                        tmp_path: Path) -> None:
    refused(run("generate", "x", "-o", tmp_path / "out.png", "-m", model_path, "--image", picture,
                "--image", picture), "2 pictures are given as image; this model reads 1 at most")


# ---------------------------------------------------------------------- settings of pictures


def test_a_picture_is_made_again_from_its_own_text(model_path: Path, tmp_path: Path) -> None:
    path, again = tmp_path / "out.png", tmp_path / "again.png"
    model = ("-m", model_path, "--threads", 1)
    made = run("generate", "a red (apple:1.2)", "-o", path, *model, "--seed", 5, "--size", "20x12",
               "--sampler", "dpm++_2m", "--guidance-time", 0, 0.9, "--tiling", "x", "--hires", 1.25,
               "--hires-strength", 0.5, "-n", "blurry, dark")
    assert made.exit_code == 0, made.output
    result = run("generate", "--from", path, "-o", again, *model)
    assert result.exit_code == 0 and not result.stderr, result.output
    assert again.read_bytes() == path.read_bytes()
    result = run("generate", "a dog", "--from", path, "-o", again, *model, "--seed", 6)
    with Image.open(again) as other:
        assert other.text["parameters"].startswith("a dog\nNegative prompt: blurry, dark\nSteps: 3")
        assert "Seed: 6, Size: 20x12" in other.text["parameters"]
    told = run("inspect", path)
    assert told.exit_code == 0 and f"{path}: a picture of 24 x 16, made by Smalti" in told.output
    for line in ("prompt           a red (apple:1.2)", "negative prompt  blurry, dark",
                 "guidance time    0.0, 0.9", "sampler          dpm++_2m", "tiling           x"):
        assert line in told.output, told.output


def test_what_a_text_does_not_hold_is_said(model_path: Path, picture: Path, tmp_path: Path) -> None:
    path, again = tmp_path / "out.png", tmp_path / "again.png"
    model = ("-m", model_path, "--threads", 1)
    run("generate", "x", "-o", path, *model, "--image", picture, "--strength", 0.5)
    result = run("generate", "--from", path, "-o", again, *model)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [f"Warning: {path} was made with another picture, which "
                                          f"was changed: give --image PICTURE"]
    result = run("generate", "--from", path, "-o", again, *model, "--image", picture)
    assert not result.stderr and again.read_bytes() == path.read_bytes()
    text = tmp_path / "a.txt"
    text.write_text("x\nSteps: 2, Sampler: Euler, Seed: 1, ENSD: 31337, Model: other, "
                    "Lora: style:0.5", "utf-8")
    result = run("generate", "--from", text, "-o", again, *model)
    assert [line.removeprefix(f"Warning: {text} ") for line in result.stderr.splitlines()] == [
        "was made with the adapter style: give --lora-dir FOLDER",
        "was made by the model other, this is tiny: give --model PATH",
        "says ENSD: 31337, which is not understood and left out"]
    text.write_text("x\nSteps: 2, Sampler: Euler, Distilled CFG Scale: 3.5, Seed: 1", "utf-8")
    result = run("generate", "--from", text, "-o", again, *model)
    assert result.exit_code == 0 and result.stderr == (
        f"Warning: {text} says Distilled CFG Scale: 3.5, which means nothing to this model and is "
        f"left out\n")
    refused(run("generate", "--from", text, "-o", again, *model, "--distilled-guidance", 2),
            "use guidance_scale")


def test_adapters_of_a_text_are_found_in_their_folder(model_path: Path, tmp_path: Path) -> None:
    path, again = tmp_path / "out.png", tmp_path / "again.png"
    adapter = write_adapter(tmp_path / "style.safetensors", TINY)
    model = ("-m", model_path, "--threads", 1)
    run("generate", "x", "-o", path, *model, "--lora", f"{adapter}:0.5:0.25")
    result = run("generate", "--from", path, "-o", again, *model, "--lora-dir", tmp_path)
    assert result.exit_code == 0 and not result.stderr, result.output
    assert again.read_bytes() == path.read_bytes()


def test_pictures_without_settings_are_refused(picture: Path, tmp_path: Path) -> None:
    for command in (("inspect", picture), ("generate", "--from", picture)):
        refused(run(*command), "in.png carries no settings; expected a picture with a `parameters`")
    graph = PngInfo()
    graph.add_text("workflow", "{}")
    Image.new("RGB", (4, 4)).save(tmp_path / "comfy.png", pnginfo=graph)
    refused(run("inspect", tmp_path / "comfy.png"), "it holds the graph of ComfyUI")
    refused(run("generate"), "no prompt is given")


def test_the_page_lists_every_option_as_it_is() -> None:
    """Each option of a picture has a row of docs/cli.md, with the default of its record."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    rows = {}
    for row in re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", page.split("## smalti batch")[0],
                          flags=re.MULTILINE):
        rows |= {name: row[1] for name in re.findall(r"--[a-z][a-z-]+", row[0])}
    for option in OPTIONS.values():
        if option.name not in OWN:
            assert rows[flags(option)[-1]] == (option.told or "none"), option.name
    known = {name for each in generate.params for name in each.opts if name.startswith("--")}
    assert rows.keys() == known - {"--help"} | {"--no-supervise"}
