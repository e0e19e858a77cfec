"""Models are found by what they hold, and named as people know them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_families
from PIL import Image
from safetensors.numpy import save_file
from tiny_controlnet import write_controlnet

from smalti.errors import InputError
from smalti.models import ZImageControlNetConfig, z_image_controlnet_graph
from smalti.server.asked import as_base64, opened
from smalti.server.models import MODEL, ModelFolders
from smalti.server.openai.problems import RefusedError
from smalti.server.openai.request import wanted


def test_files_are_listed_with_what_they_are(models: Path) -> None:
    found = {each.name: each for each in ModelFolders([models]).all()}
    assert [*found] == ["emoji-256.safetensors", "broken.safetensors", "style.safetensors",
                        "small/tiny.safetensors"]
    tiny = found["small/tiny.safetensors"]
    assert (tiny.kind, tiny.family, tiny.usable, tiny.defaults["width"]) == (MODEL, "sd1", True, 16)
    assert found["style.safetensors"].kind == "lora"
    broken = found["broken.safetensors"]
    assert not broken.usable and "broken.safetensors" in broken.problem


def test_the_model_that_ships_is_always_there() -> None:
    (only,) = ModelFolders().all()
    assert only.usable and only.kind == MODEL


@pytest.mark.parametrize("name", ["small/tiny.safetensors", "small/tiny", "tiny"])
def test_a_name_may_leave_out_what_is_clear(models: Path, name: str) -> None:
    assert ModelFolders([models]).named(name, MODEL).path.name == "tiny.safetensors"


@pytest.mark.parametrize(("name", "said"), [
    ("tinny", "near ones: small/tiny.safetensors"), ("../tiny", "no model is named '../tiny'"),
    ("style", "no model is named 'style'"), (3, "given as 3; expected its name")])
def test_other_names_are_refused(models: Path, name: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ModelFolders([models]).named(name, MODEL)


def test_what_has_come_since_the_last_look_is_found(tmp_path: Path, model_path: Path) -> None:
    folders = ModelFolders([tmp_path])
    with pytest.raises(InputError):
        folders.named("one", MODEL)
    shutil.copy(model_path, tmp_path / "one.safetensors")
    assert folders.named("one", MODEL).usable
    (tmp_path / "one.safetensors").unlink()
    assert len(folders.recent()) == 2 and len(folders.all()) == len(folders.recent()) == 1


def test_only_what_is_new_is_opened(models: Path, tmp_path: Path, model_path: Path) -> None:
    folders = ModelFolders([tmp_path])
    before = folders.all()
    shutil.copy(model_path, tmp_path / "one.safetensors")
    after = folders.all()
    assert after[0] is before[0] and [each.name for each in after[1:]] == ["one.safetensors"]
    (tmp_path / "one.safetensors").unlink()
    assert folders.all() == before


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in files of its parts, as ComfyUI has it, and a text encoder of another one."""
    root = tmp_path_factory.mktemp("comfy") / "models"
    tiny_families.write_parts(root, tiny_families.FAMILIES["chroma"])
    other = tiny_families.WORDLESS["chroma"]
    tiny_families.write(root / "text_encoders" / "another.safetensors", tiny_families.text_encoder(
        other, tiny_families.random_weights(other), "t5xxl"))
    return root


def test_a_model_in_several_files_is_found_whole(split: Path) -> None:
    folders = ModelFolders([split])
    model = folders.named("chroma", MODEL)
    assert model.usable and not model.lacks and model.defaults and model.multiple
    assert (model.text_encoders, model.vae) == (("t5xxl.safetensors",), "ae.safetensors")
    assert model.purpose == "text" and "clip_skip" in model.untaken
    asked = opened({"prompt": "a", "model": "chroma"}, folders)
    assert [each.name for each in asked.loading if each] == [
        "chroma.safetensors", "ae.safetensors", "t5xxl.safetensors"]
    given = opened({"prompt": "a", "model": "chroma", "text_encoders": ["another"]}, folders)
    assert [each.name for each in given.text_encoders][-1] == "another.safetensors"


def test_what_a_model_lacks_is_named_until_it_comes(split: Path, tmp_path: Path) -> None:
    shutil.copytree(split, tmp_path / "models")
    vae = tmp_path / "models" / "vae" / "ae.safetensors"
    folders, taken = ModelFolders([tmp_path / "models"]), vae.rename(tmp_path / "taken")
    model = folders.named("chroma", MODEL)
    assert not model.usable and model.lacks == ("t5xxl", "vae")
    assert "put the files of them, such as t5xxl_fp16.safetensors and ae.safetensors" in (
        model.problem)
    with pytest.raises(InputError, match="chroma.safetensors cannot be used as it is: it lacks"):
        opened({"prompt": "a", "model": "chroma"}, folders)
    with pytest.raises(RefusedError, match="cannot be used as it is: it lacks"):
        wanted({"prompt": "a", "model": "chroma", "quality": "high"}, folders, edits=False)
    taken.rename(vae)
    assert {each.name: each for each in folders.all()}["chroma.safetensors"].usable


def test_only_parts_that_are_new_are_tried(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = ModelFolders([split])
    before = folders.all()
    monkeypatch.setattr("smalti.diffusion.completing.completed", None)
    assert folders.all() == before


def test_models_in_several_files_are_called_as_they_are_now_and_tried_anew_when_asked(
        split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = tmp_path / "both" / "models"
    for root in (both.parent, tmp_path):
        shutil.copytree(split, root / "models")
    folders = ModelFolders([tmp_path / "models", both])
    names = [each.name for each in folders.of_kind(MODEL)]
    assert "chroma.safetensors" in names and "models/chroma.safetensors" in names, names
    (tmp_path / "models" / "diffusion_models" / "chroma.safetensors").unlink()
    assert [each.name for each in folders.all() if each.kind == MODEL][1:] == [
        "chroma.safetensors"]
    tried = []
    monkeypatch.setattr("smalti.server.models.completed", lambda file, parts:
                        tried.append(file.name) or file)
    folders.all()
    assert not tried
    folders.forget()
    folders.all()
    assert tried == ["chroma.safetensors"]


def test_a_whole_model_reads_pictures_with_redux_beside_it(tmp_path: Path) -> None:
    """A file of all parts, as one of parts; with Redux in two files, or as a folder."""
    models = tmp_path / "models"
    (models / "checkpoints").mkdir(parents=True)
    path = tiny_families.write_whole(models / "checkpoints" / "flux.safetensors",
                                     tiny_families.FAMILIES["flux"])
    shutil.copy(path, path.with_name("another.safetensors"))
    folders = ModelFolders([models])
    before = folders.named("flux", MODEL)
    assert before.usable and before.text_encoders == () and "redux" in before.untaken
    files = tiny_families.redux_files(models / "style_models")
    folders.all()
    for name in ("flux", "another"):
        model = folders.named(name, MODEL)
        assert model.text_encoders == tuple(each.name for each in files)
        assert model.vae == "" and "redux" not in model.untaken
    asked = opened({"prompt": "a", "model": "flux", "redux": as_base64(Image.new("RGB", (8, 8)))},
                   folders)
    assert [each.path for each in asked.text_encoders] == [*files] and asked.vae is None
    folder = models / "FLUX.1-Redux-dev"
    for file, place in zip(files, ("image_embedder/diffusion_pytorch_model.safetensors",
                                   "image_encoder/model.safetensors"), strict=True):
        (folder / place).parent.mkdir(parents=True)
        file.rename(folder / place)
    (folder / "model_index.json").write_text('{"_class_name": "FluxPriorReduxPipeline"}')
    found = {each.name: each for each in folders.all()}
    assert found["FLUX.1-Redux-dev"].kind == "text-encoder"
    assert found["flux.safetensors"].text_encoders == ("FLUX.1-Redux-dev",)


def test_each_model_has_the_controlnets_that_fit_it(tmp_path: Path, model_path: Path) -> None:
    """Those for others are in the list, with what they are for, but not among those of a model."""
    shutil.copy(model_path, tmp_path / "tiny.safetensors")
    write_controlnet(tmp_path / "ControlNet" / "edges")
    union = ZImageControlNetConfig(64, heads=2, mlp_size=170, blocks=1, axes=(8, 12, 12))
    save_file({name.removeprefix("control_model."): np.zeros(value.shape, np.float32)
               for name, value in z_image_controlnet_graph(union, union, 1, 2, 2, 1)
               .parameters.items() if name.startswith("control_model.")},
              tmp_path / "union.safetensors")
    save_file({"zero_convs.0.0.weight": np.zeros((4, 4, 1, 1), np.float32)},
              tmp_path / "broken.safetensors")
    folders = ModelFolders([tmp_path])
    found = {each.name: each for each in folders.all()}
    edges, = (name for name in found if "edges" in name)
    assert found["union.safetensors"].title == "a union of ControlNets for Z-Image"
    assert found["union.safetensors"].usable and found[edges].usable
    assert not found["broken.safetensors"].usable
    assert "levels of this ControlNet" in found["broken.safetensors"].problem
    assert found["tiny.safetensors"].controls == (edges,)
    assert [*found.values()] == folders.all()
    picture = as_base64(Image.new("RGB", (8, 8)))
    wanted_of = {"prompt": "a", "model": "tiny"}
    assert opened({**wanted_of, "controls": [{"model": edges, "picture": picture}]}, folders)
    with pytest.raises(InputError, match="union.safetensors is a ControlNet for Z-Image, and this "
                                         "model has none; the ControlNets that fit tiny.safeten"):
        opened({**wanted_of, "controls": [{"model": "union", "picture": picture}]}, folders)
