"""The fields of a protocol buffer, as SentencePiece writes its vocabularies."""

from __future__ import annotations

from collections.abc import Iterator


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each field; those of a varint are as it is written, see `number`.

    Raises ValueError or IndexError for what is none.

    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x01, 0x61])))
    [(1, b'\\x96\\x01'), (2, b'a')]
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            _, end = _varint(data, place)
            yield key >> 3, data[place:end]
            place = end
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"a field of the unknown kind {kind}")
            size, place = _varint(data, place)
        if place + size > len(data):
            raise ValueError("a field reaches beyond the end")
        yield key >> 3, data[place:place + size]
        place += size


def number(varint: bytes) -> int:
    """The number that a varint stands for.

    >>> number(bytes([0x96, 0x01]))
    150
    """
    return _varint(varint, 0)[0]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place behind it."""
    found = shift = 0
    while True:
        byte = data[place]
        found |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return found, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
