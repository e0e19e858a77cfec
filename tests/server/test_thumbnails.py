"""Thumbnails, favourites and deletion of the gallery."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from served import Client

from smalti.errors import InputError
from smalti.server.thumbnails import Thumbnails

APPLE: dict[str, Any] = {"prompt": "a red apple", "model": "tiny", "steps": 1}


def test_a_thumbnail_is_made_once(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500), "red").save(tmp_path / "a.png")
    thumbnails = Thumbnails(tmp_path / "small")
    content = thumbnails.of(tmp_path / "a.png", "day/a", 384)
    with Image.open(io.BytesIO(content)) as picture:
        assert (picture.format, picture.size) == ("WEBP", (384, 192))
    (tmp_path / "a.png").unlink()
    assert thumbnails.of(tmp_path / "a.png", "day/a", 384) == content
    assert [each.name for each in (tmp_path / "small").rglob("*.*")] == ["a.webp"]
    thumbnails.forget("day/a")
    with pytest.raises(InputError, match="a.png cannot be read as a picture"):
        thumbnails.of(tmp_path / "a.png", "day/a", 384)


def test_of_thumbnails_that_nobody_deletes_the_last_ones_stay(tmp_path: Path) -> None:
    Image.new("RGB", (8, 4), "red").save(tmp_path / "a.png")
    thumbnails, small = Thumbnails(tmp_path / "small"), tmp_path / "small" / "models"
    for at, name in enumerate(("one", "two", "three")):
        thumbnails.of(tmp_path / "a.png", f"models/{name}", 384, most=3)
        os.utime(small / f"{name}.webp", (at, at))
    thumbnails.of(tmp_path / "a.png", "models/one", 384, most=3)  # looked at again
    thumbnails.of(tmp_path / "a.png", "models/four", 384, most=3)
    assert {each.stem for each in small.iterdir()} == {"one", "three", "four"}


def test_a_picture_that_was_deleted_in_its_folder_has_no_thumbnail(client: Client) -> None:
    picture = client.made(**APPLE)["pictures"][0]
    record = client.site.archive.picture(picture["id"])
    assert record is not None
    kept = client.site.gallery.root / ".thumbnails" / Path(record.path).with_suffix(".webp")
    at = f"/api/pictures/{picture['id']}/thumbnail"
    assert client.get(at).status == 200 and kept.is_file()
    (client.site.gallery.root / record.path).unlink()
    assert client.get(at).status == 404 and not kept.exists()


def test_where_a_thumbnail_cannot_be_kept_it_is_made_again(tmp_path: Path) -> None:
    Image.new("RGB", (8, 4), "red").save(tmp_path / "a.png")
    (tmp_path / "small").write_bytes(b"no folder")
    thumbnails = Thumbnails(tmp_path / "small")
    assert thumbnails.of(tmp_path / "a.png", "a", 384) == thumbnails.of(
        tmp_path / "a.png", "a", 384)


def test_pictures_are_favourites_and_are_deleted(client: Client) -> None:
    job = client.made(**APPLE, batch_size=2)
    first, second = job["pictures"]
    at = f"/api/pictures/{first['id']}"
    assert first["favourite"] is False
    marked = client.post(f"{at}/favourite", {"favourite": True}).json
    assert marked == {**first, "favourite": True} == client.get(at).json
    assert client.get("/api/pictures?favourite=true").json["pictures"] == [marked]
    assert second in client.get("/api/pictures?favourite=false").json["pictures"]
    assert "expected true or false" in client.get("/api/pictures?favourite=1").json["message"]
    small = client.get(f"{at}/thumbnail")
    assert small.headers["content-type"] == "image/webp" and "immutable" in (
        small.headers["cache-control"])
    record = client.site.archive.picture(first["id"])
    assert record is not None
    path = client.site.gallery.root / record.path
    kept = client.site.gallery.root / ".thumbnails" / Path(record.path).with_suffix(".webp")
    assert path.is_file() and kept.is_file()
    assert client.ask("DELETE", at).json == {"id": first["id"]}
    assert not path.exists() and not kept.exists()
    assert client.get(at).status == client.get(f"{at}/thumbnail").status == 404
    assert client.ask("DELETE", at).status == 404
    assert client.get(f"/api/jobs/{job['id']}").json["pictures"] == [second]


def test_what_a_link_leads_to_is_not_deleted(client: Client, tmp_path: Path) -> None:
    (picture,) = client.made(**APPLE)["pictures"]
    record = client.site.archive.picture(picture["id"])
    assert record is not None
    path, other = client.site.gallery.root / record.path, tmp_path / "other.png"
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)
    assert client.get(f"/api/pictures/{picture['id']}/thumbnail").status == 404
    assert client.ask("DELETE", f"/api/pictures/{picture['id']}").status == 200
    assert other.is_file() and not path.is_symlink()


def test_a_picture_that_cannot_be_deleted_when_it_is_sent_stays(
        client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    """As on Windows, where another program reads it: its client has it nevertheless."""
    (made,) = client.made(**APPLE)["pictures"]
    record = client.site.archive.picture(made["id"])
    assert record is not None

    def used(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "used by another process")

    monkeypatch.setattr(client.site, "_keep_sent", False)
    monkeypatch.setattr(Path, "unlink", used)
    client.site.sent([record])
    monkeypatch.undo()
    assert "used by another process; it stays in the gallery" in capsys.readouterr().err
    assert client.get(f"/api/pictures/{made['id']}/file").status == 200
