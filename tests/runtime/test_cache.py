"""The compile cache: what comes back is what was put, or nothing."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from smalti.runtime import cache as module
from smalti.runtime.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache in a folder that does not exist yet."""
    return Cache(tmp_path / "not" / "yet")


def test_what_was_put_comes_back(cache: Cache) -> None:
    assert cache.get("graph A") is None
    cache.put("graph A", b"code A")
    cache.put("graph B", b"")
    assert (cache.get("graph A"), cache.get("graph B")) == (b"code A", b"")
    cache.put("graph A", b"other code")
    assert cache.get("graph A") == b"other code"
    assert Cache(cache.folder).get("graph A") == b"other code"
    assert len(list(cache.folder.iterdir())) == 2


@pytest.mark.parametrize("place", [0, 20, 48, 60, 90, -1])
def test_a_damaged_entry_is_a_miss_and_goes(cache: Cache, place: int) -> None:
    cache.put("key", b"payload")
    path = cache.path("key")
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert cache.get("key") is None
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 10, 90])
def test_a_cut_entry_is_a_miss(cache: Cache, size: int) -> None:
    cache.put("key", b"payload")
    path = cache.path("key")
    path.write_bytes(path.read_bytes()[:size])
    assert cache.get("key") is None


def test_an_entry_under_another_name_is_a_miss(cache: Cache) -> None:
    cache.put("key", b"payload")
    os.replace(cache.path("key"), cache.path("other"))
    assert cache.get("other") is None


def test_other_code_does_not_find_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("key", b"payload")
    monkeypatch.setattr(module, "code_digest", lambda: "other")
    assert cache.get("key") is None
    monkeypatch.undo()
    assert cache.get("key") == b"payload"
    assert len(module.code_digest()) == 64


@pytest.mark.parametrize("folders", [(), ("codegen",), ("kernel", "codegen/gpu")])
def test_code_is_known_by_names_and_contents(folders: tuple[str, ...]) -> None:
    package, digest = Path(module.__file__).parents[1], hashlib.sha256()
    paths = [path for folder in folders or (".",) for path in (package / folder).rglob("*.py")]
    for path in sorted(paths, key=lambda path: path.relative_to(package).as_posix()):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0"
                      + hashlib.sha256(path.read_bytes()).digest())
    assert module.code_digest(*folders) == digest.hexdigest()


def test_hashes_of_code_are_kept_until_a_file_changes(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    package, kept = tmp_path / "package", tmp_path / "cache" / module.CODE_FOLDER
    monkeypatch.setenv("SMALTI_CACHE", str(kept.parent))
    package.joinpath("inner", "__pycache__").mkdir(parents=True)
    for name in ("one.py", "inner/two.py", "inner/__pycache__/three.py", "four.txt"):
        package.joinpath(name).write_bytes(b"1\n")
    code = module._code_files.__wrapped__
    expected = [(name, hashlib.sha256(b"1\n").digest()) for name in ("inner/two.py", "one.py")]
    assert code(str(package)) == (expected, False)
    assert not kept.exists()  # files that were changed this moment may change again unnoticed
    monkeypatch.setattr(module, "SETTLED_NS", -10**12)
    assert code(str(package)) == (expected, False)
    (file,) = kept.iterdir()
    file.write_text(file.read_text().replace(expected[1][1].hex(), "00" * 32))
    assert code(str(package)) == ([(name, bytes(32)) for name, _ in expected], True)  # unread
    stat = package.joinpath("one.py").stat()
    time.sleep(0.05)  # times of files are as coarse as 10 ms
    package.joinpath("one.py").write_bytes(b"2\n")
    if sys.platform != "win32":  # where no time tells when a file was changed but this one
        os.utime(package / "one.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    changed = [expected[0], ("one.py", hashlib.sha256(b"2\n").digest())]
    assert code(str(package)) == (changed, False)
    file.write_text("[1]")
    assert code(str(package)) == (changed, False)
    monkeypatch.setenv("SMALTI_CACHE", str(package / "four.txt"))  # which is no folder
    assert code(str(package)) == (changed, False)


if sys.platform != "win32":  # where only administrators make links
    def test_links_among_the_code_hide_nothing_of_it(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(module, "SETTLED_NS", -10**12)
        package, code = tmp_path / "package", module._code_files.__wrapped__
        package.joinpath("inner").mkdir(parents=True)
        for name in ("a.py", "inner/b.py", "z.py"):
            package.joinpath(name).write_text("1\n")
        before, _ = code(str(package))
        os.symlink("nothing", package / ".#m.py")  # how Emacs locks a file that is being changed
        names = [name for name, _ in code(str(package))[0]]
        assert names == [".#m.py", "a.py", "inner/b.py", "z.py"]
        for name in ("a.py", "inner/b.py", "z.py"):
            package.joinpath(name).write_text("2\n")
            assert dict(code(str(package))[0])[name] == hashlib.sha256(b"2\n").digest()
            package.joinpath(name).write_text("1\n")
        os.unlink(package / ".#m.py")
        os.symlink(package, package / "inner" / "loop")
        assert code(str(package))[0] == before
        assert not code(os.fsdecode(os.fsencode(package) + b"\xff"))[0]  # no text has this name


def test_a_cache_is_new_to_code_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "SETTLED_NS", -10**12)
    for new in (True, False):
        module._code_files.cache_clear()
        assert module.is_new() == new


def test_code_that_is_not_there_is_never_the_same() -> None:
    module.code_digest.cache_clear()
    first = module.code_digest("nowhere")
    module.code_digest.cache_clear()
    assert first != module.code_digest("nowhere")


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    size = module.HEADER.size + 100
    cache = Cache(tmp_path, bytes_max=3 * size)
    for number in range(3):
        cache.put(str(number), bytes(100))
        os.utime(cache.path(str(number)), (number, number))
    assert cache.get("0") is not None  # used just now: 1 is the oldest
    cache.put("3", bytes(100))
    kept = [name for name in "0123" if cache.path(name).exists()]
    assert kept == ["0", "2", "3"]
    cache.put("large", bytes(4 * size))
    assert cache.get("large") is None


def test_without_a_folder_it_works_and_warns_once(tmp_path: Path,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = Cache(blocked / "inside")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cache.put("key", b"payload")
            assert cache.get("key") is None
    assert len(caplog.records) == 1
    assert "SMALTI_CACHE" in caplog.text


def test_a_full_disk_leaves_no_half_written_file(cache: Cache, monkeypatch: pytest.MonkeyPatch,
                                                 caplog: pytest.LogCaptureFixture) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    cache.put("kept", b"payload")
    monkeypatch.setattr("smalti.runtime.cache.os.replace", full)
    cache.put("key", b"payload")
    assert [path.name for path in cache.folder.iterdir()] == [cache.path("kept").name]
    assert "No space left" in caplog.text


def _write_often(folder: Path, payload: bytes) -> None:
    cache = Cache(folder)
    for _ in range(100):
        cache.put("key", payload)
        assert cache.get("key") in (None, b"a" * 5000, b"b" * 9000)


def test_two_processes_write_the_same_entry(tmp_path: Path) -> None:
    start = multiprocessing.get_context("spawn")
    processes = [start.Process(target=_write_often, args=(tmp_path, payload))
                 for payload in (b"a" * 5000, b"b" * 9000)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert Cache(tmp_path).get("key") in (b"a" * 5000, b"b" * 9000)


def test_the_folder_comes_from_the_settings(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    module.put("key", b"payload")
    assert module.get("key") == b"payload"
    assert len(list(tmp_path.rglob("*.entry"))) == 1


def test_an_entry_that_cannot_be_removed_stays_and_the_next_one_goes(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As on Windows, where another process reads it at the moment."""
    cache = Cache(tmp_path, bytes_max=2 * 200)
    for key in ("read", "old"):
        cache.put(key, bytes(50))
    read, unlink = cache.path("read"), Path.unlink
    os.utime(read, (0, 0))

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path == read:
            raise PermissionError(13, "Access is denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    cache.put("new", bytes(200))
    assert cache.get("read") is not None and cache.get("old") is None
    assert cache.get("new") is not None and not caplog.records
