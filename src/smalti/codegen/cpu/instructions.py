"""The vocabulary of lowering: the instructions that every architecture gives, by name.

    asm.op("fma", total, factor, Address(weights, 64))      total += factor * [weights + 64]
    ratio = asm.result("div", x, y)                         a new vector register: x / y

An operation here is what lowering says; how many machine instructions it takes is the
architecture's business. Operands are registers, addresses and whole numbers, results first. What an
instruction only reads last may be an address wherever a vector is expected: it means the vector
that lies there, or the constant. Vectors have `level.lanes` lanes of 32 bits, f32 or integers, as
the instruction takes them. Arithmetic of f32 rounds to the nearest, ties to even, and keeps
denormal numbers.

What needs more than operands is a method of `Assembler`: whatever has to do with lanes that are
left out, with what moves across lanes in ways of its own, or with comparing.
"""

from __future__ import annotations

from smalti.dataclass import dataclass


@dataclass(frozen=True)
class InstructionRow:
    """One instruction, by how it uses its operands: a letter for each, in order.

    "w" writes it, "m" reads and writes it, "r" reads it.
    """

    use: str


@dataclass(frozen=True)
class VocabularyRow(InstructionRow):
    """An operation of the vocabulary: how it uses its operands, and what it does to them, which are
    called a, b, c in their order. `least` names what a level must have for it, if not all do."""

    meaning: str
    least: str = ""


_o = VocabularyRow

GENERAL = {
    "mov": _o("wr", "a = b: 64 bits, of a register or of memory"),
    "mov_immediate": _o("wr", "a = the number b, any of 64 bits"),
    "mov_store": _o("rr", "the 64 bits at a = b"),
    "mov_store32": _o("rr", "the 32 bits at a = the lower half of b"),
    "mov_signed32": _o("wr", "a = the 32 bits at b, with their sign"),
    "iadd": _o("mr", "a += b"),
    "iadd_immediate": _o("mr", "a += the number b, of 32 bits with a sign"),
    "isub": _o("mr", "a -= b"),
    "imul": _o("mr", "a *= b"),
    "imul_immediate": _o("wrr", "a = b * the number c, of 32 bits with a sign"),
    "shift_right": _o("mr", "a >>= the number b, zeros from the left"),
    "compare": _o("rr", "what the next jump looks at: a beside b. Nothing stands between the two "
                  "but moves of spilled registers"),
    "compare_immediate": _o("rr", "the same, with the number b of 32 bits with a sign"),
    "prefetch": _o("r", "ask for the cache line at a, for the first-level cache"),
    "prefetch_second": _o("r", "ask for the cache line at a, for the second-level cache"),
    "return": _o("", "leave the function"),
}
"""Operations on 64-bit integers, and what has no operands that count."""

JUMPS = {
    "always": "", "equal": "==", "not_equal": "!=", "less": "<, with signs",
    "greater_equal": ">=, with signs", "below": "<, without signs",
    "above_equal": ">=, without signs",
}
"""Conditions of a jump: how the first operand of the comparison stands to the second one."""

MOVES = {
    "load": _o("wr", "a = the vector at b"),
    "store": _o("rr", "the vector at a = b"),
    "copy": _o("wr", "a = b"),
    "broadcast": _o("wr", "every lane of a = the f32 at b"),
    "spread": _o("wr", "every lane of a = the 32-bit integer at b"),
    "spread_half": _o("wr", "every 16-bit element of a = the one at b"),
    "spread_byte": _o("wr", "every byte of a = the one at b"),
    "store_low": _o("rr", "the 32 bits at a = the lowest lane of b"),
    "store_word": _o("rrr", "the 16 bits at a = the 16-bit element of b of the number c, of those "
                     "of the lowest 128 bits"),
    "store_byte": _o("rrr", "the byte at a = the byte of b of the number c, of the lowest 16"),
    "permute_lanes": _o("wrr", "the lanes of a = those of c in the order b, which "
                        "`order_of_lanes` has made"),
    "unpack_low": _o("wrr", "in each 128 bits of a: b0 c0 b1 c1, of their lanes in b and c"),
    "unpack_high": _o("wrr", "in each 128 bits of a: b2 c2 b3 c3"),
    "unpack_low_pairs": _o("wrr", "in each 128 bits of a: b0 b1 c0 c1"),
    "unpack_high_pairs": _o("wrr", "in each 128 bits of a: b2 b3 c2 c3"),
    "low_parts": _o("wrr", "a = the lower 128 bits of b, then those of c", "8 lanes"),
    "high_parts": _o("wrr", "a = the upper 128 bits of b, then those of c", "8 lanes"),
    "even_parts": _o("wrr", "a = the 128-bit parts 0 and 2 of b, then those of c", "16 lanes"),
    "odd_parts": _o("wrr", "a = the 128-bit parts 1 and 3 of b, then those of c", "16 lanes"),
}
"""Vectors that are moved."""

ARITHMETIC = {
    "add": _o("wrr", "a = b + c"),
    "sub": _o("wrr", "a = b - c"),
    "mul": _o("wrr", "a = b * c"),
    "div": _o("wrr", "a = b / c"),
    "sqrt": _o("wr", "a = the square root of b"),
    "max": _o("wrr", "a = the larger of b and c; NaN where c is, NaN or c where only b is"),
    "min": _o("wrr", "a = the smaller of b and c; NaN where c is, NaN or c where only b is"),
    "fma": _o("mrr", "a += b * c, rounded once"),
    "fma_negative": _o("mrr", "a -= b * c, rounded once"),
    "dot_pairs": _o("mrr", "a += b0 * c0 + b1 * c1, of the two bf16 of each lane", "pairs"),
    "dot_quads": _o("mrr", "a += b0 * c0 + b1 * c1 + b2 * c2 + b3 * c3, of the four bytes of each "
                    "lane: those of b without a sign, or with theirs where the level is `signed`; "
                    "those of c with theirs", "quads"),
    "dot_words": _o("mrr", "a += b0 * c0 + b1 * c1, of the two 16-bit integers of each lane",
                    "quads, words"),
    "mul_words": _o("wrr", "a = b0 * c0 + b1 * c1, of the two 16-bit integers of each lane",
                    "words"),
    "mul_bytes": _o("wrr", "a = b0 * c0 + b1 * c1, of two bytes for each 16-bit integer: those of "
                    "b without a sign, those of c with theirs; where 16 bits do not hold it, a is "
                    "the nearest that they hold", "words"),
    "fma_lane": _o("mrrr", "a += b * the lane of c that is numbered d, rounded once", "by_lane"),
    "dot_pairs_lane": _o("mrrr", "a += b0 * c0 + b1 * c1, of the two bf16 of each lane of b, and "
                         "of the lane of c that is numbered d", "by_lane, pairs"),
    "dot_quads_lane": _o("mrrr", "a += b0 * c0 + b1 * c1 + b2 * c2 + b3 * c3, of the four bytes of "
                         "each lane of b, with their signs, and of the lane of c that is numbered "
                         "d, without one, or with theirs where the level is `signed`",
                         "by_lane, quads"),
    "dot_blocks": _o("mrr", "lane 2 i + j of a += the 4 bf16 in half i of b times those in half j "
                     "of c, pair by pair as `dot_pairs`", "by_lane, blocks"),
    "dot_byte_blocks": _o("mrr", "lane 2 i + j of a += the 8 bytes in half i of b, without a sign, "
                          "times those in half j of c, with theirs", "by_lane, blocks, quads"),
    "round": _o("wr", "a = b rounded to a whole number, ties to even"),
    "floor": _o("wr", "a = the largest whole number that is not above b"),
    "ceil": _o("wr", "a = the smallest whole number that is not below b"),
    "trunc": _o("wr", "a = b without its fraction"),
    "fraction": _o("wr", "a = b - floor(b)", "wide"),
    "scale_by_power": _o("wrr", "a = b * 2^floor(c)", "wide"),
    "and": _o("wrr", "a = b & c, bit by bit"),
    "or": _o("wrr", "a = b | c"),
    "xor": _o("wrr", "a = b ^ c"),
    "and_not": _o("wrr", "a = c without the bits of b"),
    "add_int": _o("wrr", "a = b + c, of 32-bit integers"),
    "mul_int": _o("wrr", "a = b * c, the lower 32 bits"),
    "shift_left_int": _o("wrr", "a = b << the number c"),
    "shift_right_int": _o("wrr", "a = b >> the number c, zeros from the left"),
    "shift_right_signed_int": _o("wrr", "a = b >> the number c, the sign from the left"),
}
"""Arithmetic in each lane by itself."""

CONVERSIONS = {
    "to_int": _o("wr", "a = the whole number nearest to b, ties to even"),
    "from_int": _o("wr", "a = the f32 nearest to the integer b"),
    "widen_half": _o("wr", "lane i of a = the 16-bit element i of b or at b, zeros above it"),
    "widen_f16": _o("wr", "lane i of a = the f32 of the f16 element i of b or at b"),
    "widen_byte": _o("wr", "lane i of a = byte i of b or at b, zeros above it"),
    "widen_signed_byte": _o("wr", "lane i of a = byte i of b or at b, with its sign"),
    "to_f16": _o("wr", "16-bit element i of the lower half of a = the f16 nearest to lane i of b"),
    "to_bf16": _o("wr", "16-bit element i of the lower half of a = the bf16 nearest to lane i of b",
                  "pairs"),
    "load_words": _o("wr", "the lower half of a = that many bytes at b", "wide"),
    "store_words": _o("rr", "that many bytes at a = the lower half of b", "wide"),
}
"""Between f32 and other numbers; all round to the nearest, ties to even, and keep NaN."""

VOCABULARY = {**GENERAL, **MOVES, **ARITHMETIC, **CONVERSIONS}
"""All operations by name."""
