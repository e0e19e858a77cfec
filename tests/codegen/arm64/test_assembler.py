"""Operations of the vocabulary as instructions of AArch64; what they do is tested where the CPU is
one, by tests/codegen/cpu."""

from __future__ import annotations

import random
import re

import pytest

from smalti.codegen.arm64.assembler import GENERAL_REGISTERS, Arm64Assembler
from smalti.codegen.arm64.encoder import disassembly
from smalti.codegen.arm64.forms import Form, form
from smalti.codegen.arm64.levels import LEVELS
from smalti.codegen.cpu.assembler import Assembler, FeatureLevel
from smalti.codegen.cpu.instructions import JUMPS, VOCABULARY
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.levels import level
from smalti.errors import VerificationError

EVERY = (1 << 64) - 1
GENERAL = {"mov": "gg", "mov_immediate": "gi", "mov_store": "mg", "mov_store32": "mg",
           "mov_signed32": "gm", "iadd": "gg", "iadd_immediate": "gi", "isub": "gg", "imul": "gg",
           "imul_immediate": "ggi", "shift_right": "gi", "compare": "gg",
           "compare_immediate": "gi", "prefetch": "m", "prefetch_second": "m", "return": ""}
"""Operands of operations on general registers: registers, numbers, memory."""
STORES = ("store", "store_low", "store_word", "store_byte")
LOADS = ("broadcast", "spread", "spread_half", "spread_byte", "load")
NUMBERED = {"store_word", "store_byte", "fma_lane", "dot_pairs_lane", "dot_quads_lane",
            "shift_left_int", "shift_right_int", "shift_right_signed_int"}


def listing(asm: Assembler) -> list[str]:
    """The instructions of a function, but the last one, which returns."""
    code = asm.finish()
    lines = [line.split(None, 1)[1] for line in disassembly(code.bytes, code.entry).splitlines()]
    assert lines[-1] == "ret x30"
    return lines[:-1]


def operands(asm: Assembler, name: str) -> list[Register | Address | int]:
    """Operands for an operation of the vocabulary."""
    memory = Address(asm.arguments[0], 32)
    if name in GENERAL:
        return [{"g": asm.arguments[1], "i": 3, "m": memory}[kind] for kind in GENERAL[name]]
    found: list[Register | Address | int] = [asm.zero() for _ in VOCABULARY[name].use]
    if name in STORES:
        found[0] = memory
    if name in LOADS:
        found[1] = memory
    if name in NUMBERED:
        found[-1] = 2
    return found


def functioning(at: str = "neon") -> Assembler:
    """An assembler with two arguments."""
    asm = level(at).assembler("test")
    asm.argument(), asm.argument()
    return asm


def given(chosen: FeatureLevel) -> list[str]:
    """The operations that a level has."""
    return [name for name, row in VOCABULARY.items()
            if not row.least or all(getattr(chosen, each, False) for each in row.least.split(", "))]


@pytest.mark.parametrize("at,name", [(at, name) for at in LEVELS for name in given(LEVELS[at])])
def test_every_operation_is_made_of_what_the_level_has(at: str, name: str) -> None:
    asm = functioning(at)
    asm.op(name, *operands(asm, name))
    rows = [line.row for line in asm.lines if line.row]
    assert rows and all(isinstance(row, Form) and row.feature in asm.level.needs for row in rows)
    asm.finish()


def test_pairs_of_bf16() -> None:
    asm = functioning("neon_bf16")
    first, second = (asm.load(Address(asm.arguments[0], 16 * i)) for i in range(2))
    assert asm.order_of_pairs() is None
    asm.store(Address(asm.arguments[1]), asm.pair(None, first, second))
    assert listing(asm)[2:-1] == ["bfcvtn v0.4h, v0.4s", "bfcvtn v1.4h, v1.4s",
                                  "zip1 v1.8h, v0.8h, v1.8h"]


@pytest.mark.parametrize("at,whole,lane", [
    ("neon_dot", "sdot v1.4s, v2.16b, v3.16b", "sdot v1.4s, v2.16b, v3.4b[2]"),
    ("neon_bf16", "usdot v1.4s, v2.16b, v3.16b", "sudot v1.4s, v2.16b, v3.4b[2]")])
def test_products_of_bytes_are_of_the_signs_that_the_level_says(at: str, whole: str,
                                                               lane: str) -> None:
    asm = functioning(at)
    total, first, second = (asm.load(Address(asm.arguments[0], 16 * i)) for i in range(3))
    asm.op("dot_quads", total, first, second)
    asm.op("dot_quads_lane", total, first, second, 2)
    asm.store(Address(asm.arguments[1]), total)
    numbered = {"v0": "v1", "v1": "v2", "v2": "v3"}
    lines = [re.sub(r"v\d", lambda one: numbered[one[0]], line) for line in listing(asm)]
    assert lines[-3:-1] == [whole, lane]


def test_codes_of_words_take_no_conversion() -> None:
    asm = functioning()
    words = asm.load(Address(asm.arguments[0]))
    for i, code in enumerate(asm.codes(words, 8, True)):
        asm.store(Address(asm.arguments[1], 16 * i), code)
    names = [line.split()[0] for line in listing(asm)]
    assert {"bit", "tbx", "usra", "fsub", "eor"} < set(names) and "scvtf" not in names
    assert names.count("adr") == 1 and names.count("eor") == 1 and names.count("fsub") == 4
    assert names.count("st1") == 1 and names.count("str") + names.count("stur") == 3


@pytest.mark.parametrize("name", [n for n, o in VOCABULARY.items() if not o.least
                                  and o.use[-1:] == "r" and n not in GENERAL
                                  and n not in NUMBERED and n not in STORES
                                  and n != "permute_lanes"])
def test_a_constant_may_be_read_last(name: str) -> None:
    asm = functioning()
    asm.op(name, *operands(asm, name)[:-1], asm.constant(1.25))
    assert any(line.startswith("ldr ") for line in listing(asm))


def test_jumps_have_all_conditions() -> None:
    asm = functioning()
    for condition in JUMPS:
        there = asm.label()
        asm.op("compare", *asm.arguments)
        asm.jump(condition, there)
        asm.place(there)
    jumps = [line.split()[0] for line in listing(asm) if line.startswith("b")]
    assert jumps == ["b", "b.eq", "b.ne", "b.lt", "b.ge", "b.lo", "b.hs"]


@pytest.mark.parametrize("offset,expected", [
    (0, ["ldur q0, [x0, #0]"]), (65520, ["ldr q0, [x0, #65520]"]), (-256, ["ldur q0, [x0, #-256]"]),
    (255, ["ldur q0, [x0, #255]"]), (65536, ["add x2, x0, #16, lsl 12", "ldur q0, [x2, #0]"]),
    (65560, ["add x2, x0, #16, lsl 12", "ldur q0, [x2, #24]"]),
    (1001, ["add x2, x0, #1001", "ldur q0, [x2, #0]"]),
    (-4096, ["sub x2, x0, #1, lsl 12", "ldur q0, [x2, #0]"]),
    (1 << 24, ["movz x2, #256, lsl #16", "add x2, x0, x2", "ldur q0, [x2, #0]"]),
])
def test_offsets_that_no_instruction_holds_are_added_before(offset: int,
                                                            expected: list[str]) -> None:
    asm = functioning()
    asm.load(Address(asm.arguments[0], offset))
    asm.op("mov_store", Address(asm.arguments[1]), asm.arguments[0])
    assert listing(asm)[:-1] == expected


def test_indices() -> None:
    asm = functioning()
    base, index = asm.arguments
    asm.load(Address(base, 0, index))
    asm.load(Address(base, 32, index, 4))
    asm.op("prefetch", Address(base, 0, index))
    asm.op("mov_store", Address(base), index)
    assert listing(asm)[:-1] == ["ldr q0, [x0, x1]", "add x2, x0, x1, lsl #2", "ldur q0, [x2, #32]",
                                 "prfm #0, [x0, x1]"]


def test_a_far_place_is_computed_once_while_it_is_true() -> None:
    asm = functioning()
    base, other = asm.arguments

    def far() -> None:
        asm.load(Address(base, 1 << 20))
        asm.load(Address(base, (1 << 20) + 16))

    far()
    asm.advance(base, 16)
    far()
    asm.place(asm.label())
    far()
    with asm.once():
        far()
    asm.op("mov_store", Address(other), base)
    added = [line for line in listing(asm) if line.startswith("add x") and "lsl 12" in line]
    assert len(added) == 4


def moved(lines: list[str]) -> int:
    """What movz, movn and movk leave in a register."""
    value = 0
    for line in lines:
        name, _, number, _, at = line.replace("#", "").replace(",", "").split()
        word = int(number) << int(at)
        if name == "movk":
            value = value & ~(0xFFFF << int(at)) | word
        else:
            value = word if name == "movz" else ~word & EVERY
    return value


def test_numbers_come_into_registers_by_few_instructions() -> None:
    chance = random.Random(5)
    words = (0, 0xFFFF, 1, 0x8000, 0x1234)
    numbers = [sum(chance.choice(words) << at for at in range(0, 64, 16)) for _ in range(200)]
    for number in (*numbers, 0, -1, -2**63, 2**63, -65537):
        asm = functioning()
        asm.op("mov_store", Address(asm.arguments[0]), asm.immediate(number))
        lines = listing(asm)[:-1]
        assert moved(lines) == number & EVERY
        wanted = [number >> at & 0xFFFF for at in range(0, 64, 16)]
        assert len(lines) == max(1, 4 - max(wanted.count(0), wanted.count(0xFFFF)))


@pytest.mark.parametrize("number,expected", [
    (5, "add x0, x0, #5"), (-5, "sub x0, x0, #5"), (4096, "add x0, x0, #1, lsl 12"),
    (-4097, "sub x0, x0, #1, lsl 12; sub x0, x0, #1"),
    (1 << 24, "movz x2, #256, lsl #16; add x0, x0, x2")])
def test_numbers_that_are_added(number: int, expected: str) -> None:
    asm = functioning()
    asm.advance(asm.arguments[0], number)
    asm.op("mov_store", Address(asm.arguments[1]), asm.arguments[0])
    assert "; ".join(listing(asm)[:-1]) == expected


def test_flags_stay_between_a_comparison_and_its_jump() -> None:
    asm = functioning()
    start = asm.label()
    asm.place(start)
    asm.op("compare_immediate", asm.arguments[0], 1 << 20)
    asm.jump("below", start)
    assert listing(asm) == ["movz x1, #16, lsl #16", "cmp x0, x1", "b.lo 0x0"]


def test_spilled_registers_lie_in_a_frame_that_is_given_back() -> None:
    asm = functioning()
    vectors = [asm.load(Address(asm.arguments[0], 16 * i)) for i in range(40)]
    numbers = [asm.immediate(i) for i in range(40)]
    for i, (vector, number) in enumerate(zip(vectors, numbers)):
        asm.store(Address(asm.arguments[1], 16 * i), vector)
        asm.op("mov_store", Address(asm.arguments[1], 16 * i), number)
    lines = listing(asm)
    sizes = [int(line.rsplit("#", 1)[1]) for line in lines if "sp, sp" in line]
    assert len(sizes) == 2 and sizes[0] == sizes[1] and sizes[0] % 16 == 0
    assert not any("x18" in line or "x30" in line for line in lines)
    assert "x18" not in GENERAL_REGISTERS and "x30" not in GENERAL_REGISTERS


def test_what_neon_cannot_say_is_an_error() -> None:
    asm = functioning()
    assert isinstance(asm, Arm64Assembler)
    vector = asm.zero()
    with pytest.raises(VerificationError, match="has a mask"):
        asm.op("add", vector, vector, vector, mask=Register("k", 1))
    with pytest.raises(VerificationError, match="no mask registers"):
        asm.tail_mask(2)
    with pytest.raises(VerificationError, match="low_parts is no operation"):
        asm.op("low_parts", vector, vector, vector)
    with pytest.raises(VerificationError, match="ret takes 1 operands"):
        form("ret").word(())
