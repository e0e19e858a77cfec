"""Folders as people have them: each file is found once, by the name that its program gives it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint.samples import TINY as SAMPLE
from checkpoint.samples import random_weights, write_folder
from tiny_adapters import write_adapter
from tiny_model import TINY

from smalti.errors import InputError
from smalti.server.comfy import extra_folders
from smalti.server.models import MODEL, ModelFolders


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "style.safetensors", TINY)


def put(file: Path, place: Path) -> Path:
    """A copy of a file at a place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, place)
    return place


def names(*given: Path) -> tuple[list[str], list[str]]:
    """Names of what is found, but for the shipped model, and what is warned of."""
    warnings: list[str] = []
    return [each.name for each in ModelFolders(given, warnings.append).all()][1:], warnings


def test_programs_keep_models_in_some_of_their_folders(
        tmp_path: Path, model_path: Path, lora: Path) -> None:
    webui = tmp_path / "programs" / "stable-diffusion-webui"
    put(model_path, webui / "models" / "Stable-diffusion" / "anime" / "a.safetensors")
    put(lora, webui / "models" / "Lora" / "a.safetensors")
    put(lora, webui / "embeddings" / "b.safetensors")
    put(lora, webui / "extensions" / "sd-webui-controlnet" / "models" / "c.safetensors")
    (webui / "webui.py").touch()
    put(model_path, webui / "venv" / "lib" / "site-packages" / "torch" / "no.bin")
    put(model_path, webui / "outputs" / "no.safetensors")
    expected = ["b.safetensors", "c.safetensors", "a.safetensors", "anime/a.safetensors"]
    assert names(webui) == (expected, [])
    found, warnings = names(webui.parent)
    assert [name.rpartition("/")[2] for name in found] == [
        name.rpartition("/")[2] for name in expected] and not warnings


def test_any_other_folder_is_searched_but_for_programs(tmp_path: Path, model_path: Path) -> None:
    put(model_path, tmp_path / "sd" / "a.safetensors")
    put(model_path, tmp_path / "models" / "b.safetensors")
    put(model_path, tmp_path / "miniconda" / "no.safetensors")
    (tmp_path / "miniconda" / "conda-meta").mkdir()
    put(model_path, tmp_path / ".hidden" / "no.safetensors")
    put(model_path, tmp_path / "env" / "no.safetensors")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert names(tmp_path) == (["models/b.safetensors", "sd/a.safetensors"], [])


def test_names_are_those_of_a_kind(tmp_path: Path, model_path: Path, lora: Path) -> None:
    """A model and an adapter may be called alike; of two models the second has a longer name."""
    put(model_path, tmp_path / "one" / "checkpoints" / "a.safetensors")
    put(lora, tmp_path / "one" / "loras" / "a.safetensors")
    put(model_path, tmp_path / "two" / "models" / "checkpoints" / "a.safetensors")
    folders = ModelFolders([tmp_path / "one", tmp_path / "two"])
    assert [(each.kind, each.name) for each in folders.all()[1:]] == [
        (MODEL, "a.safetensors"), ("lora", "a.safetensors"), (MODEL, "two/a.safetensors")]
    assert folders.named("a", MODEL).path.is_relative_to(tmp_path / "one")
    assert folders.named("two\\a.safetensors", MODEL).path.is_relative_to(tmp_path / "two")
    assert folders.named("a", "lora").kind == "lora"


def test_the_cache_of_the_hub_is_listed_by_repository(
        tmp_path: Path, model_path: Path) -> None:
    hub = tmp_path / "hub"
    repository = hub / "models--owner--some.model"
    blob = put(model_path, repository / "blobs" / "0123")
    (repository / "blobs" / "4567.incomplete").touch()
    for revision in ("old" + "0" * 37, "new" + "0" * 37):
        snapshot = repository / "snapshots" / revision
        write_folder(snapshot, random_weights(SAMPLE))
        (snapshot / "a.safetensors").symlink_to(os.path.relpath(blob, snapshot))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("new" + "0" * 37)
    put(model_path, hub / "datasets--owner--no" / "snapshots" / "1" / "no.safetensors")
    configs = hub / "models--owner--configs" / "snapshots" / "1"
    (configs / "unet").mkdir(parents=True)
    (configs / "model_index.json").write_text("{}")
    found, warnings = names(hub)
    assert found == ["owner/some.model", "owner/some.model/a.safetensors",
                     "owner/some.model@old00000"]
    assert len(warnings) == 1 and "owner/some.model has a download" in warnings[0]
    folders = ModelFolders([hub])
    assert folders.named("owner/some.model", MODEL).stem == "some.model"
    assert folders.named("owner/some.model/a", MODEL).usable


def test_links_are_followed_and_nothing_is_listed_twice(tmp_path: Path, model_path: Path) -> None:
    real = put(model_path, tmp_path / "elsewhere" / "a.safetensors")
    served = tmp_path / "served"
    (served / "inner").mkdir(parents=True)
    (served / "loop").symlink_to(served)
    (served / "out").symlink_to(real.parent)
    (served / "again.safetensors").symlink_to(real)
    os.link(real, served / "hard.safetensors")
    (served / "nowhere.safetensors").symlink_to(tmp_path / "absent")
    (served / "device.safetensors").symlink_to(os.devnull)
    if hasattr(os, "mkfifo"):
        os.mkfifo(served / "pipe.safetensors")  # which would wait for a writer for ever
    found, warnings = names(served, served / "inner", served)
    assert found == ["again.safetensors"]
    assert len(warnings) == 1 and "nowhere.safetensors is left out: it is a link" in warnings[0]


def test_downloads_that_have_not_ended_are_named(tmp_path: Path, model_path: Path) -> None:
    put(model_path, tmp_path / "a.safetensors")
    put(model_path, tmp_path / "b.safetensors")
    (tmp_path / "b.safetensors.aria2").touch()
    (tmp_path / "c.safetensors.part").touch()
    (tmp_path / "d.ckpt.crdownload").touch()
    (tmp_path / "Unconfirmed 1.crdownload").touch()
    (tmp_path / "e.safetensors").write_bytes(model_path.read_bytes()[:-100])
    (tmp_path / "f.gguf").touch()
    folders = ModelFolders([tmp_path], lambda text: None)
    assert [each.name for each in folders.all() if each.usable][1:] == ["a.safetensors"]
    assert [text.split(" is ")[0].rpartition(os.sep)[2] for text in folders.warnings] == [
        "b.safetensors", "c.safetensors.part", "d.ckpt.crdownload", "e.safetensors", "f.gguf"]


def test_shards_are_one_model(tmp_path: Path, model_path: Path) -> None:
    for number in (1, 2, 3):
        put(model_path, tmp_path / f"m-{number:05}-of-00003.safetensors")
    assert names(tmp_path)[0] == ["m-00001-of-00003.safetensors"]


def test_a_warning_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "c.safetensors.part").touch()
    told: list[str] = []
    folders = ModelFolders([tmp_path], told.append)
    folders.all()
    folders.all()
    assert len(told) == 1 and folders.warnings == told


def test_a_folder_that_may_not_be_read_takes_nothing_away(
        tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `lost+found` of a disk, and a part of a model that is another user's."""
    put(model_path, tmp_path / "own.safetensors")
    for closed in (tmp_path / "lost+found", tmp_path / "whole" / "unet"):
        closed.mkdir(parents=True)
    (tmp_path / "whole" / "model_index.json").write_text("{}")

    def denied(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any = ".", *args: Any, **more: Any) -> Any:
            if "lost+found/" in os.fspath(path) or Path(path).name in ("lost+found", "unet") and (
                    function is not os.stat):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return function(path, *args, **more)

        return called

    for name in ("stat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, denied(getattr(os, name)))
    found, warnings = names(tmp_path)
    assert found == ["own.safetensors"]
    assert [text for text in warnings if "unet cannot be searched for models" in text]


EXTRA = """\
# as ComfyUI's example has it
a1111:
    base_path: ~/webui/
    is_default: true
    checkpoints: models/Stable-diffusion
    configs: models/Stable-diffusion
    loras: |
         models/Lora

         models/LyCORIS
    ipadapter: models/IP
other:
    base_path: $SMALTI_TEST_FOLDER
    diffusion_models: big
nothing:
relative:
    checkpoints: |
        beside
        absent
windows:
    base_path: D:\\ComfyUI
    checkpoints: models
"""


def test_extra_model_paths_are_those_of_comfyui(
        tmp_path: Path, model_path: Path, lora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comfy = tmp_path / "ComfyUI"
    put(model_path, comfy / "models" / "checkpoints" / "own.safetensors")
    (comfy / "main.py").touch()
    (comfy / "extra_model_paths.yaml").write_text(EXTRA)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("SMALTI_TEST_FOLDER", str(tmp_path / "other"))
    put(model_path, tmp_path / "webui" / "models" / "Stable-diffusion" / "vae" / "a.safetensors")
    put(lora, tmp_path / "webui" / "models" / "Lora" / "b.safetensors")
    put(lora, tmp_path / "webui" / "models" / "LyCORIS" / "c.safetensors")
    put(lora, tmp_path / "webui" / "models" / "IP" / "no.safetensors")
    put(model_path, tmp_path / "other" / "big" / "d.safetensors")
    put(model_path, comfy / "beside" / "e.safetensors")
    found, warnings = names(comfy)
    assert found == ["vae/a.safetensors", "b.safetensors", "c.safetensors", "own.safetensors",
                     "d.safetensors", "e.safetensors"]
    assert [any(part in each for each in warnings) for part in (
        "the key 'ipadapter'", "absent, where there is no folder", "D:\\ComfyUI")] == [True] * 3
    assert len(warnings) == 3
    assert names(comfy / "extra_model_paths.yaml")[0] == [
        each for each in found if each != "own.safetensors"]


@pytest.mark.parametrize(("text", "said"), [
    ("a: [", "is no YAML"), ("- a", "is a list; expected sections"),
    ("a: 1", "a is 1; expected base_path"), ("a: {checkpoints: 3}", "checkpoints of a is 3"),
    ("a: {base_path: 3}", "base_path of a is 3"), ("a: {is_default: 3}", "is_default of a is 3"),
    ('a: {base_path: "C:\\Users"}', "in single ones"),
    ("a: !!python/object/apply:os.system [ls]", "is no YAML"), ("a: \0", "is no YAML"),
    ("[" * 500, "is no YAML"), ("#" * (1 << 21), "has more than")])
def test_files_that_are_none_of_comfyui_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "extra_model_paths.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        extra_folders(path, pytest.fail)
    assert said in names(path)[1][0]
