"""Lines on physical registers to machine code for AArch64, and back to text.

An instruction has 32 bits; labels and constants are reached by distances from it, so that code runs
wherever it lies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from smalti.codegen.arm64.forms import Form, form, read
from smalti.codegen.cpu.operands import Address, CodeLine, Label, Register
from smalti.errors import VerificationError

INSTRUCTION_BYTES = 4
"""Bytes of every instruction."""
STACK = 31
"""The number of the stack pointer, in the operands that can be it; elsewhere it is zero."""


def word(name: str, *values: int) -> int:
    """The instruction of a form with operands as plain numbers.

    >>> hex(word("add.x.immediate", 0, 1, 16))
    '0x91004020'
    """
    return form(name).word(values)


def encode(lines: Sequence[CodeLine], ip: int = 0) -> bytes:
    """Machine code of `lines`, which stand `ip` bytes behind the pool of constants.

    Raises VerificationError for lines that cannot be.
    """
    places: dict[Label, int] = {}
    at = ip
    for line in lines:
        if line.row is None:
            assert line.target is not None, line
            places[line.target] = at
        else:
            at += INSTRUCTION_BYTES
    words: list[int] = []
    at = ip
    for line in lines:
        if line.row is not None:
            assert isinstance(line.row, Form), line
            words.append(line.row.word([_number(o, at, places) for o in line.operands]))
            at += INSTRUCTION_BYTES
    return struct.pack(f"<{len(words)}I", *words)


def _number(operand: Register | Address | Label | int, at: int, places: dict[Label, int]) -> int:
    """An operand as a number: a constant in the pool and a label are distances from here."""
    if isinstance(operand, int):
        return operand
    if isinstance(operand, Register):
        return operand.number
    if isinstance(operand, Address):
        return operand.offset - at
    if operand not in places:
        raise VerificationError(f"label {operand.number} is placed nowhere")
    return places[operand] - at


def disassembly(code: bytes, entry: int) -> str:
    """The instructions from `entry` on, one a line, in the syntax of assemblers."""
    lines = []
    for at in range(entry, len(code) - len(code) % INSTRUCTION_BYTES, INSTRUCTION_BYTES):
        bits = int.from_bytes(code[at:at + INSTRUCTION_BYTES], "little")
        known = read(bits)
        text = f".inst {bits:#010x}"
        if known is not None:
            found, values = known
            text = found.text(values)
            for field, value in zip(found.fields, values):
                if field.kind == "@":
                    text = text.replace(field.text(value), f"{at + value:#x}")
        lines.append(f"{at:6x}  {text}")
    return "\n".join(lines)
