"""Names of pictures, the check before the work, and whole files only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from smalti.cli.output import (
    check_writable,
    output_paths,
    part_path,
    replace_file,
    write_png,
)
from smalti.errors import OutputError
from smalti.runtime.container import replaced


@pytest.mark.parametrize(("pattern", "count", "expected"), [
    ("a.png", 1, ["a.png"]),
    ("a.PNG", 2, ["a-001.PNG", "a-002.PNG"]),
    ("%d.png", 1, ["1.png"]),
    ("x%03d-y.png", 2, ["x001-y.png", "x002-y.png"]),
    ("100%.png", 1, ["100%.png"]),
    ("folder/a.png", 2, ["folder/a-001.png", "folder/a-002.png"]),
])
def test_names(pattern: str, count: int, expected: list[str]) -> None:
    assert output_paths(pattern, count) == [Path(name) for name in expected]


@pytest.mark.parametrize("pattern", ["a.jpg", "a", "", ".png", "%03d-%03d.png",
                                     "%021d.png", "%09999999999999d.png"])
def test_names_that_cannot_be_written(pattern: str) -> None:
    with pytest.raises(OutputError):
        output_paths(pattern, 1)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(OutputError, match="it is a folder"):
        check_writable([tmp_path / "a.png"])


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="no folder"):
        check_writable([tmp_path / "file" / "a.png"])


def test_a_name_may_be_too_long(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        check_writable([tmp_path / f"{'a' * 300}.png"])


def test_a_path_may_be_longer_than_windows_once_allowed(tmp_path: Path) -> None:
    """260 letters in all; and its letters need not be those of a code page."""
    path = tmp_path / "絵" / ("x" * 120) / ("y" * 120) / "a.png"
    path.parent.mkdir(parents=True)
    check_writable([path])
    for content in (b"old", b"new"):
        replace_file(path, content)
    assert path.read_bytes() == b"new" and list(path.parent.iterdir()) == [path]


def test_checking_leaves_no_trace(tmp_path: Path) -> None:
    check_writable(output_paths(str(tmp_path / "a.png"), 3))
    assert not list(tmp_path.iterdir())


def test_the_picture_carries_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write_png(Image.new("RGB", (4, 4), "red"), path, "a red apple\nSteps: 1, Größe: ü")
    with Image.open(path) as image:
        assert image.info["parameters"] == "a red apple\nSteps: 1, Größe: ü"
        assert image.convert("RGB").getpixel((0, 0)) == (255, 0, 0)
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_picture(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"the old picture")

    def stop(*arguments: object, **options: object) -> None:
        assert part_path(path).exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_png(Image.new("RGB", (4, 4)), path, "")
    assert path.read_bytes() == b"the old picture"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_png(Image.new("RGB", (4, 4)), tmp_path / "a.png", "")
    assert not list(tmp_path.iterdir())


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "a.png"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="it is no file; give the name of a file"):
        check_writable([pipe])
    with pytest.raises(OutputError, match="it is no file"):
        replace_file(pipe, b"x")
    with pytest.raises(OutputError, match="it is no file"), replaced(pipe):
        pass
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("write", [replace_file, lambda path, content: wrote(path, content)])
def test_a_link_stays_and_what_it_stands_for_is_replaced(
        tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    whole, link = tmp_path / "folder" / "whole", tmp_path / "link"
    whole.parent.mkdir()
    whole.write_bytes(b"old")
    link.symlink_to(whole)
    check_writable([link])
    write(link, b"new")
    assert link.is_symlink() and whole.read_bytes() == b"new"
    assert sorted(tmp_path.rglob("*")) == [whole.parent, whole, link]


def wrote(path: Path, content: bytes) -> None:
    with replaced(path) as stream:
        stream.write(content)
