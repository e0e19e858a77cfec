"""Files with a hole at their end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from smalti.runtime.holes import lengthen

MUCH = 1 << 28


def test_a_file_is_as_long_as_it_should_be_and_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "long.bin"
    with open(path, "wb") as stream:
        stream.write(b"header")
        lengthen(stream, MUCH)
    assert path.stat().st_size == MUCH
    if sys.platform != "win32":  # whose room Wine does not tell
        assert path.stat().st_blocks * 512 < 1 << 20
    with open(path, "rb") as stream:
        assert stream.read(8) == b"header\0\0"
        stream.seek(-2, 2)
        assert stream.read() == b"\0\0"


def test_what_cannot_be_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "read.bin"
    path.touch()
    with open(path, "rb") as stream, pytest.raises(OSError):
        lengthen(stream, MUCH)
