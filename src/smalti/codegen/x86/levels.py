"""The feature levels of x86-64."""

from __future__ import annotations

from functools import partial

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.operands import Address, CodeLine, Register
from smalti.codegen.cpu.registers import RegisterFile
from smalti.codegen.x86.assembler import X86Assembler
from smalti.codegen.x86.instructions import GENERAL, GENERAL_REGISTERS, VECTOR

STACK = Register("g", -1)
"""The stack pointer, which no virtual register becomes."""


def _reload(register: Register, offset: int) -> CodeLine:
    row = GENERAL["mov"] if register.kind == "g" else VECTOR["load"]
    return CodeLine("reload", row, (register, Address(STACK, offset)))


def _spill(register: Register, offset: int) -> CodeLine:
    row = GENERAL["mov_store"] if register.kind == "g" else VECTOR["store"]
    return CodeLine("spill", row, (Address(STACK, offset), register))


_registers = partial(RegisterFile, GENERAL_REGISTERS, ("RDI", "RSI", "RDX", "RCX"),
                     reload=_reload, spill=_spill)
_NARROW = _registers(range(16), 32, range(0))
_WIDE = _registers(range(32), 64, range(1, 8))  # an instruction masked by k0 is not masked
_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512dq", "avx512vl", "avx512bw"}
_VNNI = _AVX512 | {"avx512_vnni"}
LEVELS = {
    "avx2": FeatureLevel("avx2", 8, _NARROW, _AVX2, X86Assembler, integers="words"),
    "avx2_vnni": FeatureLevel("avx2_vnni", 8, _NARROW, _AVX2 | {"avx_vnni"}, X86Assembler,
                              integers="quads"),
    "avx512": FeatureLevel("avx512", 16, _WIDE, _AVX512, X86Assembler, wide=True,
                           integers="words"),
    "avx512_vnni": FeatureLevel("avx512_vnni", 16, _WIDE, _VNNI, X86Assembler, wide=True,
                                integers="quads"),
    "avx512_bf16": FeatureLevel("avx512_bf16", 16, _WIDE, _VNNI | {"avx512_bf16"}, X86Assembler,
                                pairs=True, wide=True, integers="quads"),
}
"""From the least to the best, by which code for a CPU is chosen: every CPU with AVX-512 BF16 has
AVX-512 VNNI."""
