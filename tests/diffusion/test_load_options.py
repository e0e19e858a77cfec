"""What models are loaded with is checked before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smalti.diffusion import load_options
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.pipeline import Pipeline
from smalti.errors import InputError


def test_integers_of_8_bits_are_for_cpus(monkeypatch) -> None:
    assert LoadOptions(device="cpu", precision="int8").precision == "int8"
    monkeypatch.setattr(load_options, "precisions", lambda device: ("auto", "f32", "f16"))
    with pytest.raises(InputError, match="int8 needs a CPU .* has auto, f32, f16 .or give device"):
        LoadOptions(device="cpu", precision="int8")


def test_defaults_are_those_of_pictures_that_say_nothing_else(model_path: Path) -> None:
    given = {"steps": 3, "guidance_scale": 0, "sampler": "lcm", "noise": "normal", "width": 64,
             "height": 128, "guidance_time": [0, 0.5]}
    pipe = Pipeline.load(model_path, device="cpu", defaults=given)
    made = pipe.job(PictureOptions.of("a", height=64)).asked
    assert (made.steps, made.guidance_scale, made.width, made.height) == (3, 0, 64, 64)
    assert pipe.config.default_guidance_time == (0, 0.5)
    assert (made.guiding().start, made.guiding().end) == (0, 0.5)
    assert pipe.config.default_sampler == "lcm" and pipe.config.default_noise == "normal"


@pytest.mark.parametrize(("defaults", "said"), [
    ({"stepz": 3}, "there is no option stepz; did you mean steps"), ("steps", "expected settings"),
    ({"seed": 3}, "there is no option seed"), ({"steps": 0}, "steps is 0"),
    ({"sampler": "oiler"}, "oiler"), ({"guidance_time": [0.8, 0.2]}, "from 0.8 to 0.2 of the way"),
    ({"guidance_time": 0.5}, "guidance_time is 0.5; expected START, END")])
def test_defaults_that_cannot_be_are_refused(defaults: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        LoadOptions(device="cpu", defaults=defaults)
