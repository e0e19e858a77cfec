"""What has been compiled before, on disk: one file an entry, named by the hash of its key.

    magic | sha256 of the key | payload bytes, u64 | sha256 of the payload | payload

A key is text that says everything the payload depends on; the hash of Smalti's own code is added to
it, so that no version, nor an edit, ever runs what another one compiled. An entry that does not
hold together is removed and counts as missing. Files are written beside their place and moved
there, so that processes may write the same entry at once. Without a folder that can be written,
nothing is kept, and a warning says so once.

What is not here may be had from others, and what is made told to them (`Others`): an entry is known
by the hash of its key and holds that of its payload, so it is checked wherever it comes from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from smalti import settings
from smalti.replacement import take_place

MAGIC = b"smalti-cache-1\n"
HEADER = struct.Struct(f"<{len(MAGIC)}s32sQ32s")
SUFFIX = ".entry"
NAME = re.compile(r"([0-9a-f]{64})\.entry")
BYTES_MAX = 1 << 30  # of all entries, unless a cache is told otherwise
PACKAGE = os.path.dirname(os.path.dirname(__file__))
CODE_FOLDER = "code"  # of the cache folder: hashes of Smalti's own files
SETTLED_NS = 2 * 10**9
"""A file that was changed so short ago may be changed again without its times showing it: they are
as coarse as 2 s on FAT."""

_log = logging.getLogger(__name__)


class Others(Protocol):
    """Caches of other computers, by the names of entries."""

    def entry(self, name: str) -> bytes | None:
        """An entry as a whole, if one of them has it."""

    def made(self, name: str, entry: bytes) -> None:
        """Tell them of an entry that was made here."""


class Cache:
    """A folder of entries, of `bytes_max` in all; the least recently used go first."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self.others: Others | None = None
        self._warned = False
        self._bytes: int | None = None  # of all entries, as far as this process knows

    def path(self, key: str) -> Path:
        """The file of the entry for `key`."""
        return self.folder / (_digest(key).hex() + SUFFIX)

    def get(self, key: str) -> bytes | None:
        """The payload kept for `key`, here or by others, or None. A damaged entry is removed."""
        name = self.path(key).name
        entry = self.entry(name)
        if entry is None and self.others is not None:
            entry = self.others.entry(name)
            if entry is None or not self.merge(name, entry):
                return None
        return None if entry is None else entry[HEADER.size:]

    def entry(self, name: str) -> bytes | None:
        """An entry as a whole, as another cache can `merge` it, or None. One that is damaged is
        removed."""
        if not NAME.fullmatch(name):
            return None
        path = self.folder / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        whole = _whole(name, data)
        with suppress(OSError):  # a folder that only others may write to
            if whole:
                os.utime(path)
            else:
                path.unlink(missing_ok=True)
        return data if whole else None

    def put(self, key: str, payload: bytes) -> None:
        """Keep `payload` for `key`; what is larger than the whole cache may be is not kept."""
        header = HEADER.pack(MAGIC, _digest(key), len(payload), hashlib.sha256(payload).digest())
        self._keep(self.path(key), header, payload)
        if self.others is not None:
            self.others.made(self.path(key).name, header + payload)

    def merge(self, name: str, entry: bytes) -> bool:
        """Keep an entry of another cache where there is none of this name; whether it is whole, and
        of this name. Nothing else is kept."""
        if not _whole(name, entry):
            return False
        if not (self.folder / name).exists():
            self._keep(self.folder / name, entry)
        return True

    def _keep(self, path: Path, *parts: bytes) -> None:
        size = sum(map(len, parts))
        if size > self.bytes_max:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, *parts)
            if self._bytes is not None:
                self._bytes += size
            if self._bytes is None or self._bytes > self.bytes_max:
                self._prune(path)
        except OSError as error:
            self._warn("write", error)

    def _prune(self, newest: Path) -> None:
        """Remove entries, those used longest ago first, until the rest fits."""
        entries = []
        with os.scandir(self.folder) as files:
            for file in files:
                if file.name.endswith(SUFFIX) and file.path != str(newest):
                    entries.append((file.stat().st_mtime_ns, file.stat().st_size, file.path))
        total = newest.stat().st_size + sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.bytes_max:
                break
            with suppress(PermissionError):  # on Windows: another process reads it
                Path(path).unlink(missing_ok=True)
                total -= size
        self._bytes = total

    def _warn(self, action: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("cannot %s the cache in %s (%s): what it would keep is made anew each "
                         "time; set SMALTI_CACHE to a folder that can be written", action,
                         self.folder, error.strerror or error)


@lru_cache(maxsize=4)
def code_digest(*folders: str) -> str:
    """The hash of Smalti's code, or of some of its folders; where that cannot be read, one that
    never comes again."""
    digest, starts = hashlib.sha256(), tuple(f"{folder}/" for folder in folders)
    found = [each for each in _code_files()[0] if not starts or each[0].startswith(starts)]
    for name, content in found:
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest() if found else os.urandom(32).hex()


def is_new() -> bool:
    """Whether nothing of what the cache of this user has was made by the code that runs: its hashes
    were not known."""
    return not _code_files()[1]


@lru_cache(maxsize=1)
def _code_files(package: str = PACKAGE) -> tuple[list[tuple[str, bytes]], bool]:
    """The files of Smalti's code, each with its hash, in order of their names; and whether the
    hashes were known from before.

    Reading 800 files takes 40 to 80 ms, asking when they were changed 7 ms; so the hashes are kept
    beside what is compiled, in the folder `code`, and hold as long as size, times and inode of each
    file are as they were. Python trusts size and time of its own compiled modules.
    """
    now = time.time_ns()
    stamps = sorted(_stamps(package))
    state = _hashed(repr((package, stamps)))
    kept = settings.cache_folder() / CODE_FOLDER / f"{_hashed(package)[:16]}.json"
    try:
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["state"] == state:
            return [(name, bytes.fromhex(content)) for name, content in known["files"]], True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = []
    for name, *_ in stamps:
        try:
            content = Path(package, name).read_bytes()
        except OSError:  # such as the link to nothing by which Emacs locks a file
            content = b""
        found.append((name, hashlib.sha256(content).digest()))
    newest = max((changed for _, _, *times, _ in stamps for changed in times), default=0)
    if found and newest < now - SETTLED_NS:
        with suppress(OSError):  # nothing but time is lost where it cannot be kept
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, json.dumps({"state": state, "files": [
                (name, content.hex()) for name, content in found]}).encode())
    return found, False


def _stamps(folder: str, inside: str = "") -> Iterator[tuple[str, int, int, int, int]]:
    """Of each file of code: its name, size, times (mtime, ctime) and inode.

    A file that is gone meanwhile, or is a link to nothing, has zeros. `os.stat` is asked, as what
    Windows lists of a folder may be older than the files.
    """
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                yield from _stamps(entry.path, f"{inside}{entry.name}/")
        elif entry.name.endswith(".py"):
            try:
                found = os.stat(entry.path)
            except OSError:
                yield inside + entry.name, 0, 0, 0, 0
            else:
                yield (inside + entry.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
                       found.st_ino)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(key: str) -> bytes:
    return hashlib.sha256(f"{code_digest()}\n{key}".encode()).digest()


def _whole(name: str, data: bytes) -> bool:
    """Whether all of an entry is as it was written under its name."""
    named = NAME.fullmatch(name)
    if not named or len(data) < HEADER.size:
        return False
    magic, digest, size, payload_digest = HEADER.unpack_from(data)
    payload = memoryview(data)[HEADER.size:]
    return (magic == MAGIC and digest.hex() == named[1] and size == len(payload)
            and hashlib.sha256(payload).digest() == payload_digest)


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file as a whole or not at all. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
        take_place(Path(name), path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@lru_cache(maxsize=8)
def of_folder(folder: Path) -> Cache:
    """The cache in the folder that all of a user's are in."""
    return Cache(folder / "programs")


def own() -> Cache:
    """The cache of this user."""
    return of_folder(settings.cache_folder())


def get(key: str) -> bytes | None:
    """What the cache of this user keeps for `key`, or None."""
    return own().get(key)


def put(key: str, payload: bytes) -> None:
    """Keep `payload` for `key` in the cache of this user."""
    own().put(key, payload)
