"""Requests: what is taken, and each thing that is refused by name."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from smalti.diffusion import made_picture
from smalti.diffusion.options import OPTIONS
from smalti.errors import InputError
from smalti.server.asked import (
    LOADED,
    PROMPT_CHARACTERS_MAX,
    as_base64,
    opened,
    request_schema,
)
from smalti.server.models import ModelFolders


def encoded(picture: Image.Image, kind: str = "PNG") -> str:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return base64.b64encode(stream.getvalue()).decode()


def bomb(width: int, height: int) -> str:
    """A PNG whose header states a size, with no pixels behind it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    content = (b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
               + struct.pack(">I", zlib.crc32(chunk)))
    return base64.b64encode(content + b"\0\0\0\0IEND\xaeB`\x82").decode()


@pytest.mark.parametrize("text", ["", "a grey ramp"])
def test_answers_have_the_bytes_of_files(text: str) -> None:
    """Which are the same on every system, also of pictures that do not say how they were made."""
    ramp = Image.linear_gradient("L").convert("RGB")
    picture = made_picture.MadePicture.of(ramp, text) if text else ramp
    content = base64.b64decode(as_base64(picture))
    assert content == made_picture.encoded(picture, Path("ramp.png"))


SQUARE = encoded(Image.new("RGB", (16, 16), "red"))


@pytest.fixture(scope="module")
def folders(models: Path) -> ModelFolders:
    return ModelFolders([models])


def test_everything_that_is_named_is_found(folders: ModelFolders) -> None:
    found = opened({"prompt": "a", "model": "tiny", "image": f"data:image/png;base64,{SQUARE}",
                    "num_inference_steps": 2, "guidance_time": [0, 0.5], "hires": None,
                    "refiner": "small/tiny", "loras": [{"name": "style", "weight": 0.5}]}, folders)
    assert found.refiner is not None and found.refiner.path in found.loading
    assert found.model.path.name == "tiny.safetensors" and found.options.steps == 2
    assert isinstance(found.options.image, Image.Image) and found.options.image.size == (16, 16)
    assert [(file.name, *more) for file, *more in found.loras] == [("style.safetensors", 0.5, None)]
    assert found.options.guidance_time == (0.0, 0.5)


def test_several_pictures_are_a_list(folders: ModelFolders) -> None:
    found = opened({"prompt": "a", "model": "tiny", "image": [SQUARE, SQUARE]}, folders)
    assert [each.size for each in found.options.image] == [(16, 16), (16, 16)]
    with pytest.raises(InputError, match="expected a list of at most 10"):
        opened({"prompt": "a", "model": "tiny", "image": [SQUARE] * 11}, folders)


@pytest.mark.parametrize(("request_", "said"), [
    ({}, "no prompt is given"),
    ({"prompt": 3}, "the prompt is 3; expected text"),
    ({"prompt": "x" * (PROMPT_CHARACTERS_MAX + 1)}, "expected at most 32000"),
    ({"stepz": 3}, "no option stepz; did you mean steps"),
    ({"guide": {}}, "there is no option guide"),
    ({"cfg_scale": 3}, "did you mean guidance_scale"),
    ({"steps": 2, "num_inference_steps": 2}, "given twice"),
    ({"steps": 1e9}, "expected a whole number from 1 to 1000"),
    ({"width": "512"}, "width is '512'; expected a whole number"),
    ({"width": 10**30}, "from 1 to 4096 pixels"),
    ({"seed": True}, "seed is True"),
    ({"batch_size": 65}, "from 1 to 64"),
    ({"width": 4096, "height": 4096, "steps": 1000, "batch_size": 64}, "ask for several jobs"),
    ({"hires": 8, "width": 2048, "height": 2048, "steps": 300}, "ask for several jobs"),
    ({"sampler": 3}, "sampler is 3; known: euler"),
    ({"image": "http://127.0.0.1/a.png"}, "addresses and paths are not read"),
    ({"image": "/etc/passwd"}, "image is '/etc/passwd'"),
    ({"image": 3}, "expected a picture in base64"),
    ({"image": "AAAA"}, "image is no picture that is read"),
    ({"image": bomb(60000, 60000)}, "image (has 60000 x 60000 pixels|is no picture)"),
    ({"image": bomb(5000, 5000)}, "image has 5000 x 5000 pixels"),
    ({"image": bomb(50, 50)}, "image cannot be read as a picture"),
    ({"mask": SQUARE}, "mask is given, but no image"),
    ({"hires": 2, "hires_upscaler": "../x"}, "no esrgan is named '../x'"),
    ({"controls": [{"model": "x", "picture": SQUARE}]}, "no controlnet is named 'x'"),
    ({"controls": [{"model": "x", "path": "y"}]}, "there is no option path"),
    ({"controls": [3]}, "controls holds 3"),
    ({"controls": [{}] * 11}, "a list of at most 10"),
    ({"model": "../../etc/passwd"}, "no model is named"),
    ({"model": ["a"]}, "given as .*; expected its name"),
    ({"loras": [{"name": "none"}]}, "no lora is named 'none'"),
    ({"loras": [{"weight": 1}]}, "loras has no name"),
    ({"loras": [{"name": "style", "weight": 1e9}]}, "the weight of an adapter is"),
    ({"loras": {}}, "expected a list"),
    ({"refiner": "x"}, "no model is named 'x'"),
    ({"vae": ""}, "no vae is named ''"),
    ({"vae": "x"}, "no vae is named 'x'; there is none in the folders"),
    ({"device": 3}, "expected the id of a device"),
])
def test_what_cannot_be_is_refused_by_name(folders: ModelFolders, request_: dict[str, Any],
                                           said: str) -> None:
    with pytest.raises(InputError, match=said):
        opened({**({"prompt": "a"} if request_ else {}), **request_}, folders)


def test_the_schema_has_every_option_once() -> None:
    properties = request_schema()["properties"]
    assert [*properties] == [*dict.fromkeys([*properties])] and (
        properties.keys() == {*OPTIONS, *LOADED})
