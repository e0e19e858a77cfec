"""Models are found by what they hold, and named as people know them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from smalti.errors import InputError
from smalti.server.models import MODEL, ModelFolders


def test_files_are_listed_with_what_they_are(models: Path) -> None:
    found = {each.name: each for each in ModelFolders([models]).all()}
    assert [*found] == ["emoji-128.safetensors", "broken.safetensors", "style.safetensors",
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
