"""Where the entries of a zip archive lie that torch.save wrote: stored, one behind the other.

Layout: APPNOTE.TXT of PKWARE, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16
(its end). Only the directory counts; each local header must agree with it, and no two entries may
share a byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError

LOCAL = struct.Struct("<4s5H3I2H")
ENTRY = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
COMMENT_BYTES_MAX = 1 << 16
"""Of the comment behind the end record: its length is stored in 16 bits (APPNOTE 4.3.16)."""
ENTRIES_MAX = 200_000
"""More than any file of weights has; a directory of that many is 20 MB."""
ENCRYPTED = 1
"""Bit 0 of the flags of an entry (APPNOTE 4.4.4)."""
FULL32 = 0xFFFFFFFF
"""A size or place that stands in the extra field, as 64 bits (APPNOTE 4.5.3)."""


@dataclass(frozen=True)
class ArchiveEntry:
    """The bytes of one entry: from `start` up to `end`."""

    start: int
    end: int


def entries(where: object, data: memoryview) -> dict[str, ArchiveEntry]:
    """Name -> place of every entry of the archive that is all of `data`.

    `where` names the file in messages. Raises CheckpointError for an archive that is damaged, or
    compressed or encrypted, or whose entries overlap or have one name twice.
    """
    try:
        return _checked(where, data, list(_directory(where, data)))
    except (struct.error, UnicodeDecodeError) as error:
        raise _damaged(where, f"{error}") from None


def _damaged(where: object, said: str) -> CheckpointError:
    return CheckpointError(f"{where} is a damaged zip archive ({said}); expected one that"
                           " torch.save wrote; download or copy it again")


def _directory(where: object, data: memoryview) -> Iterator[tuple[str, int, int]]:
    """Name, position of the local header and size of each entry."""
    count, size, start = _end(where, data)
    if count > ENTRIES_MAX or start + size > len(data) or count * ENTRY.size > size:
        raise _damaged(where, f"a directory of {count} entries in {size} bytes at {start}")
    position, limit = start, start + size
    for _ in range(count):
        if position + ENTRY.size > limit:
            raise _damaged(where, "its directory is cut off")
        (magic, _, _, flags, method, _, _, _, packed, plain, name_bytes, extra_bytes, comment_bytes,
         _, _, _, offset) = ENTRY.unpack_from(data, position)
        names = position + ENTRY.size
        position = names + name_bytes + extra_bytes + comment_bytes
        if magic != b"PK\x01\x02" or position > limit:
            raise _damaged(where, "its directory breaks off")
        name = bytes(data[names:names + name_bytes]).decode()
        extra = bytes(data[names + name_bytes:names + name_bytes + extra_bytes])
        plain, packed, offset = _wide(extra, plain, packed, offset)
        if method or flags & ENCRYPTED or plain != packed:
            raise CheckpointError(
                f"{where} is a zip archive whose entry {name[:80]!a} is compressed or encrypted;"
                " expected a checkpoint that torch.save wrote, whose entries are stored; unpack the"
                " archive and give what is in it, or save the checkpoint again")
        yield name, offset, plain


def _end(where: object, data: memoryview) -> tuple[int, int, int]:
    """Number of entries, size and position of the directory."""
    first = max(0, len(data) - COMMENT_BYTES_MAX - END.size)
    at = bytes(data[first:]).rfind(b"PK\x05\x06")
    if at < 0 or first + at + END.size > len(data):
        raise _damaged(where, "its end is missing, so it is cut off")
    at += first
    _, disk, _, _, count, size, start, _ = END.unpack_from(data, at)
    if at >= LOCATOR.size:
        magic, _, wide, _ = LOCATOR.unpack_from(data, at - LOCATOR.size)
        if magic == b"PK\x06\x07":
            if wide + END64.size > len(data):
                raise _damaged(where, "its directory lies behind its end")
            magic, _, _, _, disk, _, _, count, size, start = END64.unpack_from(data, wide)
            if magic != b"PK\x06\x06":
                raise _damaged(where, "its directory is not where it should be")
    if disk:
        raise _damaged(where, "it is one of several volumes")
    return count, size, start


def _wide(extra: bytes, plain: int, packed: int, offset: int) -> tuple[int, int, int]:
    """The three numbers, with those from the 64-bit field that do not fit 32 bits (4.5.3)."""
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            field = extra[position + 4:position + 4 + size]
            numbers = iter(struct.unpack(f"<{len(field) // 8}Q", field[:len(field) // 8 * 8]))
            plain, packed, offset = (next(numbers, 1 << 63) if value == FULL32 else value
                                     for value in (plain, packed, offset))
        position += 4 + size
    return plain, packed, offset


def _checked(where: object, data: memoryview, found: list[tuple[str, int, int]]
             ) -> dict[str, ArchiveEntry]:
    table: dict[str, ArchiveEntry] = {}
    reached = 0
    for name, offset, size in sorted(found, key=lambda entry: entry[1]):
        if offset < reached or offset + LOCAL.size > len(data):
            raise _damaged(where, f"entry {name[:80]!a} overlaps another one or the end")
        magic, *_, name_bytes, extra_bytes = LOCAL.unpack_from(data, offset)
        start = offset + LOCAL.size + name_bytes + extra_bytes
        stated = bytes(data[offset + LOCAL.size:offset + LOCAL.size + name_bytes])
        reached = start + size
        if magic != b"PK\x03\x04" or stated != name.encode() or reached > len(data):
            raise _damaged(where, f"entry {name[:80]!a} is not where the directory says")
        if name in table:
            raise _damaged(where, f"entry {name[:80]!a} is there twice")
        table[name] = ArchiveEntry(start, reached)
    return table
