"""A model knows the sizes and words that it was made for, and says where pictures do not serve."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_families as tiny

from smalti import Pipeline
from smalti.checkpoint.taught_words import TaughtWords
from smalti.diffusion.fit import size_warnings, weight_warnings, word_warnings
from smalti.diffusion.options import PictureOptions
from smalti.models.config import SD15

SHIPPED = replace(SD15, default_width=256, default_height=256)


def test_the_shipped_model_says_that_it_makes_small_pictures() -> None:
    pipe = Pipeline.load(threads=1)

    def said(**options: float) -> list[str]:
        return pipe.job(PictureOptions("a red apple", steps=1, **options)).warnings

    (warning,) = said(width=512, height=512)
    assert "made for pictures of 256x256; one of 512x512 has 4 times their area" in warning
    assert "smalti upscale" in warning
    (warning,) = said(hires=2)
    assert "a second pass of 512x512 has 4 times their area" in warning
    assert not said() and not said(width=256, height=320)


def test_the_shipped_model_says_what_it_was_not_taught() -> None:
    pipe = Pipeline.load(threads=1)
    (warning,) = pipe("(sunrise:1.2) [over:behind:0.5] a red car", steps=1).warnings
    assert warning.startswith(
        'this model was not taught "sunrise", "behind", and does not draw them; known words: '
        "red ap")
    assert "all 416 are in " in warning


def test_words_that_files_taught_are_known() -> None:
    taught = TaughtWords("tiny.words.txt", (("cat",),))
    prompt = "a sunrise cat", 4
    assert len(list(word_warnings(taught, *prompt))) == 1
    assert not list(word_warnings(None, *prompt))
    assert not list(word_warnings(taught, *prompt, changed=True))
    assert not list(word_warnings(taught, *prompt, ["Sunrise", "a"]))


@pytest.mark.parametrize(("family", "prompts", "said"), [
    ("flux2", ("a (cat:1.3)", ""), True), ("flux2", ("a cat", "[blur]"), True),
    ("flux2", ("a cat, \\(small\\) <lora:x:0.5>", ""), False), ("sd1", ("a (cat:1.3)", ""), False),
    ("sd3", ("a (cat:1.3)", ""), False), ("flux", ("a (cat:1.3)", ""), True)])
def test_weights_that_nobody_reads_are_told_of(family: str, prompts: tuple[str, str],
                                               said: bool) -> None:
    found = list(weight_warnings(tiny.WORDLESS[family], prompts, 4))
    assert len(found) == said and all("without weights" in text for text in found)


@pytest.mark.parametrize(("size", "larger", "said"), [
    ((512, 512), None, []), ((512, 768), None, []), ((640, 640), None, []), ((384, 384), None, []),
    ((1024, 1024), None, ["4 times"]), ((256, 256), None, ["0.25 times"]),
    ((512, 512), (1024, 1024), []), ((512, 512), (1536, 1536), ["9 times"]),
    ((1024, 1024), (1280, 1280), ["4 times", "6.2 times"])])
def test_sizes_of_a_published_model(size: tuple[int, int], larger: tuple[int, int] | None,
                                    said: list[str]) -> None:
    found = list(size_warnings(SD15, *size, larger))
    assert len(found) == len(said)
    for text, share in zip(found, said, strict=True):
        assert f"has {share} their area" in text
        assert "second pass" in text or "ask for about 512x512 (--size 512x512)" in text


def test_a_second_pass_serves_models_that_were_trained_on_large_pictures() -> None:
    assert not list(size_warnings(SD15, 512, 512, (1024, 1024)))
    (said,) = size_warnings(SHIPPED, 256, 256, (512, 512))
    assert "enlarge the picture with a network instead (smalti upscale)" in said


@pytest.mark.parametrize(("family", "low", "high"), [
    ("flux", 384, 1408), ("chroma", 384, 1408), ("z-image", 512, 1408), ("sd3", 512, 1408),
    ("qwen-image", 512, 1408), ("sdxl", 768, 1408)])
def test_families_were_made_for_different_ranges(family: str, low: int, high: int) -> None:
    config = replace(tiny.FAMILIES[family], default_width=1024, default_height=1024)
    for side in (low, 1024, high):
        assert not list(size_warnings(config, side, side))
    assert len(list(size_warnings(config, 1536, 1536))) == 1
    assert len(list(size_warnings(config, 256, 256))) == 1
