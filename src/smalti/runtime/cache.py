"""What has been compiled before, on disk: one file an entry, named by the hash of its key.

    magic | sha256 of the key | payload bytes, u64 | sha256 of the payload | payload

A key is text that says everything the payload depends on; the hash of Smalti's own code is added to
it, so that no version, nor an edit, ever runs what another one compiled. An entry that does not
hold together is removed and counts as missing. Files are written beside their place and moved
there, so that processes may write the same entry at once. Without a folder that can be written,
nothing is kept, and a warning says so once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from smalti import settings
from smalti.replacement import take_place

MAGIC = b"smalti-cache-1\n"
HEADER = struct.Struct(f"<{len(MAGIC)}s32sQ32s")
SUFFIX = ".entry"
BYTES_MAX = 1 << 30  # of all entries, unless a cache is told otherwise

_log = logging.getLogger(__name__)


class Cache:
    """A folder of entries, of `bytes_max` in all; the least recently used go first."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self._warned = False
        self._bytes: int | None = None  # of all entries, as far as this process knows

    def path(self, key: str) -> Path:
        """The file of the entry for `key`."""
        return self.folder / (_digest(key).hex() + SUFFIX)

    def get(self, key: str) -> bytes | None:
        """The payload kept for `key`, or None. A damaged entry is removed."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        payload = _checked(data, key)
        try:
            if payload is None:
                path.unlink(missing_ok=True)
            else:
                os.utime(path)
        except OSError:
            return payload  # a folder that only others may write to
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Keep `payload` for `key`; what is larger than the whole cache may be is not kept."""
        size = HEADER.size + len(payload)
        if size > self.bytes_max:
            return
        header = HEADER.pack(MAGIC, _digest(key), len(payload), hashlib.sha256(payload).digest())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.path(key), header, payload)
            if self._bytes is not None:
                self._bytes += size
            if self._bytes is None or self._bytes > self.bytes_max:
                self._prune(self.path(key))
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
    package = Path(__file__).parents[1]
    digest, found = hashlib.sha256(), False
    for path in sorted(path for folder in folders or (".",)
                       for path in (package / folder).rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).digest()
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + content)
        found = True
    return digest.hexdigest() if found else os.urandom(32).hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(f"{code_digest()}\n{key}".encode()).digest()


def _checked(data: bytes, key: str) -> bytes | None:
    """The payload of an entry, if all of it is as it was written for `key`."""
    if len(data) < HEADER.size:
        return None
    magic, digest, size, payload_digest = HEADER.unpack_from(data)
    payload = data[HEADER.size:]
    if magic != MAGIC or digest != _digest(key) or size != len(payload):
        return None
    return payload if hashlib.sha256(payload).digest() == payload_digest else None


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
def _cache(folder: Path) -> Cache:
    return Cache(folder / "programs")


def get(key: str) -> bytes | None:
    """What the cache of this user keeps for `key`, or None."""
    return _cache(settings.cache_folder()).get(key)


def put(key: str, payload: bytes) -> None:
    """Keep `payload` for `key` in the cache of this user."""
    _cache(settings.cache_folder()).put(key, payload)
