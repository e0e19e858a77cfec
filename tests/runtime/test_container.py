"""Containers: what was written is read, anything else is refused, and writing leaves no half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smalti.errors import EngineError, OutputError
from smalti.runtime.container import ALIGNMENT, DIGEST_BYTES, ENTRY, START, Container, write

SECTIONS = (("first", [b"some ", b"bytes"], True), ("empty", [], True),
            ("in parts", [bytes(5000)], False), ("last", [b"x"], True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "file.smalti", len(SECTIONS), iter(SECTIONS))
    return tmp_path / "file.smalti"


def test_what_was_written_is_read(path: Path) -> None:
    file = Container(path)
    assert file.names() == ("first", "empty", "in parts", "last")
    assert [bytes(file.section(name)) for name in file.names()] == [
        b"some bytes", b"", bytes(5000), b"x"]
    assert file.size_bytes("in parts") == 5000
    assert list(path.parent.iterdir()) == [path]


def test_sections_can_be_mapped_where_they_lie(path: Path) -> None:
    data = path.read_bytes()
    assert data.index(b"some bytes") % ALIGNMENT == 0


def test_a_missing_section_is_named(path: Path) -> None:
    with pytest.raises(EngineError, match="no section 'other'"):
        Container(path).section("other")


def test_bytes_that_are_cut_off_anywhere_are_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in {*range(START.size + DIGEST_BYTES + 4 * ENTRY.size + 2),
                   *range(0, len(data), 509), len(data) - 1}:
        path.write_bytes(data[:length])
        with pytest.raises(EngineError, match=r"file.smalti .*(bytes|damaged)"):
            Container(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(EngineError, match="should have"):
        Container(path)


def test_any_damaged_byte_of_header_and_sections_is_noticed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    table = START.size + DIGEST_BYTES + len(SECTIONS) * ENTRY.size
    for place in [*range(table), data.index(b"some"), len(data) - 1]:
        data[place] ^= 0x40
        damaged = path.with_name(f"{place}-file.smalti")  # Windows replaces no file that is mapped
        damaged.write_bytes(data)
        with pytest.raises(EngineError, match=r"file.smalti .*smalti compile"):
            file = Container(damaged)
            for name in file.names():
                file.section(name)
        data[place] ^= 0x40
    assert bytes(Container(path).section("last")) == b"x"


def test_bytes_between_sections_are_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in (ALIGNMENT - 1, data.index(b"some bytes") + 10):
        data[place] = 1
        path.write_bytes(data)
        with pytest.raises(EngineError, match="between section"):
            Container(path)
        data[place] = 0


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a\0")])
def test_sections_of_one_name_are_refused(path: Path, names: tuple[str, str]) -> None:
    write(path, 2, ((name, [b"x"], True) for name in names))
    with pytest.raises(EngineError, match="its table does not describe it"):
        Container(path)


@pytest.mark.parametrize("name", ["missing", "", *(["pipe"] if hasattr(os, "mkfifo") else [])])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    if name == "pipe":
        os.mkfifo(tmp_path / name)
    with pytest.raises(EngineError,
                       match="cannot be read: .*(No such|not found|cannot find|not a regular)"):
        Container(tmp_path / name)


def test_a_write_that_fails_leaves_the_old_file(path: Path) -> None:
    before = path.read_bytes()

    def failing():
        yield "first", [b"new"], True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, 2, failing())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write .*no.file.smalti: No such"):
        write(tmp_path / "no" / "file.smalti", 0, iter(()))
