"""What is told of model files: words, pictures, hashes, what they were made for."""

from __future__ import annotations

import hashlib
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from served import SECONDS, Client

from smalti.families import families
from smalti.server import guide
from smalti.server.archive import Archive
from smalti.server.beside import Listings, words_of
from smalti.server.hashes import Hashes
from smalti.server.models import ModelFile, ModelFolders

TAGS = {"ss_tag_frequency": json.dumps({"10_hero": {"hero girl": 40, "smile": 25, "hat": 3},
                                        "reg": {"hero girl": 2}})}


def adapter(path: Path, metadata: dict[str, str]) -> Path:
    safetensors.numpy.save_file({"a": np.ones(1, np.float32)}, path, metadata)
    return path


@pytest.mark.parametrize(("metadata", "beside", "words"), [
    (TAGS, {}, ("hero girl", "smile")),
    ({"modelspec.trigger_phrase": "hero girl, red cape"}, {}, ("hero girl", "red cape")),
    (TAGS, {".json": {"activation text": "hero, hero"}}, ("hero",)),
    (TAGS, {".civitai.info": {"trainedWords": ["a hero, cape", "b", 3]}}, ("a hero", "cape", "b")),
    ({"ss_tag_frequency": "["}, {".json": [1]}, ()),
    ({"ss_tag_frequency": '{"a": 3, "b": {"c": "d"}}'}, {}, ()), ({}, {}, ())])
def test_words_of_an_adapter_are_what_its_files_say(
        tmp_path: Path, metadata: dict[str, str], beside: dict[str, object],
        words: tuple[str, ...]) -> None:
    path = adapter(tmp_path / "hero.v1.safetensors", metadata)
    for ending, content in beside.items():
        (tmp_path / f"hero.v1{ending}").write_text(json.dumps(content))
    assert words_of(path) == words


def test_pictures_beside_a_model_are_found(tmp_path: Path) -> None:
    for name in ("a.png", "a.preview.png", "b.webp", "c.v2.jpg"):
        (tmp_path / name).touch()
    found = [Listings().picture_of(tmp_path / name) for name in
             ("a.safetensors", "b.ckpt", "c.v2.gguf", "c.safetensors", "none/d.pt")]
    assert [each and each.name for each in found] == [
        "a.preview.png", "b.webp", "c.v2.jpg", None, None]


def test_hashes_are_computed_once_while_no_job_runs(tmp_path: Path) -> None:
    archive, told, busy = Archive(tmp_path / "a.sqlite"), [], [True]
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"weights" * 1000)
    hashes = Hashes(archive, idle=lambda: not busy, known=lambda: told.append(1))
    assert hashes.of(path) is None and hashes.of(tmp_path) is None
    time.sleep(0.02)
    assert hashes.of(path) is None, "a job runs"
    busy.clear()
    until = time.monotonic() + SECONDS
    while (found := hashes.of(path)) is None and time.monotonic() < until:
        time.sleep(0.01)
    assert found == hashlib.sha256(path.read_bytes()).hexdigest()
    hashes.stop()
    assert told and Hashes(archive, lambda: False, told.clear).of(path) == found
    path.write_bytes(b"others")
    assert hashes.of(path) is None, "it changed, and nothing is computed any more"
    archive.close()


def test_a_model_has_a_picture_a_hash_and_what_it_was_made_for(client: Client, models: Path
                                                               ) -> None:
    home = models / "models" / "Stable-diffusion" / "small"
    Image.new("RGB", (900, 600), "blue").save(home / "tiny.png")
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        listed = {each["name"]: each for each in client.get("/api/models").json["models"]}
        if listed["small/tiny.safetensors"]["hash"]:
            break
        time.sleep(0.02)
    tiny = listed["small/tiny.safetensors"]
    whole = hashlib.sha256((home / "tiny.safetensors").read_bytes()).hexdigest()
    assert (tiny["hash"], tiny["preview"]) == (whole[:10], True)
    assert listed["style.safetensors"]["preview"] is False
    answer = client.get("/api/models/preview?name=tiny&kind=model")
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert (picture.format, picture.size) == ("WEBP", (512, 341))
    assert client.get("/api/models/preview?name=style&kind=lora").status == 404
    assert client.get("/api/models/preview?name=../tiny").status == 422
    (home / "tiny.png").write_bytes(b"no picture")
    assert "cannot be read" in client.get("/api/models/preview?name=tiny").json["message"]
    (home / "tiny.png").unlink()
    again = client.post("/api/models/refresh").json["models"]
    assert [each["preview"] for each in again if each["name"] == tiny["name"]] == [False]
    told = client.get("/api/models/defaults?name=tiny").json
    assert told["family"] == "Stable Diffusion 1.x" and told["draws"] is None
    assert told["sizes"] == [[16, 16]] and told["defaults"]["width"] == 16
    shipped = client.get("/api/models/defaults").json
    assert "red apple" in shipped["draws"] and "256×256" in shipped["about"]
    assert shipped["multiple"] == 64


def test_sizes_are_those_that_a_model_was_trained_on() -> None:
    file = ModelFile("a", Path("a"), 1, "model", "sdxl", "", True, "",
                     {"width": 1024, "height": 1024})
    assert guide.sizes(file) == [
        (1024, 1024), (1152, 896), (896, 1152), (1280, 832), (832, 1280), (1344, 768), (768, 1344)]
    assert set(guide.ABOUT) == set(families())


def test_the_shipped_model_has_learnt_what_it_is_said_to_draw() -> None:
    lines = Path(__file__).parents[2].joinpath("training/concepts.txt").read_text().splitlines()
    learnt = {word.strip() for line in lines if line.count("|") > 1 and line[0] != "#"
              for word in line.split("|")[2].split(",")}
    assert {*guide.DRAWS} <= learnt
    assert ModelFolders().all()[0].defaults["width"] == 256
