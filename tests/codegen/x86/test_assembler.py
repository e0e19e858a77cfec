"""The assembler of x86 and its encoder: what is emitted, what cannot be."""

from __future__ import annotations

import pytest

from smalti.codegen.cpu.operands import Address
from smalti.codegen.levels import level
from smalti.codegen.x86.encoder import disassembly, encode
from smalti.errors import VerificationError


def test_disassembly_shows_what_was_emitted() -> None:
    asm = level("avx2").assembler("shown")
    pointer = asm.argument()
    with asm.loop(5):
        asm.store(Address(pointer), asm.load_constant(1.0))
        asm.advance(pointer, 32)
    code = asm.finish()
    lines = [line.split(None, 1)[1] for line in disassembly(code.bytes, code.entry).splitlines()]
    assert [line.split()[0] for line in lines] == ["mov", "vmovups", "vmovups", "add", "add", "jne",
                                                   "ret"]
    assert lines[2].startswith("vmovups [rdi],ymm") and lines[3] == "add rdi,20h"


def test_what_cannot_be_encoded_is_an_error() -> None:
    asm = level("avx2").assembler("bf16")
    asm.op("to_bf16", asm.vector(), asm.zero())
    with pytest.raises(VerificationError, match="to_bf16 has no encoding at level avx2"):
        asm.finish()
    asm = level("avx2").assembler("label")
    asm.op("return")
    asm.place(asm.label())
    with pytest.raises(VerificationError, match="behind the last instruction"):
        encode(asm.lines, asm.level, 0, 0)
