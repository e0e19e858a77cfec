"""Adapters from the side of who makes pictures: every family, all ways to ask, what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from safetensors.numpy import load_file, save_file
from tiny_adapters import pair, write_adapter
from tiny_model import TINY

from smalti import Pipeline, checkpoint
from smalti.checkpoint import convert
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter
from smalti.checkpoint.adapters.report import adapter_report
from smalti.diffusion import metadata
from smalti.diffusion.adapters import other_version
from smalti.diffusion.options import PictureOptions
from smalti.errors import CheckpointError, InputError

SMALL = {"width": 32, "height": 32, "steps": 1}


def pixels(pipe: Pipeline, **options: object) -> np.ndarray:
    return np.asarray(pipe("a red apple", **options).images[0], np.float64)


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=[] if name in ("sd1", "flux") else pytest.mark.sweep)
    for name in tiny.FAMILIES])
def test_every_family_takes_adapters_and_gives_them_back(
        family_files: tiny.Files, tmp_path: Path, family: str) -> None:
    adapter = write_adapter(tmp_path / "adapter.safetensors", tiny.FAMILIES[family])
    pipe = Pipeline.load(family_files[family], threads=1)
    before = pixels(pipe, **SMALL)
    fit = pipe.load_lora(adapter)
    assert not fit.unused, str(fit)
    assert np.abs(pixels(pipe, **SMALL) - before).mean() > 0.1
    pipe.load_lora(adapter, 0.0, 1.0)
    assert len(pipe.loras) == 1
    text_only = pixels(pipe, **SMALL)
    assert 0 < np.abs(text_only - before).mean()
    pipe.loras = ()
    np.testing.assert_array_equal(pixels(pipe, **SMALL), before)


def test_an_adapter_of_few_steps_says_how_it_is_used(
        pipe: Pipeline, adapter: Path, tmp_path: Path) -> None:
    """By its name, its folder's, or its metadata; what is asked for counts more."""
    changes = load_file(adapter)
    named = tmp_path / "sdxl_lightning_2step_lora.safetensors"
    hub = tmp_path / "models--owner--lcm-lora-sdv1-5" / "snapshots" / "0" / (
        "pytorch_lora_weights.safetensors")
    titled = tmp_path / "mine.safetensors"
    hub.parent.mkdir(parents=True)
    save_file(changes, named)
    save_file(changes, hub)
    save_file(changes, titled, {"ss_output_name": "tcd-lora"})
    expected = {named: (2, 1.0, "euler", "sgm_uniform"), hub: (6, 1.5, "lcm", "lcm"),
                titled: (4, 1.0, "tcd", "lcm")}
    for path, defaults in expected.items():
        pipe.loras = [path]
        job = pipe.job(PictureOptions("a red apple"))
        given = job.asked
        assert (given.steps, given.guidance_scale, given.sampler, given.noise) == defaults
        (note,) = job.notes
        assert note.startswith(f"defaults are those that {path.name} is made for: ")
    one = tmp_path / "sdxl_lightning_1step_x0.safetensors"
    save_file(changes, one)
    pipe.loras = [one]
    job = pipe.job(PictureOptions("a red apple"))
    assert job.asked.steps == 1 and pipe.config.prediction == "epsilon"
    pipe.loras = [titled]
    asked = pipe.job(PictureOptions("a red apple", steps=1, sampler="euler_a")).asked
    assert (asked.steps, asked.sampler, asked.guidance_scale) == (1, "euler_a", 1.0)
    pipe.loras = [named, (titled, 0.5), (hub, 0.0)]
    job = pipe.job(PictureOptions("a red apple"))
    assert job.asked.sampler == "tcd"
    assert any(text.startswith("mine.safetensors makes few steps of many (tcd), and so does sdxl_l")
               for text in job.warnings)
    pipe.loras = []
    job = pipe.job(PictureOptions("a red apple"))
    assert job.asked.sampler == "euler_a" and not job.notes
    assert "few steps   lightning: 2 steps, guidance 1" in adapter_report(named)
    assert "few steps" not in adapter_report(adapter)


@pytest.mark.parametrize(("metadata", "other"), [
    ({"modelspec.prediction_type": "v"}, True), ({"ss_v_parameterization": "True"}, True),
    ({"modelspec.prediction_type": "epsilon"}, False), ({}, False),
    ({"modelspec.prediction_type": "?"}, False)])
def test_an_adapter_for_models_that_predict_something_else(
        pipe: Pipeline, adapter: Path, tmp_path: Path, metadata: dict[str, str], other: bool
        ) -> None:
    path = tmp_path / "a.safetensors"
    save_file(load_file(adapter), path, metadata)
    pipe.loras = [path]
    said = [text for text in pipe.job(PictureOptions("a red apple")).warnings
            if "trained for models that predict v_prediction, and this one predicts eps" in text]
    assert len(said) == other
    pipe.loras = []


@pytest.mark.parametrize(("family", "said", "told"), [
    ("qwen-image-edit-2511", "qwen_image_edit_2509", "Qwen-Image-Edit-2509"),
    ("qwen-image-edit-2509", "Qwen-Image-Edit-2511/lora", "Qwen-Image-Edit-2511"),
    ("qwen-image-edit", "qwen_image_edit_plus", "Qwen-Image-Edit-2509"),
    ("qwen-image-edit-2511", "qwen_image_edit", "Qwen-Image-Edit"),
    ("qwen-image", "qwen_image_edit", "Qwen-Image-Edit"),
    ("qwen-image-edit-2511", "qwen_image_edit_plus", None),
    ("qwen-image-edit", "qwen_image_edit", None), ("qwen-image-edit", "qwen_image", None),
    ("qwen-image-edit", "", None), ("sd1", "qwen_image_edit", None)])
def test_an_adapter_for_another_version_of_edit(tmp_path: Path, family: str, said: str,
                                                told: str | None) -> None:
    path = tmp_path / "hat.safetensors"
    save_file(pair("transformer.transformer_blocks.0.attn.to_q", 8, 8), path,
              {"ss_base_model_version": said})
    config = {**tiny.FAMILIES, **tiny.EDITS}[family]
    warnings = other_version(config, AdapterFile.open(path))
    assert bool(warnings) == bool(told)
    assert all(f"hat.safetensors was trained for {told}, as its" in each for each in warnings)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "style one.safetensors", TINY)


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


def test_all_ways_to_ask_mean_the_same(pipe: Pipeline, adapter: Path, model_path: Path) -> None:
    pipe.loras = [(adapter, 0.5)]
    expected = pixels(pipe)
    used = pipe.loras
    for entries in ([WeightedAdapter(used[0].adapter, 0.5)], [(str(adapter), 0.5, 0.5)],
                    [(adapter, 0.25), (adapter, 0.25)]):
        pipe.loras = entries
        assert np.abs(pixels(pipe) - expected).mean() < 0.1
    pipe.loras = ()
    assert not str(pipe.load_lora(adapter, 0.5)).count("not used")
    np.testing.assert_array_equal(pixels(pipe), expected)
    other = Pipeline.load(model_path, threads=1, loras=[(adapter, 0.5)])
    np.testing.assert_array_equal(pixels(other), expected)


def test_a_file_is_opened_once_until_it_changes(pipe: Pipeline, adapter: Path,
                                                tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(adapter.read_bytes())
    pipe.loras = [path, (path, 0.5)]
    first, second = (use.adapter for use in pipe.loras)
    assert first is second
    pipe.load_lora(path, 0.25)
    assert [use.weight for use in pipe.loras] == [0.25]
    write_adapter(path, TINY, seed=9).touch()
    pipe.loras = [path]
    assert pipe.loras[0].adapter is not first


def test_what_is_used_stands_in_the_text_of_the_picture(pipe: Pipeline, adapter: Path) -> None:
    pipe.loras = [(adapter, 0.5), (adapter, 1.0, 0.25)]
    (text,) = pipe("a red apple").texts
    assert metadata.parse(text).pairs["Lora"] == "style one:0.5, style one:0.25:1"
    pipe.loras = ()
    assert "Lora" not in pipe("a red apple").texts[0]


def test_what_is_not_used_is_a_warning(pipe: Pipeline, adapter: Path, tmp_path: Path) -> None:
    odd = {"lora_unet_far_away.lora_down.weight": np.ones((2, 2), np.float32)}
    tensors = load_file(adapter) | odd
    save_file(tensors, tmp_path / "odd.safetensors")
    pipe.loras = [tmp_path / "odd.safetensors"]
    (warning,) = pipe("a red apple").warnings
    assert warning == (f"odd.safetensors: applied {len(tensors) - 1} of {len(tensors)} tensors; "
                       f"not used: lora_unet_far_away.lora_down.weight (the model has no such "
                       f"layer)")
    pipe.loras = ()
    assert not pipe("a red apple").warnings


@pytest.mark.parametrize(("entry", "error", "words"), [
    (3, InputError, r"3 is no adapter; expected a path, \(path, weight\)"),
    (("a", "b"), InputError, "is no adapter"), (("a", None), InputError, "is no adapter"),
    (("a", True), InputError, "is no adapter"), ("a\0b", InputError, "a path has no NUL in it"),
    (("a", 1, 1, 1), InputError, "is no adapter"), ("missing.safetensors", CheckpointError,
                                                    "missing.safetensors cannot be read"),
])
def test_what_is_no_adapter_is_refused_and_leaves_all_as_it_was(
        pipe: Pipeline, adapter: Path, entry: object, error: type, words: str) -> None:
    pipe.loras = [(adapter, 0.5)]
    with pytest.raises(error, match=words):
        pipe.loras = [entry]
    assert [use.weight for use in pipe.loras] == [0.5]


def test_one_for_another_family_names_both(pipe: Pipeline, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "flux.safetensors", tiny.FAMILIES["flux"])
    with pytest.raises(CheckpointError, match="flux.safetensors is an adapter for Flux.1, Chroma or"
                                              " LongCat-Image, and .*tiny.safetensors is a UNet f"):
        pipe.load_lora(path)


# ---------------------------------------------------------------------- named in prompts


@pytest.fixture(scope="module")
def named(model_path: Path, adapter: Path) -> Pipeline:
    """A pipeline that finds the adapters of a folder."""
    return Pipeline.load(model_path, threads=1, lora_folder=adapter.parent)


def test_the_first_of_several_folders_that_has_an_adapter_counts(
        model_path: Path, adapter: Path, tmp_path: Path, named: Pipeline) -> None:
    write_adapter(tmp_path / adapter.name, TINY, 9)
    prompt = f"a red apple <lora:{adapter.stem}:0.8>"
    both = [Pipeline.load(model_path, threads=1, residents=named.residents, lora_folder=folders)
            for folders in ([adapter.parent, tmp_path], [tmp_path, adapter.parent])]
    first, second = (picture(pipe, prompt).tobytes() for pipe in both)
    assert first == picture(named, prompt).tobytes() != second
    assert both[0].residents is named.residents


def picture(pipe: Pipeline, prompt: str, **options: object) -> np.ndarray:
    return np.asarray(pipe(prompt, **options).images[0])


def test_a_prompt_names_an_adapter_for_one_picture(named: Pipeline, adapter: Path) -> None:
    before = picture(named, "a red apple")
    asked = [picture(named, f"a red apple {tag}") for tag in (
        "<lora:style one:0.5>", "<lora:Style One:0.5:0.5>", "<lora:style one:unet=0.5:te=0>",
        "<lora:style one:0.25><lyco:style one:0.25>")]
    np.testing.assert_array_equal(picture(named, "a red apple"), before)
    assert named.loras == ()
    given = []
    for weights in ((0.5, 0.5), (0.5, 0.0)):
        named.loras = [(adapter, *weights)]
        given.append(picture(named, "a red apple"))
    np.testing.assert_array_equal(asked[0], given[0])
    np.testing.assert_array_equal(asked[1], given[0])
    np.testing.assert_array_equal(asked[2], given[1])
    assert np.abs(asked[3].astype(float) - given[0]).mean() < 0.1
    named.loras = [(adapter, 0.25)]
    more = picture(named, "a red apple <lora:style one:0.25>")
    assert np.abs(more.astype(float) - given[0]).mean() < 0.1
    named.loras = ()


def test_the_text_of_the_picture_has_what_the_prompt_names_once(named: Pipeline) -> None:
    (text,) = named("a red apple <lora:style one:0.5>").texts
    found = metadata.parse(text)
    assert found.prompt == "a red apple <lora:style one:0.5>" and "Lora" not in found.pairs


def test_an_unknown_name_is_refused_with_near_ones(named: Pipeline, pipe: Pipeline,
                                                   tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the adapter 'style two', and none of the 1 files in .* "
                                         "is named so; near ones: style one"):
        named("a red apple <lora:style two:1>")
    (warning,) = pipe("a red apple <lora:style two:1>").warnings
    assert "style two" in warning and "left out" in warning
    with pytest.raises(InputError, match="is no folder"):
        Pipeline.load(lora_folder=tmp_path / "none")


def test_pictures_in_turns_keep_their_own_adapters(named: Pipeline) -> None:
    prompts = ("a red apple", "a red apple <lora:style one:0.7>")
    expected = [picture(named, prompt) for prompt in prompts]
    walks = [named.steps(prompt) for prompt in prompts]
    for steps in zip(*walks, strict=True):
        last = steps
    for step, wanted in zip(last, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(step.result.images[0]), wanted)


# ---------------------------------------------------------------------- quantised models


@pytest.mark.parametrize(("container", "precision"), [
    (".gguf", "q4_0"), pytest.param(".gguf", "q8_0", marks=pytest.mark.sweep),
    pytest.param(".safetensors", "fp8", marks=pytest.mark.sweep)])
def test_quantised_weights_are_read_then_changed(
        family_files: tiny.Files, tmp_path: Path, container: str, precision: str) -> None:
    config = tiny.FAMILIES["flux"]
    model = tmp_path / f"quantised{container}"
    with open(model, "wb") as stream:
        list(convert.plan(family_files["flux"], container, precision).write(stream))
    opened = checkpoint.load(model)
    adapter = AdapterFile.open(write_adapter(tmp_path / "style.safetensors", config))
    adapted = Adapted(opened, [WeightedAdapter(adapter, 0.5)])
    quantised = [name for name in adapted.changed if opened.dtype(name) not in (
        "F32", "F16", "BF16")]
    assert quantised
    for name in quantised[:8]:
        assert adapted.floats(name).dtype == (np.float16 if precision == "fp8" else np.float32)
        assert not np.array_equal(adapted.floats(name), opened.read(name))
    pipe = Pipeline.load(model, threads=1)
    before = pixels(pipe, **SMALL)
    pipe.loras = [(adapter.path, 0.5)]
    assert np.abs(pixels(pipe, **SMALL) - before).mean() > 0.1
    pipe.loras = ()
    np.testing.assert_array_equal(pixels(pipe, **SMALL), before)
