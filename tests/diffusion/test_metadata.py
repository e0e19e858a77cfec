"""The parameters text is read back as it was written, and other programs' texts are understood."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from smalti import __version__
from smalti.diffusion.metadata import PNG_KEY, TEXT_BYTES_MAX, Parameters, parse, text_in
from smalti.diffusion.option_text import read, written
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.request import request
from smalti.errors import InputError
from smalti.models.config import SD15

FULL = Parameters(
    'a red apple,\non a table: "fresh"', "blurry, (bad:1.3)",
    {"Steps": "20", "Sampler": "DPM++ 2M", "Schedule type": "Karras", "CFG scale": "7.5",
     "Seed": str(2**64 - 1), "Size": "512x768", "RNG": "NV", "Model": 'emoji, small: "1"',
     "Version": "smalti 0.1"})
A1111 = (
    "masterpiece, (cat:1.2), <lora:detail:0.8>\n"
    "Negative prompt: low quality,\n worst\n"
    "Steps: 28, Sampler: Euler a, Schedule type: Automatic, CFG scale: 7, Seed: 1234, "
    'Size: 512x768, Model hash: abc123, Model: x, Lora hashes: "detail: 12ab, b: 3", '
    "RNG: NV, Version: v1.10.1"
)


def test_round_trip():
    assert parse(str(FULL)) == FULL


def test_text_looks_as_a1111_writes_it():
    asked = PictureOptions("a cat", "dog", guidance_scale=7.0)
    made = str(written(request(SD15, asked, model="m", memory_bytes=2**34)))
    assert made.removesuffix(f", Model: m, Version: Smalti {__version__}") == (
        "a cat\nNegative prompt: dog\nSteps: 20, Sampler: Euler a, Schedule type: Karras,"
        " CFG scale: 7, Seed: 7, Size: 512x512, RNG: CPU"
    )


def test_reads_a1111():
    found = parse(A1111)
    options = read(found).options
    assert found.prompt == "masterpiece, (cat:1.2), <lora:detail:0.8>"
    assert found.negative_prompt == "low quality,\n worst"
    assert {name: options[name] for name in ("steps", "sampler", "guidance_scale", "seed")} == {
        "steps": 28, "sampler": "euler_a", "guidance_scale": 7.0, "seed": 1234}
    assert (options["width"], options["height"], options["rng"]) == (512, 768, "cuda")
    assert found.pairs["Lora hashes"] == "detail: 12ab, b: 3"


def test_a_prompt_alone():
    assert parse("just words") == Parameters("just words")
    assert str(Parameters("just words")) == "just words"
    assert parse("") == Parameters("")


@pytest.mark.parametrize("line", ["Steps: many", "Steps: 20, Size: big", "Steps: 1, Seed: x"])
def test_senseless_values(line):
    with pytest.raises(InputError, match="expected"):
        read(parse("a\n" + line))


def test_survives_a_png_file():
    info = PngInfo()
    info.add_text(PNG_KEY, str(FULL))
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "png", pnginfo=info)
    assert parse(Image.open(stream).text[PNG_KEY]) == FULL


words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=30)
values = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    prompt=words.filter(lambda text: not text.startswith("Negative prompt:")),
    negative=words,
    seed=st.integers(0, 2**64 - 1),
    others=st.dictionaries(st.sampled_from(["Model", "Version", "Note 1"]), values),
)
def test_anything_comes_back(prompt, negative, seed, others):
    made = Parameters(prompt, negative, {"Steps": "20", "Seed": str(seed), "Size": "64x64",
                                         **others})
    assert parse(str(made)) == made


@pytest.mark.parametrize(("content", "words"), [
    (b"", "is empty"), (b" \n", "is empty"), (bytes(range(256)), "is no text in UTF-8"),
    (b'{"3": {"class_type": "KSampler"}}', "holds JSON, such as a graph of ComfyUI"),
    (b"x" * (TEXT_BYTES_MAX + 1), "has more than 1 MiB")],
    ids=["empty", "blank", "bytes", "graph", "long"])
def test_a_file_without_a_text_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "settings.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"settings.txt {words}.*expected a `parameters` text"):
        text_in(path)
    with pytest.raises(InputError, match="cannot be read as text: "):
        text_in(tmp_path / "absent.txt")


@pytest.mark.parametrize("text", ["{red|green} apple", "[1, 2]", "7"])
def test_a_prompt_that_looks_like_data_is_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "prompt.txt").write_text(text)
    assert parse(text_in(tmp_path / "prompt.txt")).prompt == text
