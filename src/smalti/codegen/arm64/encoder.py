"""Lines on physical registers to machine code for AArch64, and back to text.

An instruction has 32 bits; labels and constants are reached by distances from it, so that code runs
wherever it lies.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from smalti.codegen.arm64.forms import Form, form, read
from smalti.codegen.cpu.operands import CodeLine, Label, Operand, Register
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
    """Machine code of `lines`, which stand `ip` bytes behind the beginning of the constants.

    The label that a line jumps to is the last operand of its form, and is in its `target`.

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
            values = [_number(operand, at) for operand in line.operands]
            if line.target is not None:
                if line.target not in places:
                    raise VerificationError(f"label {line.target.number} is placed nowhere")
                values.append(places[line.target] - at)
            words.append(line.row.word(values))
            at += INSTRUCTION_BYTES
    return struct.pack(f"<{len(words)}I", *words)


def _number(operand: Operand, at: int) -> int:
    """An operand as a number; that of a constant in the pool is the distance from here."""
    if isinstance(operand, int):
        return operand
    return operand.number if isinstance(operand, Register) else operand.offset - at


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
