"""`smalti generate` of pictures that are changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.test_commands import refused, run
from PIL import Image


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
