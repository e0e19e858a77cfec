"""A new model family touches its own files only: the worked example of docs/families.md, run as it
is written there, and registered for the time of these tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tiny_families as tiny
from safetensors.numpy import save_file

from smalti import Pipeline
from smalti.checkpoint import inspect, load
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families import ModelFamily, families, registered
from smalti.families.expected import expected_tensors
from smalti.models.config import SD_VAE, ModelConfig

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
BLOCK = re.compile(r"^```python\n# src/(\S+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONS = {"width": 32, "height": 32, "steps": 2}
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def family() -> Iterator[ModelFamily]:
    """The family of the page: its blocks are modules, each importing those before it."""
    added = []
    for path, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        module = ModuleType(path.replace("/", "."))
        sys.modules[module.__name__] = module
        added.append(module.__name__)
        exec(compile(code, str(PAGE), "exec"), vars(module))
    assert [name.rpartition(".")[0] for name in added] == [
        "smalti.models", "smalti.families.keys", "smalti.families.records"]
    with registered(module.SKETCH):
        yield module.SKETCH
    for name in added:
        del sys.modules[name]


@pytest.fixture(scope="module")
def config(family: ModelFamily) -> ModelConfig:
    build = sys.modules["smalti.models.sketch"].SketchConfig
    return ModelConfig("sketch", {"t5xxl": tiny.T5}, build(64, heads=2, blocks=2, context_dim=128),
                       tiny.vae(SD_VAE), "flow")


@pytest.fixture(scope="module")
def weights(config: ModelConfig) -> Weights:
    return tiny.random_weights(config)


@pytest.fixture(scope="module")
def path(config: ModelConfig, weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole file, as its authors name things."""
    return tiny.write(tmp_path_factory.mktemp("sketch") / "sketch.safetensors",
                      whole_file(config, original(weights)))


def original(weights: Weights) -> Weights:
    """The denoiser by the names of its authors' files."""
    table = sys.modules["smalti.families.keys.sketch"].SKETCH_ORIGINAL
    inner, stored = tiny.part(weights, tiny.DENOISER), {}
    for ours, (rows, *_) in table.items():
        for block in ("0", "1"):
            value = inner[ours.replace("*", block)]
            stored.setdefault(rows.name.replace("*", block), {})[rows.index] = value
    return {name: np.concatenate([runs[i] for i in sorted(runs)]) for name, runs in stored.items()}


def whole_file(config: ModelConfig, denoiser: Weights) -> Weights:
    weights = tiny.random_weights(config)
    texts = {f"text_encoders.t5xxl.transformer.{name}": value
             for name, value in tiny.text_encoder(config, weights, "t5xxl").items()}
    return {**{tiny.DENOISER + name: value for name, value in denoiser.items()}, **texts,
            **tiny.part(weights, tiny.VAE, "vae.")}


def pixels(pipe: Pipeline, prompt: str = "a cat", **options: object) -> np.ndarray:
    return np.asarray(pipe(prompt, **{**OPTIONS, **options}).images[0], np.float64)


def test_it_is_recognised_and_read_in_every_layout(
        config: ModelConfig, weights: Weights, path: Path, tmp_path: Path) -> None:
    as_inside = tiny.write(tmp_path / "inside.safetensors",
                           whole_file(config, tiny.part(weights, tiny.DENOISER)))
    alone = tiny.write(tmp_path / "alone.safetensors", original(weights))
    text = tiny.write(tmp_path / "t5.safetensors", tiny.text_encoder(config, weights, "t5xxl"))
    vae = tiny.write(tmp_path / "vae.safetensors", tiny.part(weights, tiny.VAE))
    for found in (load(path), load(as_inside), load(alone, [text], vae)):
        assert (found.config.denoiser, found.config.vae) == (config.denoiser, config.vae)
        assert set(found.names()) == set(expected_tensors(config))
        for name, value in weights.items():
            np.testing.assert_array_equal(found.floats(name), value, name)
    assert found.config.default_steps == 8 and found.config.flow_shift == 3
    report = str(inspect(path))
    assert "a Sketch checkpoint" in report and "2 blocks, width 64, 2 heads" in report
    with pytest.raises(CheckpointError, match="it lacks the text encoder T5-XXL and the auto"):
        load(alone)


def test_it_makes_pictures(path: Path) -> None:
    pipe = Pipeline.load(path, threads=1)
    picture = pixels(pipe)
    assert picture.shape == (32, 32, 3) and picture.std() > 5
    np.testing.assert_array_equal(pixels(pipe), picture)
    for options in ({"prompt": "a dog"}, {"negative_prompt": "blurry"}, {"seed": 8}):
        assert np.abs(pixels(pipe, **options) - picture).mean() > 0.1
    for part in pipe.parts:
        assert pipe.explain(part, width=32, height=32)


def test_the_prompt_is_read_within_its_template(family: ModelFamily, path: Path) -> None:
    """Without the template, and the states of it that are dropped, another prompt is the same."""
    (text,) = family.texts
    pipe = Pipeline.load(path, threads=1)
    picture = pixels(pipe, guidance_scale=1)
    with registered(replace(family, texts=(replace(text, template="{}"),))):
        same = pixels(Pipeline.load(path, threads=1), "A pencil sketch: a cat", guidance_scale=1)
    np.testing.assert_array_equal(same, picture)
    with registered(replace(family, texts=(replace(text, dropped=0),))):
        other = pixels(Pipeline.load(path, threads=1), guidance_scale=1)
    assert np.abs(other - picture).mean() > 0.1


def test_an_adapter_in_the_spelling_of_its_files_changes_it(path: Path, tmp_path: Path) -> None:
    lora = tmp_path / "lora.safetensors"
    random = np.random.default_rng(0)
    save_file({f"diffusion_model.strokes.1.attention.out.lora_{kind}.weight":
               random.standard_normal(shape, np.float32)
               for kind, shape in (("A", (2, 64)), ("B", (64, 2)))}, lora)
    pipe = Pipeline.load(path, threads=1)
    picture = pixels(pipe)
    assert "applied 2 of 2 tensors" in str(pipe.load_lora(lora))
    assert np.abs(pixels(pipe) - picture).mean() > 0.1
    with pytest.raises(CheckpointError, match="is an adapter for Sketch, and"):
        Pipeline.load(threads=1).load_lora(lora)


def test_a_family_is_known_only_while_it_is_registered(family: ModelFamily, path: Path) -> None:
    known = dict(families())
    with registered(replace(family, name="other", before=("sketch",))):
        assert list(families()).index("other") < list(families()).index("sketch")
        assert inspect(path).kind.family == "other"
    assert families() == known
    with registered(replace(family, files=())), pytest.raises(
            UnknownFamilyError, match="tensors of no known model family"):
        load(path)


def test_its_name_tells_of_a_model_that_was_distilled(family: ModelFamily, path: Path) -> None:
    """As for all models of its prediction, or as its own record says."""
    few = path.rename(path.with_name("sketch-turbo.safetensors"))
    found = load(few).config
    assert (found.default_steps, found.default_guidance, found.default_sampler) == (4, 1, "euler")
    with registered(replace(family, distilled={"turbo": {"steps": 3, "sampler": "dpmpp_2m"}})):
        found = load(few).config
    assert (found.default_steps, found.default_guidance, found.default_sampler) == (
        3, 3, "dpmpp_2m")
    few.rename(path)
