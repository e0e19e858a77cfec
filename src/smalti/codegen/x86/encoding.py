"""The encoder of machine code for x86, loaded when it is first used.

It needs iced-x86, which is installed with Smalti on x86-64 and has no wheels for other computers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smalti.errors import InputError

if TYPE_CHECKING:
    from types import ModuleType

    from smalti.codegen.cpu.assembler import FeatureLevel
    from smalti.codegen.cpu.operands import CodeLine


def encode(lines: Sequence[CodeLine], level: FeatureLevel, ip: int, frame_bytes: int) -> bytes:
    """Machine code of `lines`; it will stand `ip` bytes behind the pool of constants.

    Raises VerificationError for lines that cannot be, InputError where iced-x86 is absent.
    """
    return _encoder().encode(lines, level, ip, frame_bytes)


def disassembly(code: bytes, entry: int) -> str:
    """The instructions of `code` from byte `entry` on, one a line, in Intel syntax. Raises
    InputError where iced-x86 is absent."""
    return _encoder().disassembly(code, entry)


def _encoder() -> ModuleType:
    try:
        from smalti.codegen.x86 import encoder
    except ModuleNotFoundError as error:
        if error.name != "iced_x86":
            raise
        raise InputError("machine code for x86-64 is made with the package iced-x86, which is not "
                         "installed; it comes with Smalti on x86-64 computers, and has no wheels "
                         "for others") from error
    return encoder
