"""How inner loops are found in what LLVM's disassembler writes."""

from __future__ import annotations

from bench.arm64_kernels import (
    Instruction,
    executed,
    instructions,
    most_multiplying,
    multiply_adds,
    products,
)

AARCH64 = """\t.text
\tmov\tx4, x0                          // encoding: [0xe4,0x03,0x00,0xaa]
\tldr\tq0, [x1], #16                   // encoding: [0x20,0x04,0xc1,0x3c]
\tfmla\tv1.4s, v0.4s, v2.s[1]          // encoding: [0x01,0x10,0xa2,0x4f]
\tfmla\tv3.4s, v0.4s, v2.s[2]          // encoding: [0x03,0x18,0x82,0x4f]
\tb.ne\t#-12                           // encoding: [0xa1,0xff,0xff,0x54]
\tcbnz\tx4, #-20                       // encoding: [0x64,0xff,0xff,0xb5]
\tret                                  // encoding: [0xc0,0x03,0x5f,0xd6]
\tfmla\tv3.4s, v0.4s, v2.s[2]          // encoding: [0x03,0x18,0x82,0x4f]
"""
X86 = """\t.text
\tvfmadd231ps\t%zmm2, %zmm1, %zmm0     # encoding: [0x62,0xf2,0x75,0x48,0xb8,0xc2]
\tjne\t-8                              # encoding: [0x75,A]
                                        #   fixup A - offset: 1, value: -8, kind: FK_PCRel_1
\tretq                                 # encoding: [0xc3]
"""


def test_the_loop_that_multiplies_most_is_found() -> None:
    code = list(instructions(AARCH64))
    assert [i.at for i in code] == [0, 4, 8, 12, 16, 20, 24]  # up to the return
    assert [(i.at, i.target) for i in code if i.target is not None] == [(16, 4), (20, 0)]
    body = most_multiplying(code)
    assert [i.at for i in body] == [4, 8, 12, 16]
    assert multiply_adds(body) == 2


def test_a_jump_of_x86_counts_from_its_end() -> None:
    code = list(instructions(X86))
    assert [i.at for i in code] == [0, 6, 8]
    assert code[1].target == 0
    assert multiply_adds(most_multiplying(code)) == 1


def test_code_without_products_has_no_such_loop() -> None:
    assert most_multiplying(list(instructions(AARCH64.replace("fmla", "fadd")))) == []


def test_what_a_jump_always_steps_over_is_not_executed() -> None:
    texts = ["fmul v0.4s, v1.4s, v2.4s", "b #12", "movi v0.4s, #0", "movi v1.4s, #0",
             "fmla v0.4s, v1.4s, v2.4s", "b.ne #-20"]
    body = [Instruction(4 * n, text, {1: 16, 5: 0}.get(n)) for n, text in enumerate(texts)]
    assert [i.at for i in executed(body)] == [0, 4, 16, 20]
    assert products("depthwise 3x3", body) == 2 and products("product", body) == 1
