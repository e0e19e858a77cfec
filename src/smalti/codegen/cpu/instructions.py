"""What a row of an architecture's table of instructions says to those who know no encodings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InstructionRow:
    """One instruction, by how it uses its operands: a letter for each, in order.

    "w" writes it, "m" reads and writes it, "r" reads it.
    """

    use: str
