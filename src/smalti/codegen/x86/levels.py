"""The feature levels of x86-64."""

from __future__ import annotations

from functools import partial

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.registers import RegisterFile
from smalti.codegen.x86.assembler import X86Assembler
from smalti.codegen.x86.instructions import GENERAL, GENERAL_REGISTERS, VECTOR

_registers = partial(RegisterFile, GENERAL_REGISTERS, ("RDI", "RSI", "RDX", "RCX"), moves={
    "g": (GENERAL["mov"], GENERAL["mov_store"]), "v": (VECTOR["load"], VECTOR["store"])})
_NARROW = _registers(range(16), 32, range(0))
_WIDE = _registers(range(32), 64, range(1, 8))  # an instruction masked by k0 is not masked
_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512dq", "avx512vl", "avx512bw"}
LEVELS = {
    "avx2": FeatureLevel("avx2", 8, _NARROW, _AVX2, X86Assembler),
    "avx512": FeatureLevel("avx512", 16, _WIDE, _AVX512, X86Assembler, wide=True),
    "avx512_bf16": FeatureLevel("avx512_bf16", 16, _WIDE, _AVX512 | {"avx512_bf16"}, X86Assembler,
                                pairs=True, wide=True),
}
