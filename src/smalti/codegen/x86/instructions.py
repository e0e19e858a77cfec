"""The table of instructions that the code generator uses.

A row is an instruction: how it uses its operands ("w" writes, "m" reads and writes, "r" reads) and
which encoding serves it at 256 bits (AVX2) and at 512 bits (AVX-512), by the names that iced-x86
gives to encodings.
"""

from __future__ import annotations

from smalti.codegen.cpu.instructions import InstructionRow
from smalti.dataclass import dataclass


@dataclass(frozen=True)
class X86Row(InstructionRow):
    """One instruction: operand use, its encodings (None where a level has none), and the immediate
    number that its name stands for."""

    narrow: str | None
    wide: str | None = None
    immediate: int | None = None


_row = X86Row


def _both(use: str, code: str) -> X86Row:
    return _row(use, code, code)


def _arithmetic(name: str, rounding: str = "_ER") -> X86Row:
    return _row("wrr", f"VEX_{name}_YMM_YMM_YMMM256",
                f"EVEX_{name}_ZMM_K1Z_ZMM_ZMMM512B32{rounding}")


VECTOR = {
    "load": _row("wr", "VEX_VMOVUPS_YMM_YMMM256", "EVEX_VMOVUPS_ZMM_K1Z_ZMMM512"),
    "store": _row("rr", "VEX_VMOVUPS_YMMM256_YMM", "EVEX_VMOVUPS_ZMMM512_K1Z_ZMM"),
    "copy": _row("wr", "VEX_VMOVAPS_YMM_YMMM256", "EVEX_VMOVAPS_ZMM_K1Z_ZMMM512"),
    "load_masked": _row("wrr", "VEX_VMASKMOVPS_YMM_YMM_M256"),
    "store_masked": _row("rrr", "VEX_VMASKMOVPS_M256_YMM_YMM"),
    "broadcast": _row("wr", "VEX_VBROADCASTSS_YMM_M32", "EVEX_VBROADCASTSS_ZMM_K1Z_XMMM32"),
    "spread": _row("wr", "VEX_VPBROADCASTD_YMM_XMMM32", "EVEX_VPBROADCASTD_ZMM_K1Z_XMMM32"),
    "store_low": _row("rr", "VEX_VMOVSS_M32_XMM", "EVEX_VMOVSS_M32_K1_XMM"),
    "fma": _row("mrr", "VEX_VFMADD231PS_YMM_YMM_YMMM256",
                "EVEX_VFMADD231PS_ZMM_K1Z_ZMM_ZMMM512B32_ER"),
    "fma_into_factor": _row("mrr", "VEX_VFMADD213PS_YMM_YMM_YMMM256",
                            "EVEX_VFMADD213PS_ZMM_K1Z_ZMM_ZMMM512B32_ER"),
    "fma_negative": _row("mrr", "VEX_VFNMADD231PS_YMM_YMM_YMMM256",
                         "EVEX_VFNMADD231PS_ZMM_K1Z_ZMM_ZMMM512B32_ER"),
    "dot_pairs": _row("mrr", None, "EVEX_VDPBF16PS_ZMM_K1Z_ZMM_ZMMM512B32"),
    "dot_quads": _row("mrr", "VEX_VPDPBUSD_YMM_YMM_YMMM256",
                      "EVEX_VPDPBUSD_ZMM_K1Z_ZMM_ZMMM512B32"),
    "dot_words": _row("mrr", "VEX_VPDPWSSD_YMM_YMM_YMMM256",
                      "EVEX_VPDPWSSD_ZMM_K1Z_ZMM_ZMMM512B32"),
    "mul_words": _row("wrr", "VEX_VPMADDWD_YMM_YMM_YMMM256",
                      "EVEX_VPMADDWD_ZMM_K1Z_ZMM_ZMMM512"),
    "mul_bytes": _row("wrr", "VEX_VPMADDUBSW_YMM_YMM_YMMM256",
                      "EVEX_VPMADDUBSW_ZMM_K1Z_ZMM_ZMMM512"),
    "to_bf16_two": _row("wrr", None, "EVEX_VCVTNE2PS2BF16_ZMM_K1Z_ZMM_ZMMM512B32"),
    "permute_halves": _row("wrr", None, "EVEX_VPERMW_ZMM_K1Z_ZMM_ZMMM512"),
    "to_bf16": _row("wr", None, "EVEX_VCVTNEPS2BF16_YMM_K1Z_ZMMM512B32"),
    "widen_half": _row("wr", "VEX_VPMOVZXWD_YMM_XMMM128", "EVEX_VPMOVZXWD_ZMM_K1Z_YMMM256"),
    "widen_f16": _row("wr", "VEX_VCVTPH2PS_YMM_XMMM128", "EVEX_VCVTPH2PS_ZMM_K1Z_YMMM256_SAE"),
    "to_f16": _row("wr", "VEX_VCVTPS2PH_XMMM128_YMM_IMM8",
                   "EVEX_VCVTPS2PH_YMMM256_K1Z_ZMM_IMM8_SAE", 0),
    "low_words": _row("wr", None, "EVEX_VPMOVDW_YMMM256_K1Z_ZMM"),
    "spread_half": _row("wr", "VEX_VPBROADCASTW_YMM_XMMM16", "EVEX_VPBROADCASTW_ZMM_K1Z_XMMM16"),
    "widen_byte": _row("wr", "VEX_VPMOVZXBD_YMM_XMMM64", "EVEX_VPMOVZXBD_ZMM_K1Z_XMMM128"),
    "widen_signed_byte": _row("wr", "VEX_VPMOVSXBD_YMM_XMMM64", "EVEX_VPMOVSXBD_ZMM_K1Z_XMMM128"),
    "spread_byte": _row("wr", "VEX_VPBROADCASTB_YMM_XMMM8", "EVEX_VPBROADCASTB_ZMM_K1Z_XMMM8"),
    "store_low_bytes": _row("rr", None, "EVEX_VPMOVDB_XMMM128_K1Z_ZMM"),
    "pack_bytes": _row("wrr", "VEX_VPACKUSWB_YMM_YMM_YMMM256"),
    "store_quad": _row("rr", "VEX_VMOVQ_XMMM64_XMM"),
    "store_byte": _row("rrr", "VEX_VPEXTRB_R32M8_XMM_IMM8", "EVEX_VPEXTRB_R32M8_XMM_IMM8"),
    "load_words": _row("wr", None, "EVEX_VMOVDQU16_YMM_K1Z_YMMM256"),
    "store_words": _row("rr", None, "EVEX_VMOVDQU16_YMMM256_K1Z_YMM"),
    "store_low_words": _row("rr", None, "EVEX_VPMOVDW_YMMM256_K1Z_ZMM"),
    "pack_words": _row("wrr", "VEX_VPACKUSDW_YMM_YMM_YMMM256"),
    "permute_quads": _row("wrr", "VEX_VPERMQ_YMM_YMMM256_IMM8"),
    "store_half": _row("rr", "VEX_VMOVUPS_XMMM128_XMM"),
    "store_half_masked": _row("rrr", "VEX_VMASKMOVPS_M128_XMM_XMM"),
    "store_word": _row("rrr", "VEX_VPEXTRW_R32M16_XMM_IMM8", "EVEX_VPEXTRW_R32M16_XMM_IMM8"),
    "add": _arithmetic("VADDPS"), "sub": _arithmetic("VSUBPS"),
    "mul": _arithmetic("VMULPS"), "div": _arithmetic("VDIVPS"),
    "max": _arithmetic("VMAXPS", "_SAE"), "min": _arithmetic("VMINPS", "_SAE"),
    "and": _arithmetic("VANDPS", ""), "or": _arithmetic("VORPS", ""),
    "xor": _arithmetic("VXORPS", ""), "and_not": _arithmetic("VANDNPS", ""),
    "sqrt": _row("wr", "VEX_VSQRTPS_YMM_YMMM256", "EVEX_VSQRTPS_ZMM_K1Z_ZMMM512B32_ER"),
    **{name: _row("wr", "VEX_VROUNDPS_YMM_YMMM256_IMM8",
                  "EVEX_VRNDSCALEPS_ZMM_K1Z_ZMMM512B32_IMM8_SAE", mode)
       for name, mode in (("round", 8), ("floor", 9), ("ceil", 10), ("trunc", 11))},
    "fraction": _row("wr", None, "EVEX_VREDUCEPS_ZMM_K1Z_ZMMM512B32_IMM8_SAE", 9),
    "scale_by_power": _row("wrr", None, "EVEX_VSCALEFPS_ZMM_K1Z_ZMM_ZMMM512B32_ER"),
    "to_int": _row("wr", "VEX_VCVTPS2DQ_YMM_YMMM256", "EVEX_VCVTPS2DQ_ZMM_K1Z_ZMMM512B32_ER"),
    "from_int": _row("wr", "VEX_VCVTDQ2PS_YMM_YMMM256", "EVEX_VCVTDQ2PS_ZMM_K1Z_ZMMM512B32_ER"),
    "add_int": _row("wrr", "VEX_VPADDD_YMM_YMM_YMMM256", "EVEX_VPADDD_ZMM_K1Z_ZMM_ZMMM512B32"),
    "mul_int": _row("wrr", "VEX_VPMULLD_YMM_YMM_YMMM256", "EVEX_VPMULLD_ZMM_K1Z_ZMM_ZMMM512B32"),
    "min_int": _row("wrr", "VEX_VPMINSD_YMM_YMM_YMMM256", "EVEX_VPMINSD_ZMM_K1Z_ZMM_ZMMM512B32"),
    "shift_left_int": _row("wrr", "VEX_VPSLLD_YMM_YMM_IMM8",
                           "EVEX_VPSLLD_ZMM_K1Z_ZMMM512B32_IMM8"),
    "shift_right_int": _row("wrr", "VEX_VPSRLD_YMM_YMM_IMM8",
                            "EVEX_VPSRLD_ZMM_K1Z_ZMMM512B32_IMM8"),
    "shift_right_signed_int": _row("wrr", "VEX_VPSRAD_YMM_YMM_IMM8",
                                   "EVEX_VPSRAD_ZMM_K1Z_ZMMM512B32_IMM8"),
    "greater_int": _row("wrr", "VEX_VPCMPGTD_YMM_YMM_YMMM256"),
    "greater_int_mask": _row("wrr", None, "EVEX_VPCMPGTD_KR_K1_ZMM_ZMMM512B32"),
    "greater_mask": _row("wrrr", None, "EVEX_VCMPPS_KR_K1_ZMM_ZMMM512B32_IMM8_SAE"),
    "compare_lanes": _row("wrrr", "VEX_VCMPPS_YMM_YMM_YMMM256_IMM8"),
    "blend": _row("wrrr", "VEX_VBLENDVPS_YMM_YMM_YMMM256_YMM"),
    "gather": _row("mrm", "VEX_VGATHERDPS_YMM_VM32Y_YMM", "EVEX_VGATHERDPS_ZMM_K1_VM32Z"),
    "swap_halves": _row("wrrr", "VEX_VPERM2F128_YMM_YMM_YMMM256_IMM8",
                        "EVEX_VSHUFF32X4_ZMM_K1Z_ZMM_ZMMM512B32_IMM8"),
    "low_parts": _row("wrr", "VEX_VPERM2F128_YMM_YMM_YMMM256_IMM8", None, 0x20),
    "high_parts": _row("wrr", "VEX_VPERM2F128_YMM_YMM_YMMM256_IMM8", None, 0x31),
    "even_parts": _row("wrr", None, "EVEX_VSHUFF32X4_ZMM_K1Z_ZMM_ZMMM512B32_IMM8", 0x88),
    "odd_parts": _row("wrr", None, "EVEX_VSHUFF32X4_ZMM_K1Z_ZMM_ZMMM512B32_IMM8", 0xDD),
    "unpack_low": _arithmetic("VUNPCKLPS", ""), "unpack_high": _arithmetic("VUNPCKHPS", ""),
    "unpack_low_pairs": _row("wrr", "VEX_VUNPCKLPD_YMM_YMM_YMMM256",
                             "EVEX_VUNPCKLPD_ZMM_K1Z_ZMM_ZMMM512B64"),
    "unpack_high_pairs": _row("wrr", "VEX_VUNPCKHPD_YMM_YMM_YMMM256",
                              "EVEX_VUNPCKHPD_ZMM_K1Z_ZMM_ZMMM512B64"),
    "permute_lanes": _row("wrr", "VEX_VPERMPS_YMM_YMM_YMMM256",
                          "EVEX_VPERMPS_ZMM_K1Z_ZMM_ZMMM512B32"),
    "permute": _row("wrr", "VEX_VPERMILPS_YMM_YMMM256_IMM8",
                    "EVEX_VPERMILPS_ZMM_K1Z_ZMMM512B32_IMM8"),
}

GENERAL = {
    "mov": _both("wr", "MOV_R64_RM64"),
    "mov_immediate": _both("wr", "MOV_R64_IMM64"),
    "mov_store": _both("rr", "MOV_RM64_R64"),
    "mov_store32": _both("rr", "MOV_RM32_R32"),
    "mov32": _both("wr", "MOV_R32_RM32"),
    "mov_signed32": _both("wr", "MOVSXD_R64_RM32"),
    "lea": _both("wr", "LEA_R64_M"),
    "iadd": _both("mr", "ADD_R64_RM64"),
    "iadd_immediate": _both("mr", "ADD_RM64_IMM32"),
    "isub": _both("mr", "SUB_R64_RM64"),
    "imul": _both("mr", "IMUL_R64_RM64"),
    "imul_immediate": _both("wrr", "IMUL_R64_RM64_IMM32"),
    "shift_left": _both("mr", "SHL_RM64_IMM8"),
    "shift_right": _both("mr", "SHR_RM64_IMM8"),
    "shift_right_signed": _both("mr", "SAR_RM64_IMM8"),
    "compare": _both("rr", "CMP_R64_RM64"),
    "compare_immediate": _both("rr", "CMP_RM64_IMM32"),
    "exchange_add": _both("mm", "XADD_RM64_R64"),
    "mask_to": _row("wr", None, "VEX_KMOVW_R32_KR"),
    "signs": _row("wr", "VEX_VMOVMSKPS_R32_YMM"),
    "mask_from": _row("wr", None, "VEX_KMOVW_KR_R32"),
    "prefetch": _both("r", "PREFETCHT0_M8"),
    "prefetch_second": _both("r", "PREFETCHT1_M8"),
    "return": _both("", "RETNQ"),
    "pause": _both("", "PAUSE"),
    "clear_upper": _both("", "VEX_VZEROUPPER"),
    "call": _both("r", "CALL_RM64"),
    "push": _both("r", "PUSH_R64"),
    "pop": _both("w", "POP_R64"),
    "syscall": _both("", "SYSCALL"),
    "cpuid": _both("", "CPUID"),
    "xgetbv": _both("", "XGETBV"),
    "time_stamp": _both("", "RDTSC"),
    "in_order": _both("", "LFENCE"),
    "bit_or": _both("mr", "OR_R64_RM64"),
    "test_immediate": _both("rr", "TEST_RM64_IMM32"),
    "store_low_128": _both("rr", "MOVUPS_XMMM128_XMM"),
    "load_low_128": _both("wr", "MOVUPS_XMM_XMMM128"),
}

JUMPS = {
    "always": "JMP_REL32_64", "equal": "JE_REL32_64", "not_equal": "JNE_REL32_64",
    "less": "JL_REL32_64", "greater_equal": "JGE_REL32_64", "below": "JB_REL32_64",
    "above_equal": "JAE_REL32_64",
}

ALL = {**VECTOR, **GENERAL}
"""All rows by name."""

GENERAL_REGISTERS = ("RAX", "RCX", "RDX", "RBX", "RSI", "RDI", "R8", "R9", "R10", "R11",
                     "R12", "R13", "R14", "R15", "RBP")
