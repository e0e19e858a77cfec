"""The record of what decides a picture: keywords, names of others, schema, texts and back."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smalti import Guide, Pipeline, Projected, SkipLayers
from smalti.diffusion import options as record
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.metadata import parse
from smalti.diffusion.option_text import read, written
from smalti.diffusion.options import ALIASES, GROUPS, OPTIONS, PictureOptions, by_group
from smalti.diffusion.request import request
from smalti.errors import InputError, UnknownOptionError
from smalti.models.config import SD15, ModelConfig

TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


def pixels(pipe: Pipeline, **options: Any) -> bytes:
    return pipe("a red apple", **options).images[0].tobytes()


# ---------------------------------------------------------------------- keywords


def test_keywords_are_those_of_the_record() -> None:
    for method in (Pipeline.steps, Pipeline.__call__):
        own, *names = inspect.signature(method).parameters
        assert own == "self" and names == [*OPTIONS, "guide"]
    defaults = inspect.signature(Pipeline.steps).parameters
    assert defaults["seed"].default == 7 and defaults["steps"].default is None
    assert [each.name for each in fields(PictureOptions)] == [*OPTIONS]


def test_loading_takes_the_fields_of_its_record(model_path: Path) -> None:
    assert [*inspect.signature(Pipeline.load).parameters] == [
        each.name for each in fields(LoadOptions)]
    assert inspect.signature(Pipeline.load).parameters["memory"].default is None
    with pytest.raises(UnknownOptionError, match="no option dtype; did you mean precision"):
        Pipeline.load(model_path, dtype="f32")
    with pytest.raises(UnknownOptionError, match="no option thread; did you mean threads"):
        Pipeline.load(model_path, thread=1)


def test_names_of_diffusers_mean_the_same(pipe: Pipeline) -> None:
    class Generator:
        """As of torch."""

        def initial_seed(self) -> int:
            return 11

    expected = pixels(pipe, steps=2, seed=11)
    assert pixels(pipe, num_inference_steps=2, generator=11) == expected
    assert pixels(pipe, num_inference_steps=2, generator=Generator()) == expected
    assert len(pipe("x", steps=1, num_images_per_prompt=2).images) == 2
    assert ALIASES["mask_image"] == "mask"
    with pytest.raises(InputError, match="steps is given twice; steps, num_inference_steps mean"):
        pipe.steps("x", steps=2, num_inference_steps=3)


@pytest.mark.parametrize(("name", "near"), [
    ("stepz", "did you mean steps?"), ("cfg_scale", "did you mean guidance_scale?"),
    ("scheduler", "did you mean noise?"), ("init_image", "did you mean image?"),
    ("Sampler", "did you mean sampler?"), ("denoising_strength", "did you mean strength?"),
    ("callback_on_step_end", "known: prompt, negative_prompt, steps"),
])
def test_other_names_are_refused_with_the_near_one(pipe: Pipeline, name: str, near: str) -> None:
    with pytest.raises(UnknownOptionError, match=f"there is no option {name}") as caught:
        pipe.steps("x", **{name: 1})
    assert near.rstrip("?") in str(caught.value) and isinstance(caught.value, TypeError)


def test_what_is_missing_or_too_much_is_said(pipe: Pipeline) -> None:
    with pytest.raises(InputError, match="no prompt is given"):
        pipe.steps(steps=3)
    with pytest.raises(InputError, match="3 values are given without a name; .* such as steps=20"):
        pipe.steps("a", "b", 20)
    with pytest.raises(InputError, match="the prompt is 3; expected text"):
        pipe.steps(3)


def test_a_guide_says_four_options_at_once(pipe: Pipeline) -> None:
    guide = Guide(start=0.1, end=0.9, projected=Projected(0.0, 2.0, 0.0))
    assert pixels(pipe, guide=guide) == pixels(
        pipe, guidance_time=(0.1, 0.9), apg=(0.0, 2.0, 0.0)) != pixels(pipe)
    with pytest.raises(InputError, match="guidance_rescale is given, and guide, which says it too"):
        pipe.steps("x", guide=guide, guidance_rescale=0.5)
    with pytest.raises(InputError, match="guide is 3; expected a smalti.Guide"):
        pipe.steps("x", guide=3)


def test_when_guidance_counts_is_the_model_s_own_where_nothing_says_it() -> None:
    limited = replace(SD15, default_guidance_time=(0.0, 0.5))

    def told(config: ModelConfig, **options: Any) -> tuple[tuple[float, float], str | None]:
        asked = request(config, PictureOptions("a cat", **options), memory_bytes=2**40)
        found = read(parse(str(written(asked))))
        again = request(config, PictureOptions(**found.options), memory_bytes=2**40)
        assert again.guiding() == asked.guiding()
        guide = asked.guiding()
        return (guide.start, guide.end), written(asked).pairs.get("CFG interval")

    assert told(SD15) == ((0, 1), None)
    assert told(limited) == ((0, 0.5), "0-0.5")
    assert told(limited, guidance_time=(0, 1)) == ((0, 1), "0-1")
    assert told(limited, guidance_time=(0.2, 0.8)) == ((0.2, 0.8), "0.2-0.8")
    assert told(limited, guide=Guide(rescale=0.7)) == ((0, 0.5), "0-0.5")
    assert told(limited, guide=Guide(end=0.9)) == ((0, 0.9), "0-0.9")


@pytest.mark.parametrize(("options", "message"), [
    ({"guidance_time": (0.5, 0.2)}, "from 0.5 to 0.2 of the way"),
    ({"guidance_time": 0.5}, "guidance_time is 0.5; expected START, END, each a number from 0 to"),
    ({"skip_layers": "7"}, "skip_layers is '7'; expected numbers of layers"),
    ({"skip_guidance": (1, 0, 0.5)}, "skip_guidance is given, but no skip_layers"),
    ({"apg": "yes"}, "apg is 'yes'; expected True"),
    ({"only_masked": 1}, "only_masked is 1; expected True or False"),
    ({"seed": True}, "seed is True"),
    ({"controls": [3]}, "controls is (3,); expected a list of what smalti.Control.load gives"),
    ({"controls": "canny.pth"}, "controls is 'canny.pth'; expected a list of what"),
])
def test_values_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        PictureOptions("x", **options)
    assert message in str(caught.value)


def test_the_worked_example_of_the_page_is_an_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text("utf-8")
    field = re.search(r"# diffusion/options.py, .*?\n(    contrast.*?)\n\n", page, re.DOTALL)[1]
    names = dict(vars(record))
    exec(f"@dataclass(frozen=True)\nclass Example:\n{field}\n", names)
    (found,) = fields(names["Example"])
    contrast = replace(found.metadata["option"], name="contrast", default=found.default)
    assert contrast.checked(2) == 2.0 and contrast.told == "1" and contrast.group in GROUPS
    with pytest.raises(InputError, match="contrast is 3; expected a number from 0 to 2"):
        contrast.checked(3)


# ---------------------------------------------------------------------- schema


def test_the_schema_is_one() -> None:
    """What a metaschema would say: known types, ranges in order, defaults that are of the type."""
    schema = json.loads(json.dumps(PictureOptions.schema()))
    assert schema["type"] == "object" and schema["required"] == ["prompt"]
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == OPTIONS.keys()
    for name, each in schema["properties"].items():
        kinds = each.get("anyOf", [each])
        assert all(kind["type"] in TYPES for kind in kinds), name
        assert each["description"].endswith(".") and each["group"] in GROUPS, name
        for kind in kinds:
            low = kind.get("minimum", kind.get("exclusiveMinimum"))
            assert low is None or low < kind["maximum"], name
            assert "items" in kind or kind["type"] != "array"
        if "default" in each:
            assert isinstance(each["default"], tuple(np.atleast_1d(TYPES[each["type"]]))), name
            assert "enum" not in each or each["default"] in (*each["enum"], ""), name
        else:
            assert name == "prompt" or each["usual"], name
    assert [each.group for each in by_group()] == sorted(
        (each.group for each in OPTIONS.values()), key=GROUPS.index)


def test_defaults_of_the_schema_are_taken() -> None:
    properties = PictureOptions.schema()["properties"]
    given = {name: each["default"] for name, each in properties.items() if "default" in each}
    assert PictureOptions("x", **given) == PictureOptions("x")


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize("options", [
    {}, {"steps": 4, "seed": 2**64 - 1, "rng": "cuda", "width": 640, "sampler": "dpm++_2m"},
    {"noise": "14.6,3.0001,0", "guidance_scale": 7.123456789, "clip_skip": 2},
    {"guidance_rescale": 0.7, "guidance_time": (0.1, 0.85), "cache": 0.1, "emphasis": "no norm"},
    {"apg": Projected(0.1, 2.0, -0.25)}, {"tiling": "x"}, {"tiling": "xy"},
    {"token_downsampling": 2},
    {"variation_seed": 5, "variation_strength": 1 / 3},
    {"hires": 1.5, "hires_strength": 0.45, "hires_steps": 11},
])
def test_a_text_gives_back_what_made_it(options: dict[str, Any]) -> None:
    asked = request(SD15, PictureOptions("a (cat:1.2),\nred", "dog", **options),
                    memory_bytes=2**40)
    found = read(parse(str(written(asked))))
    assert not found.missing and not found.unknown
    again = request(SD15, PictureOptions(**found.options), memory_bytes=2**40)
    assert str(written(again)) == str(written(asked))
    for option in OPTIONS.values():
        assert getattr(again, option.name) == getattr(asked, option.name), option.name


def test_a_text_says_that_8_bits_made_it() -> None:
    asked = request(SD15, PictureOptions("a cat"), memory_bytes=2**40, precision="int8")
    text = str(written(asked))
    assert "Precision: int8, Model: model" in text and read(parse(text)).precision == "int8"
    plain = str(written(replace(asked, precision="")))
    assert "Precision" not in plain and not read(parse(plain)).precision


def test_layers_that_are_skipped_come_back() -> None:
    """With their numbers, which stand in two pairs of the text."""
    asked = PictureOptions("x", guide=Guide(skip=SkipLayers((1, 2), 3.0, 0.1, 0.3)))
    texts = {OPTIONS[name].label: OPTIONS[name].kind.written(getattr(asked, name))
             for name in ("skip_layers", "skip_guidance")}
    assert texts == {"Skip layers": "1 2", "SLG": "3 0.1-0.3"}
    for name in ("skip_layers", "skip_guidance"):
        option = OPTIONS[name]
        assert option.kind.read(texts[option.label]) == getattr(asked, name)


A1111 = (
    "masterpiece, (cat:1.2)\nNegative prompt: low quality\n"
    "Steps: 28, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 1234, Size: 512x768, "
    "Model hash: abc123, Model: realistic, VAE: x.pt, Denoising strength: 0.4, ENSD: 31337, "
    'Hires upscale: 2, Hires upscaler: R-ESRGAN 4x+, Lora hashes: "detail: 12ab", '
    "Version: v1.10.1")
COMFY = ("a cat\nNegative prompt: dog\nSteps: 20, Sampler: euler_ancestral_karras, CFG Scale: 6.5, "
         "Seed: 9, Size: 512x512, Model hash: 12ab, Model: base, Version: ComfyUI")


def test_a_text_of_a1111_is_read() -> None:
    found = read(parse(A1111))
    asked = request(SD15, PictureOptions(**found.options), memory_bytes=2**40)
    assert (asked.steps, asked.sampler, asked.noise) == (28, "dpm++_2m", "karras")
    assert (asked.width, asked.height, asked.seed) == (512, 768, 1234)
    assert asked.rng == "cuda", "A1111 leaves out the random numbers of GPUs"
    assert (asked.hires, asked.hires_strength, asked.hires_steps) == (2.0, 0.4, 28)
    assert found.model == "realistic" and found.unknown == {"VAE": "x.pt", "ENSD": "31337"}
    assert found.missing == {"hires_upscaler": "the upscaler R-ESRGAN 4x+"}
    assert found.files == {"hires_upscaler": "R-ESRGAN 4x+"}
    assert found.advice() == ["the upscaler R-ESRGAN 4x+: give --hires-upscaler PATH"]


def test_a_text_of_comfyui_is_read() -> None:
    found = read(parse(COMFY))
    asked = request(SD15, PictureOptions(**found.options), memory_bytes=2**40)
    assert (asked.sampler, asked.noise, asked.guidance_scale) == ("euler_a", "karras", 6.5)
    assert asked.rng == "cpu" and not found.unknown
    plain = read(parse(COMFY.replace("euler_ancestral_karras", "dpmpp_2m")))
    assert plain.options["noise"] == "normal"


def test_old_labels_and_forge(pipe: Pipeline) -> None:
    old = read(parse("x\nSteps: 3, Sampler: DPM++ 2M Karras, Seed: 1"))
    assert request(SD15, PictureOptions(**old.options), memory_bytes=2**40).noise == "karras"
    forge = read(parse("x\nSteps: 3, Sampler: Euler, Schedule type: Simple, Distilled CFG Scale: "
                       "3.5, Version: f2.0.1v1.10.1"))
    assert forge.options["distilled_guidance"] == 3.5 and forge.options["rng"] == "cuda"


def test_what_belongs_to_a_picture_that_is_missing_is_left_out(pipe: Pipeline) -> None:
    picture = Image.linear_gradient("L").resize((16, 16))
    mask = Image.new("L", (16, 16), 255)
    options = {"strength": 0.5, "only_masked": True, "padding": 8, "mask_blur": 2}
    (text,) = pipe("x", image=picture, mask=mask, **options).texts
    found = read(parse(text))
    assert found.missing.keys() == {"image", "mask"}
    assert not found.with_given({}).keys() & {*options}
    given = found.with_given({"image": picture, "mask": mask})
    assert {name: given[name] for name in options} == options and not found.missing
    assert pipe(**given).texts == [text]


def test_what_is_expected_of_an_interval_is_said() -> None:
    with pytest.raises(InputError, match=r"CFG interval: '0.1'; expected .* such as \(0, 0.8\)"):
        read(parse("x\nSteps: 1, CFG interval: 0.1"))


@pytest.mark.parametrize("text", ["Steps: many", "Steps: 20, Size: big", "Steps: 1, Lora: x",
                                  "Steps: 1, CFG interval: 0.1", "Steps: 1, SLG: a b"])
def test_senseless_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        PictureOptions(**read(parse(f"a\n{text}")).options)
