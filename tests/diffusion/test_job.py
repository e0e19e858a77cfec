"""Pictures that are made at a time, in turns or in threads, are those that are made alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from tiny_adapters import write_adapter
from tiny_model import TINY

from smalti import Pipeline, Step
from smalti.diffusion import residents
from smalti.diffusion.submodels import Submodels
from smalti.runtime.cpu import streaming
from smalti.runtime.cpu.program import NativeProgram

PAIRS = 20
PICTURE = Image.linear_gradient("L").resize((16, 24)).convert("RGB")
MASK = Image.new("L", PICTURE.size)
MASK.paste(255, (4, 4, 12, 16))
CHOICES: dict[str, list[dict[str, Any]]] = {
    "prompt": [{"prompt": "a red apple"}, {"prompt": "a [dog:cat:0.5] <lora:style0:0.7>"},
               {"prompt": "a cat <lora:style1:0.6>"}, {"prompt": "a cat <lora:style0:0.3>"},
               {"prompt": "a glow apple"}, {"prompt": "a (red:1.4) glow <lora:style1:1:0.2>"}],
    "negative": [{}, {"negative_prompt": "blurry"}],
    "size": [{}, {"width": 24}, {"height": 12, "width": 20}],
    "kind": [{}, {}, {"hires": 1.5, "hires_strength": 0.5}, {"image": PICTURE, "strength": 0.7},
             {"image": PICTURE, "mask": MASK}, {"tiling": "x"}, {"batch_size": 2}, {"cache": 0.3}],
    "sampler": [{"sampler": "euler_a"}, {"sampler": "dpm++_2m", "steps": 4}, {"sampler": "heun"}],
    "guidance": [{}, {"guidance_scale": 1.0}, {"seed": 11}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters that prompts may name, and a word that stands for two vectors."""
    found = tmp_path_factory.mktemp("jobs")
    for seed in (0, 1):
        write_adapter(found / f"style{seed}.safetensors", TINY, seed)
    (found / "words").mkdir()
    vectors = np.random.default_rng(5).standard_normal((2, 16)).astype(np.float32)
    save_file({"emb_params": vectors}, found / "words" / "glow.safetensors")
    return found


def loaded(model_path: Path, folder: Path, **options: Any) -> Pipeline:
    return Pipeline.load(model_path, threads=1, lora_folder=folder, embeddings=[folder / "words"],
                         **options)


@pytest.fixture(scope="module")
def pipe(model_path: Path, folder: Path) -> Pipeline:
    return loaded(model_path, folder)


def options_of(chance: random.Random) -> dict[str, Any]:
    """Options of one picture."""
    found: dict[str, Any] = {"steps": 3, "seed": chance.randrange(1000)}
    for choices in CHOICES.values():
        found |= chance.choice(choices)
    if "image" in found and not {"width", "height"}.isdisjoint(found):
        found |= {"width": 24, "height": 16}
    return found


def pixels(steps: Iterator[Step]) -> list[bytes]:
    """The pictures of the last step."""
    *_, last = steps
    return [image.tobytes() for image in last.result.images]


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(options_of(random.Random(2 * seed)), options_of(random.Random(2 * seed + 1)))
            for seed in range(PAIRS)]


@pytest.mark.parametrize("number", [
    pytest.param(number, marks=[] if number < 2 else pytest.mark.sweep)
    for number in range(PAIRS)])
def test_pairs_in_turns_and_in_threads(model_path: Path, folder: Path, pipe: Pipeline,
                                       number: int) -> None:
    both = pairs()[number]
    expected = [pixels(loaded(model_path, folder).steps(**options)) for options in both]
    walks = [pipe.steps(**options) for options in both]
    last = [None, None]
    for turn in zip_longest(*walks):
        last = [new or old for new, old in zip(turn, last, strict=True)]
    assert [[image.tobytes() for image in step.result.images] for step in last] == expected
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda options: pixels(pipe.steps(**options)), both)
        assert list(found) == expected
    assert not any(each.users for key in pipe._residents for each in pipe._residents.all(key))


STYLES = ["a cat <lora:style0:0.7>", "a cat <lora:style1:0.6>", "a dog"]


def test_pictures_in_turns_bind_each_their_own_weights_once(
        pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = [pipe.steps(prompt, steps=4) for prompt in STYLES]
    for walk in walks:
        next(walk)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("weights are bound again")

    with monkeypatch.context() as patch:
        patch.setattr(NativeProgram, "bind", fail)
        for _ in range(2):
            for walk in walks:
                next(walk)
    programs = {id(each.program) for key in pipe._residents if key[1] == "unet"
                for each in pipe._residents.all(key)}
    assert len(programs) == len(STYLES)
    shared = [each for each in pipe._residents.all((pipe._submodels.checkpoint, "unet"))]
    others = [each for key in set(pipe._residents) if key[1] != "unet"
              for each in pipe._residents.all(key)]
    assert pipe._residents.taken_bytes < sum(each.bytes for each in [*shared, *others])
    for walk in walks:
        walk.close()
    assert not any(each.users for key in pipe._residents for each in pipe._residents.all(key))


def test_a_picture_that_is_given_up_frees_its_programs(pipe: Pipeline) -> None:
    walks = [pipe.steps(prompt, steps=3) for prompt in STYLES]
    for walk in walks:
        next(walk)
    del walk, walks
    pixels(pipe.steps("a dog"))
    assert [part for _, part in pipe._residents].count("unet") == 1


def test_threads_in_little_memory(model_path: Path, folder: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Each evicts what the other needs next, and streams what does not fit; the bytes are those
    that each makes alone."""
    for name, number in (("BASE_BYTES", 0), ("STAGED", 0), ("resident_bytes", lambda: None)):
        monkeypatch.setattr(residents, name, number)
    monkeypatch.setattr(streaming, "LARGE_BYTES", 1)
    jobs = [{"prompt": prompt, "steps": 3, **more} for prompt, more in zip(
        STYLES, ({}, {"width": 24}, {"hires": 1.5}), strict=True)]
    expected = [pixels(loaded(model_path, folder).steps(**job)) for job in jobs]
    tight = loaded(model_path, folder)
    pixels(tight.steps(**jobs[0]))
    unet = tight._residents.get((tight._submodels.checkpoint, "unet")).program
    tight._residents.budget_bytes = 2 * unet.arena_bytes + int(0.9 * unet.weights_bytes)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda job: tight(**job), 2 * jobs))
    assert [[image.tobytes() for image in result.images] for result in results] == 2 * expected
    assert any("of its weights were there at a time" in text for result in results
               for text in result.warnings)


def test_prompts_are_read_once_a_picture(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a second pass follows, and a prompt stands twice."""
    parts, run = [], Submodels.run
    monkeypatch.setattr(Submodels, "run", lambda self, part, shape, **inputs: (
        parts.append(part), run(self, part, shape, **inputs))[1])
    pixels(pipe.steps("a [dog:cat:0.5]", "blurry", hires=1.5, hires_strength=0.9))
    assert parts.count("text") == 2  # three texts, two at a time
    del parts[:]
    pixels(pipe.steps("a cat AND a cat:0.5", "a cat", hires=1.5))
    assert parts.count("text") == 1
