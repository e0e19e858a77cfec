"""Pictures made larger: tiles without seams, transparency, sizes, the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smalti.benchmark.weights import seeded
from smalti.checkpoint import open_companion
from smalti.cli.main import root
from smalti.diffusion.tiles import tiles
from smalti.diffusion.upscale import Upscaler
from smalti.errors import CheckpointError, InputError
from smalti.graph import evaluate
from smalti.models import RrdbConfig, SrvggConfig, TaesdConfig, taesd_decoder_graph, upscaler_graph

RRDB = RrdbConfig(channels=8, growth=4, blocks=1, doublings=1)
CONFIGS = {"x2": RRDB, "x4 compact": SrvggConfig(8, 1, 4),
           "x2 of squares": RrdbConfig(8, 4, 1, unshuffle=2),
           "x1": RrdbConfig(8, 4, 1, unshuffle=4),
           "grey": RrdbConfig(8, 4, 1, doublings=1, image_channels=1)}


def weights_of(config: RrdbConfig | SrvggConfig) -> dict[str, np.ndarray]:
    """Seeded, with what makes a picture that is neither black nor white."""
    side = getattr(config, "unshuffle", 1)
    found = {name: seeded(name, value.shape)
             for name, value in upscaler_graph(config, 1, side, side).parameters.items()}
    if "conv_last.bias" in found:
        found["conv_last.bias"] += 0.5
        found["conv_last.weight"] *= 0.3
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    def save(name: str) -> Path:
        path = tmp_path / f"{name}.safetensors"
        safetensors.numpy.save_file(weights_of(CONFIGS[name]), path)
        return path
    return save


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    random = np.random.default_rng(width)
    small = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 4), np.uint8)
    image = Image.fromarray(small, "RGBA").resize((width, height), Image.Resampling.BICUBIC)
    return image.convert(mode)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_small_picture_is_what_the_network_makes(name: str, saved) -> None:
    config = CONFIGS[name]
    upscaler = Upscaler.load(saved(name), threads=1)
    image = picture(12, 8, "L" if name == "grey" else "RGB")
    made = upscaler(image)
    assert made.size == (12 * upscaler.scale, 8 * upscaler.scale) and made.mode == image.mode
    pixels = np.asarray(image, np.float32).reshape(8, 12, -1).transpose(2, 0, 1)[None] / 255
    expected = evaluate(upscaler_graph(config, 1, 8, 12), {"image": pixels},
                        weights_of(config))["image"][0].clip(0, 1).transpose(1, 2, 0)
    found = np.asarray(made, np.float32).reshape(expected.shape)
    assert np.abs(found - 255 * expected).max() <= 0.51 and found.std() > 1


def test_tiles_leave_no_seam(saved) -> None:
    """The network sees 21 pixels to each side; with tiles of 64 it misses some, at weight 0."""
    lines: list[str] = []
    upscaler = Upscaler.load(saved("x2"), threads=1, progress=lines.append)
    image = picture(100, 70)
    whole, tiled = (np.asarray(upscaler(image, tile=tile), int) for tile in (128, 64))
    assert lines == ["tile 1 of 1", *(f"tile {i} of 6" for i in range(1, 7))]
    away = np.abs(whole - tiled)
    assert away.max() <= 4 and (away > 1).mean() < 0.01


def test_sizes_that_squares_do_not_divide(saved) -> None:
    upscaler = Upscaler.load(saved("x2 of squares"), threads=1)
    image = picture(71, 9)
    assert upscaler(image).size == (142, 18)
    whole, tiled = (np.asarray(upscaler(image, tile=tile), int) for tile in (72, 65))
    assert np.abs(whole - tiled).max() <= 1


def test_factor_and_transparency(saved) -> None:
    upscaler = Upscaler.load(saved("x2"), threads=1)
    for mode in ("RGBA", "LA"):
        made = upscaler(picture(10, 6, mode), factor=3)
        assert made.size == (30, 18) and made.mode == "RGBA"
    half = Image.new("RGBA", (8, 8), (200, 100, 50, 0))
    half.paste((200, 100, 50, 255), (0, 0, 4, 8))
    alpha = np.asarray(upscaler(half))[..., 3]
    assert alpha[:, :6].min() > 240 and alpha[:, 10:].max() < 15
    palette = picture(10, 6).quantize(8)
    palette.info["transparency"] = 0
    assert upscaler(palette).mode == "RGBA"
    assert upscaler(picture(10, 6), factor=0.5).size == (5, 3)


@given(st.integers(1, 500), st.integers(33, 90), st.sampled_from([1, 2, 4]))
def test_weights_of_tiles_add_up_to_one(extent: int, tile: int, step: int) -> None:
    extent, tile = -(-extent // step) * step, tile * 2 // step * step
    total, sizes = np.zeros(extent), set()
    for first, end, weight in tiles(extent, tile, 32, step):
        assert 0 <= first < end <= extent and first % step == 0 and len(weight) == end - first
        assert weight.min() >= 0
        total[first:end] += weight
        sizes.add(end - first)
    np.testing.assert_allclose(total, 1, atol=1e-6)
    assert sizes == {min(extent, tile)}


def test_what_cannot_be_is_refused(saved, tmp_path: Path) -> None:
    upscaler = Upscaler.load(saved("x2"), threads=1)
    for options, words in (({"factor": 0.0}, "cannot be made 0 times"),
                           ({"factor": 17.0}, "at most 16"), ({"factor": 0.01}, "0.01 times"),
                           ({"factor": float("nan")}, "nan times"),
                           ({"tile": 63}, "63 pixels .* expected 64 to 4096")):
        with pytest.raises(InputError, match=words):
            upscaler(picture(10, 6), **options)
    with pytest.raises(InputError, match="more than 256 million pixels"):
        upscaler(Image.new("L", (9000, 9000)))
    path = tmp_path / "taesd.safetensors"
    graph = taesd_decoder_graph(TaesdConfig(4), 1, 1, 1)
    safetensors.numpy.save_file(
        {name.removeprefix("taesd."): np.zeros(value.shape, np.float32)
         for name, value in graph.parameters.items()}, path)
    assert open_companion(path).config.z_channels == 4
    with pytest.raises(InputError, match="holds a Taesd; expected an upscaler"):
        Upscaler.load(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Upscaler.load(tmp_path / "nothing.pth")


def test_the_command(saved, tmp_path: Path) -> None:
    source, target = tmp_path / "small.png", tmp_path / "large.png"
    picture(10, 6).save(source)
    model = saved("x2")

    def run(*arguments: object):
        return CliRunner().invoke(root, ["upscale", *map(str, arguments), "--threads", "1"])

    result = run(source, "--model", model, "-o", target, "--factor", 3)
    assert result.exit_code == 0 and "large.png: 30x18, from 10x6" in result.stdout
    with Image.open(target) as made:
        assert made.size == (30, 18)
    for arguments, words in (((model, "-m", model), "cannot be read as a picture"),
                             ((source, "-m", source, "-o", target), "PNG picture"),
                             ((source, "-m", model, "-o", source), "would replace"),
                             ((source, "-m", model, "-o", "a.jpg"), "written as PNG")):
        result = run(*arguments)
        assert result.exit_code == 2 and words in result.stderr, result.output
