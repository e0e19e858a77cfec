"""What byte-level byte-pair encodings share: symbols of bytes, outlines of texts, and merging."""

from __future__ import annotations

import heapq
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Protocol

WHITE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B)))
"""Unicode's White_Space; Python's own \\s also holds the separators U+001C to U+001F."""
KINDS = {"L": "z", "N": "0"}


class Ranks(Protocol):
    """How late two neighbours are merged, by their numbers, such as a dict: those of rank 0 are
    merged first."""

    def get(self, pair: tuple[int, int], /) -> int | None:
        """The rank of a pair, or None where it is not merged."""


def byte_symbols() -> tuple[str, ...]:
    """A printable character for each byte: itself where it is one, else one from U+0100 on.

    >>> byte_symbols()[ord("a")], byte_symbols()[ord(" ")]
    ('a', 'Ġ')
    """
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in kept else next(others)) for byte in range(256))


def outline(text: str, same: Mapping[str, str] | None = None) -> str:
    """The text with each letter outside ASCII as z, number as 0, white space as a tab, all else
    there as ~, so that expressions over ASCII cut it; `same` are exceptions.

    >>> outline("Caf\u00e9, \u0663 \u2026")
    'Cafz, 0 ~'
    """
    if text.isascii():
        return text
    table = {ord(character): "\t" if character in WHITE else KINDS.get(
        unicodedata.category(character)[0], "~")
        for character in set(text) if not character.isascii()}
    return text.translate(table | {ord(key): value for key, value in (same or {}).items()})


def merged(numbers: Sequence[int], ranks: Ranks, made: Sequence[int]) -> tuple[int, ...]:
    """The numbers after all merges: the neighbours of the lowest rank become `made[rank]`, the
    leftmost first, until none are left that are merged.

    Candidates wait in a heap and numbers form a linked list, so that n of them take n log n steps.
    One dies when it is merged into the one before it.

    >>> merged([0, 1, 0, 1, 2], {(0, 1): 0, (3, 2): 1}, [3, 4])
    (3, 4)
    """
    pieces, count = [*numbers], len(numbers)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    heap = []
    for place, pair in enumerate(zip(numbers, numbers[1:], strict=False)):
        rank = ranks.get(pair)
        if rank is not None:
            heap.append((rank, place, *pair))
    heapq.heapify(heap)
    while heap:
        rank, left, first, second = heapq.heappop(heap)
        right = after[left]
        if pieces[left] != first or right == count or pieces[right] != second:
            continue  # one of the two has been merged since
        pieces[left], pieces[right] = made[rank], -1
        after[left] = right = after[right]
        if right < count:
            before[right] = left
        for a, b in ((before[left], left), (left, right)):
            if a >= 0 and b < count:
                rank = ranks.get((pieces[a], pieces[b]))
                if rank is not None:
                    heapq.heappush(heap, (rank, a, pieces[a], pieces[b]))
    return tuple(number for number in pieces if number >= 0)
