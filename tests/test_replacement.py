"""A file takes another one's place, also where that is open for a moment, as Windows has it."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path

import pytest

from smalti import replacement
from smalti.replacement import WAITS, take_place


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A finished file and the one that it shall replace; nobody waits for long."""
    monkeypatch.setattr(replacement.time, "sleep", lambda seconds: None)
    part, whole = tmp_path / "a.part", tmp_path / "a"
    part.write_bytes(b"new")
    whole.write_bytes(b"old")
    return part, whole


def opened(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has the file open for so many attempts, as Windows tells it."""
    left, move = [times], os.replace

    def replace(part: Path, whole: Path) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise PermissionError(errno.EACCES, "Access is denied")
        move(part, whole)

    monkeypatch.setattr(os, "replace", replace)


def test_a_file_that_a_scanner_has_open_is_waited_for(
        files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened(len(WAITS), monkeypatch)
    take_place(*files, waits=True)
    assert files[1].read_bytes() == b"new" and not files[0].exists()


def test_a_file_that_stays_open_is_an_error_that_says_so(
        files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened(len(WAITS) + 1, monkeypatch)
    with pytest.raises(PermissionError, match="Access is denied; the file may be .* open in"):
        take_place(*files, waits=True)
    assert files[1].read_bytes() == b"old"


def test_elsewhere_nothing_is_tried_again(
        files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened(1, monkeypatch)
    with pytest.raises(PermissionError, match="Access is denied$"):
        take_place(*files, waits=False)


def test_a_file_that_is_mapped_is_replaced_where_the_system_can(files: tuple[Path, Path]) -> None:
    """As an engine file that another process runs; Windows keeps it, and a message says why."""
    part, whole = files
    with whole.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as old:
        if sys.platform == "win32":
            with pytest.raises(PermissionError, match="open in another program"):
                take_place(part, whole)
        else:
            take_place(part, whole)
            assert whole.read_bytes() == b"new"
        assert old[:] == b"old"
