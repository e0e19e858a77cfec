"""The encoder against GNU's assembler: every form, with random operands."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from shutil import which

import pytest
from gpu_devices import absent

from smalti.codegen.arm64.encoder import disassembly, encode, word
from smalti.codegen.arm64.forms import FLOATS, Field, Form, Patterns, form, names, read
from smalti.codegen.cpu.operands import CodeLine, Label, Register
from smalti.errors import VerificationError

ASSEMBLER, COPIER = "aarch64-linux-gnu-as", "aarch64-linux-gnu-objcopy"
FEATURES = "-march=armv8.6-a+fp16+fp16fml+bf16+i8mm+dotprod+lse"
WHOLE, SLICE = 100_000, 4
"""Instructions that the sweep compares, and how many of each form the others do."""


def legal(field: Field, chance: random.Random) -> int:
    """A value that an operand takes: often the least or the largest."""
    if isinstance(field.legal, Patterns):
        size = chance.choice([s for s in (2, 4, 8, 16, 32, 64) if s <= field.legal.width])
        bits = (size == 64) << 12 | chance.randrange(size) << 6 | (-2 * size) & 0x3F \
            | chance.randrange(size - 1)
        return field.legal.value(bits)
    values = field.legal if isinstance(field.legal, range) else tuple(FLOATS)
    return values[chance.choice((0, -1, chance.randrange(len(values))))]


def assembled(texts: list[str], folder: Path) -> list[int]:
    """What the assembler makes of each text; "." is where an instruction stands."""
    if which(ASSEMBLER) is None:
        absent("the assembler for AArch64", "binutils-aarch64-linux-gnu")
    source, thing, code = (folder / name for name in ("code.s", "code.o", "code.bin"))
    source.write_text("".join(f"{text}\n" for text in texts))
    subprocess.run([ASSEMBLER, FEATURES, "--no-warn", "-o", thing, source], check=True)
    subprocess.run([COPIER, "-O", "binary", "-j", ".text", thing, code], check=True)
    data = code.read_bytes()
    return [int.from_bytes(data[at:at + 4], "little") for at in range(0, len(data), 4)]


def differing(cases: list[tuple[Form, list[int]]], folder: Path) -> list[str]:
    """What we encode otherwise than the assembler does."""
    expected = assembled([each.text(values) for each, values in cases], folder)
    assert len(expected) == len(cases)
    return [f"{each.text(values)}: {each.word(values):#010x}, expected {right:#010x}"
            for (each, values), right in zip(cases, expected) if each.word(values) != right]


def cases(count: int, chance: random.Random) -> list[tuple[Form, list[int]]]:
    """`count` instructions, all forms in turn."""
    forms = [form(name) for name in names()]
    return [(each, [legal(field, chance) for field in each.fields])
            for each in (forms[i % len(forms)] for i in range(count))]


def test_every_form_is_encoded_as_the_assembler_does(tmp_path: Path) -> None:
    assert not differing(cases(SLICE * len(names()), random.Random(1)), tmp_path)


@pytest.mark.sweep
def test_a_hundred_thousand_instructions(tmp_path: Path) -> None:
    tried = cases(WHOLE, random.Random(2))
    assert not differing(tried, tmp_path)
    print(f"{len(tried)} instructions equal, 0 differing")


def test_the_table_reads_back_what_it_wrote() -> None:
    for each, values in cases(len(names()), random.Random(3)):
        bits = each.word(values)
        known = read(bits)
        assert known is not None and known[0].word(known[1]) == bits, each.name


def test_no_two_lines_have_one_name_and_every_bit_has_a_meaning() -> None:
    for name in names():
        each = form(name)
        covered = each.mask
        for field in each.fields:
            for _, at, bits in field.parts:
                assert not covered & (1 << bits) - 1 << at, f"{name} has an operand twice"
                covered |= (1 << bits) - 1 << at
        assert covered == (1 << 32) - 1, f"{name} leaves bits {~covered & (1 << 32) - 1:032b}"


@pytest.mark.parametrize("name,values,said", [
    ("ldr.q", (0, 1, 8), "operand 3"), ("ldr.q", (0, 1, 65536), "operand 3"),
    ("fmla.4s.lane", (0, 1, 2, 4), "operand 4"), ("add.x.immediate", (0, 1, -1), "operand 3"),
    ("fmla.8h.lane", (0, 1, 16, 0), "operand 3"), ("and.x.immediate", (0, 1, 5), "operand 3"),
    ("ret", (), "takes 1 operands"), ("fmla.5s", (0, 0, 0), "no AArch64 instruction"),
    ("b.condition", (0, 1 << 21), "operand 2"),
])
def test_what_cannot_be_encoded_is_refused(name: str, values: tuple[int, ...], said: str) -> None:
    with pytest.raises(VerificationError, match=said):
        word(name, *values)


def test_labels_are_distances() -> None:
    start, end = Label(1), Label(2)
    counter = Register("g", 0)
    lines = [CodeLine("label", target=start),
             CodeLine("subs", form("subs.x.immediate"), (counter, counter, 1)),
             CodeLine("jump", form("b.condition"), (1,), target=start),
             CodeLine("jump", form("cbz.x"), (counter,), target=end),
             CodeLine("nop", form("nop")),
             CodeLine("label", target=end), CodeLine("return", form("ret"), (Register("g", 30),))]
    listing = disassembly(bytes(16) + encode(lines, 16), 16)
    assert [line.split(None, 1)[1] for line in listing.splitlines()] == [
        "subs x0, x0, #1", "b.ne 0x10", "cbz x0, 0x20", "nop", "ret x30"]
    with pytest.raises(VerificationError, match="placed nowhere"):
        encode(lines[:-2])
