"""Several functions in one block of code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

FUNCTION_ALIGNMENT = 64
"""A cache line, as constants and loops want."""


class Function(Protocol):
    """Encoded code: `bytes`, which may start with constants, and where its entry is in them."""

    @property
    def bytes(self) -> bytes: ...

    @property
    def entry(self) -> int: ...


def joined(functions: Sequence[Function]) -> tuple[bytes, list[int]]:
    """Functions in one block of code, and the place of each one's entry in that block.

    Each starts at a multiple of `FUNCTION_ALIGNMENT` bytes.
    """
    block = bytearray()
    places = []
    for function in functions:
        block.extend(b"\xcc" * (-len(block) % FUNCTION_ALIGNMENT))
        places.append(len(block) + function.entry)
        block.extend(function.bytes)
    return bytes(block), places
