"""What models are made for, and the options that mean nothing to them."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_families as tiny
from PIL import Image

from smalti.diffusion.init_image import init_image
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.purpose import untaken
from smalti.diffusion.request import denoising_bytes, request
from smalti.errors import InputError
from smalti.models.config import ModelConfig

SOME: dict[str, dict[str, Any]] = {
    "distilled_guidance": {"distilled_guidance": 3.0}, "tiling": {"tiling": "x"},
    "token_downsampling": {"token_downsampling": 2},
    "skip_layers": {"skip_layers": (0,)}, "clip_skip": {"clip_skip": 1},
    "emphasis": {"emphasis": "comfy"},
    "skip_guidance": {"skip_layers": (0,), "skip_guidance": (2.0, 0.0, 0.5)},
    "image_guidance": {"image_guidance": 2.0},
    **{name: {"redux": Image.new("RGB", (8, 8)), **more} for name, more in (
        ("redux", {}), ("redux_strength", {"redux_strength": (0.5,)}),
        ("redux_pooled", {"redux_pooled": 0.5}), ("redux_sum", {"redux_sum": True}),
        ("redux_bias", {"redux_bias": True}))}}


@pytest.mark.parametrize("family", tiny.WORDLESS)
def test_what_means_nothing_to_a_model_is_refused_and_all_else_taken(family: str) -> None:
    config = tiny.WORDLESS[family]
    assert untaken(config).keys() <= SOME.keys()
    for name, given in SOME.items():
        asked = PictureOptions("a", width=64, height=64, **given)
        if name in untaken(config):
            with pytest.raises(InputError, match=untaken(config)[name][:20]):
                request(config, asked, memory_bytes=1 << 40)
        else:
            assert getattr(request(config, asked, memory_bytes=1 << 40), name) == given[name]


def test_a_model_without_tokens_of_clip_skips_none_of_its_layers_and_reads_no_weights() -> None:
    for family in ("flux", "chroma", "z-image", "flux2", "krea2", "anima", "qwen-image"):
        assert {"clip_skip", "emphasis"} <= untaken(tiny.WORDLESS[family]).keys(), family
    for family in ("sdxl", "sd3"):
        assert not {"clip_skip", "emphasis"} & untaken(tiny.WORDLESS[family]).keys(), family


def read(config: ModelConfig, count: int, **options: Any) -> list[tuple[int, int]]:
    """The sizes in which a model reads so many pictures of 64 x 32 pixels."""
    asked = PictureOptions("a", image=[Image.new("RGB", (64, 32))] * count, **options)
    found = init_image(config, asked, "reference")
    assert found is not None
    return found.read_by(config)


def test_pictures_that_are_read_count_in_the_memory_that_is_needed() -> None:
    config = tiny.WORDLESS["flux2"]
    assert read(tiny.WORDLESS["sdxl"], 1) == [] and len(read(config, 3)) == 3
    assert read(config, 2, mask=Image.new("L", (64, 32), 255), width=96, height=96)[0] == (96, 96)
    one, all_ = ((64, 64),), ((64, 64),) * 10
    alone = denoising_bytes(config, 64, 64)
    assert [denoising_bytes(config, 64, 64, each) for each in (one, all_)] == [
        2 * alone, 11 * alone]
    asked = PictureOptions("a", width=64, height=64)
    request(config, asked, memory_bytes=2 * alone, read=one)
    with pytest.raises(InputError, match="64x64, with 10 that are read, needs about .* working "
                                         "memory .*choose a smaller size, or give fewer pictures"):
        request(config, asked, memory_bytes=10 * alone, read=all_)
