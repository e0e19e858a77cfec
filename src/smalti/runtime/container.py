"""A file of named sections, checked before anything in it is believed, and memory-mapped.

    magic, 8 bytes | format version, u32 | sections, u32 | bytes of the file, u64
    sha256 of those and the table | table: for each section its name, 32 bytes; offset, u64;
    bytes, u64; sha256 | the sections, each at a multiple of 4096

Numbers are little-endian. A section whose hash is zero consists of parts that are hashed one by
one by what describes them. A hash finds damage, not malice: who writes a file can write its hashes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from smalti.errors import EngineError, OutputError
from smalti.replacement import followed, replacing

MAGIC = b"\x93SMALTI\n"
VERSION = 2
"""Of the format: 2 since schedules name an algorithm (`schedule/text.py`)."""
SECTIONS_MAX = 64  # engine files have a few; more are those of a damaged file
ALIGNMENT = 4096  # sections begin at pages, so that they can be mapped
START = struct.Struct("<8sIIQ")
ENTRY = struct.Struct("<32sQQ32s")
DIGEST_BYTES = 32  # of SHA-256
IN_PARTS = bytes(DIGEST_BYTES)

Parts = Iterable[bytes | memoryview]


def write(path: Path, count: int, sections: Iterable[tuple[str, Parts, bool]]) -> None:
    """Write `count` sections: their names, their bytes in parts, and whether to hash them.

    The parts of a section are asked for once all before them are written. `path` is either the
    whole of the new file or untouched. Raises OutputError when the operating system refuses.
    """
    with replaced(path) as stream:
        stream.seek(START.size + DIGEST_BYTES + count * ENTRY.size)
        table = bytearray()
        for name, parts, hashed in sections:
            stream.write(bytes(-stream.tell() % ALIGNMENT))
            offset, digest = stream.tell(), hashlib.sha256()
            for part in parts:
                stream.write(part)
                if hashed:
                    digest.update(part)
            table += ENTRY.pack(name.encode(), offset, stream.tell() - offset,
                                digest.digest() if hashed else IN_PARTS)
        start = START.pack(MAGIC, VERSION, count, stream.tell())
        stream.seek(0)
        stream.write(start + hashlib.sha256(start + table).digest() + table)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A stream to a new file that takes the place of `path` when all went well.

    A link stays, and what it stands for is replaced. Raises OutputError when the operating system
    refuses, and for what is no file: a new one would take the place of a device.
    """
    if path.exists() and not path.is_file():
        raise OutputError(f"cannot write {path}: it is no file; choose another output")
    try:
        with replacing(followed(path)) as stream:
            yield stream
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another output"
                          ) from None


class Container:
    """The sections of one file; each is hashed when it is first read.

    Raises EngineError for anything that `write` did not make.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb", opener=_open_regular) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < START.size + DIGEST_BYTES:
                    raise self.refusal(f"it has only {size} bytes")
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise EngineError(f"{path} cannot be read: {error.strerror or error}") from None
        self._entries = self._table(size)

    def refusal(self, why: str) -> EngineError:
        """An error that says what is wrong with this file, and what to do."""
        return EngineError(f"{self.path} is no sound engine file: {why}; make it again with "
                           f"`smalti compile`, or copy it again")

    def _table(self, size: int) -> dict[str, tuple[int, int, bytes]]:
        magic, version, count, told = START.unpack_from(self._map)
        if magic != MAGIC:
            raise self.refusal("it starts with other bytes than those of .smalti files")
        if version != VERSION:
            raise EngineError(f"{self.path} has format {version} of engine files, this Smalti "
                              f"reads {VERSION}; make it again with `smalti compile`")
        if told != size:
            raise self.refusal(f"it has {size} bytes where it should have {told}")
        reached = START.size + DIGEST_BYTES + count * ENTRY.size
        if count > SECTIONS_MAX or reached > size:
            raise self.refusal(f"it announces {count} sections")
        hashed = self._map[:START.size] + self._map[START.size + DIGEST_BYTES:reached]
        if hashlib.sha256(hashed).digest() != self._map[START.size:START.size + DIGEST_BYTES]:
            raise self.refusal("its table is damaged")
        entries = {}
        for number in range(count):
            at = START.size + DIGEST_BYTES + number * ENTRY.size
            name, offset, length, digest = ENTRY.unpack_from(self._map, at)
            if offset != reached + -reached % ALIGNMENT or length > size - offset:
                raise self.refusal(f"section {number} lies outside of the file")
            if any(self._map[reached:offset]):
                raise self.refusal(f"there are bytes between section {number} and what is before")
            reached = offset + length
            entries[name.rstrip(b"\0").decode("ascii", "backslashreplace")] = (
                offset, length, digest)
        if reached != size or len(entries) != count:
            raise self.refusal("its table does not describe it")
        return entries

    def names(self) -> tuple[str, ...]:
        """Names of the sections, in the order of the file."""
        return tuple(self._entries)

    def size_bytes(self, name: str) -> int:
        """How many bytes a section has."""
        return self._entry(name)[1]

    def section(self, name: str) -> memoryview:
        """A section in the mapped file. Raises EngineError when it is missing or damaged."""
        offset, length, digest = self._entry(name)
        view = memoryview(self._map)[offset:offset + length]
        if digest != IN_PARTS and hashlib.sha256(view).digest() != digest:
            raise self.refusal(f"its section {name!r} is damaged")
        return view

    def drop(self, name: str, start: int, length: int) -> None:
        """Let the system take back the memory of a part of a section, until it is read again."""
        first = self._entry(name)[0] + start
        page = first - first % mmap.PAGESIZE
        if hasattr(self._map, "madvise") and length:
            self._map.madvise(mmap.MADV_DONTNEED, page, first + length - page)

    def _entry(self, name: str) -> tuple[int, int, bytes]:
        if name not in self._entries:
            raise self.refusal(f"it has no section {name!r}")
        return self._entries[name]


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file; opening a pipe would wait for a writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(0, "it is not a regular file")
    return os.open(path, flags)
