"""What a process has for itself until it ends, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from smalti.claim import BEGUN_SECONDS, LOCK, claimed, temporary_folder

KEEPS = """
import sys, time
from smalti.claim import temporary_folder
with temporary_folder("test") as folder:
    (folder / "much.bin").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TMP", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def aged(folder: Path) -> None:
    """As if it was begun long ago."""
    then = time.time() - 2 * BEGUN_SECONDS
    os.utime(folder / LOCK, (then, then))


def test_what_a_killed_process_left_is_deleted_and_what_one_uses_is_not(tmp_path: Path) -> None:
    keeps = subprocess.Popen([sys.executable, "-c", KEEPS], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": "src"})
    assert keeps.stdout is not None
    left = Path(keeps.stdout.readline().strip())
    assert left.parent == tmp_path
    try:
        aged(left)
        with temporary_folder("test") as own:
            assert own.is_dir() and (left / "much.bin").is_file()
        assert not own.exists()
        keeps.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    finally:
        keeps.communicate()
    with temporary_folder("other"):
        assert left.exists()  # of another purpose
    with temporary_folder("test"):
        assert not left.exists()


def test_a_folder_that_was_just_begun_and_those_without_a_claim_stay(tmp_path: Path) -> None:
    young, strange = tmp_path / "smalti-test-a", tmp_path / "smalti-test-b"
    for folder in (young, strange):
        folder.mkdir()
    (young / LOCK).touch()  # not claimed yet
    with temporary_folder("test"):
        assert young.is_dir() and strange.is_dir()


def test_a_file_system_without_locks_has_temporary_folders(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.claim._locked", lambda handle: False)  # as Lustre often says
    with temporary_folder("test") as own:
        aged(own)
        with temporary_folder("test"):
            assert own.is_dir()
    assert not own.exists()


def test_a_claim_is_waited_for_and_told_once(tmp_path: Path) -> None:
    class Taken(Exception):
        pass

    def taken() -> None:
        raise Taken

    path = tmp_path / "folder" / "a.lock"
    with claimed(path, taken), pytest.raises(Taken), claimed(path, taken):
        pass
    with claimed(path, taken):
        assert path.read_bytes() == b""
