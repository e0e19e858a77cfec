"""Quantised weights of a panel as factors, in memory: what a micro-kernel reads for all its pixels.

    [group][word][o in panel], as `graph.quantised` has the words     to [c][tap][o in panel]

Each lane has its own o, and all codes of a word belong to it, so that nothing moves across lanes: a
code is shifted down, made an f32, multiplied with the scale of its group and raised by its minimum.
For products of bf16, two neighbouring c are rounded and laid side by side under each o; where there
is a window, in a second pass. What is read once only stays in registers (`micro.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, Register
from smalti.graph.quantised import Format

LINE_BYTES = 64
"""Bytes of a cache line, on every x86 CPU so far."""
AHEAD_BYTES = 4096
"""How far ahead words are asked for: a line takes about 90 instructions, so that the CPU by itself
sees 1 KB ahead at most. Measured: one row of 4096 x 4096 in q8 from memory, 2.3 ms to 0.5 ms."""


def unpack(asm: Assembler, form: Format, vectors: int, source: Register, target: Register,
           channels: int, *, pairs: bool = False) -> None:
    """Write `channels` channels (times taps), whole groups, of a panel `vectors` wide to `target`:
    f32, or `pairs` of bf16.

    Both registers are left behind what was read and written.
    """
    line = vectors * asm.level.bytes
    with asm.loop(channels // form.group):
        heads = [[asm.load(Address(source, head * line + v * asm.level.bytes))
                  for v in range(vectors)] for head in range(form.heads)]
        asm.advance(source, form.heads * line)
        with asm.loop(form.group // form.codes):
            ask(asm, source, line)
            for v in range(vectors):
                words = asm.load(Address(source, v * asm.level.bytes))
                here = [head[v] for head in heads]
                for k, value in enumerate(factors(asm, form, words, here, pairs=pairs)):
                    asm.store(Address(target, k * line + v * asm.level.bytes), value)
            asm.advance(source, line)
            asm.advance(target, form.codes * line // (2 if pairs else 1))


def pair(asm: Assembler, vectors: int, values: Register, channels: int, taps: int) -> None:
    """Round f32 [c][tap][o in panel] at `values` to pairs of bf16 [c / 2][tap][o in panel], in
    place."""
    line = vectors * asm.level.bytes
    source, target = asm.copy(values), asm.copy(values)
    with asm.loop(channels // 2):
        with asm.loop(taps):
            for v in range(vectors):
                at = v * asm.level.bytes
                low, high = (asm.load(Address(source, at + k * taps * line)) for k in range(2))
                asm.store(Address(target, at), _pair(asm, low, high))
            asm.advance(source, line)
            asm.advance(target, line)
        asm.advance(source, taps * line)


def ask(asm: Assembler, words: Register, line: int) -> None:
    """Ask for the line of words `AHEAD_BYTES` behind the one that is read. There is so much to be
    done with each that the CPU does not see far enough ahead by itself."""
    for at in range(AHEAD_BYTES, AHEAD_BYTES + line, LINE_BYTES):
        asm.op("prefetch", Address(words, at))


def factors(asm: Assembler, form: Format, words: Register, heads: Sequence[Register], *,
            pairs: bool) -> Iterator[Register]:
    """The weights of a vector of words, one code of each after the other, as `unpack` writes them;
    they are made when they are asked for."""
    values = (_weight(asm, form, code, heads)
              for code in asm.codes(words, form.bits, not form.minimum))
    return (_pair(asm, low, high) for low, high in zip(values, values)) if pairs else values


def registers(form: Format, vectors: int) -> int:
    """Vector registers that hold heads, words and what is made of them beside the sums."""
    return vectors * (form.heads + 1) + 3


def _weight(asm: Assembler, form: Format, code: Register, heads: Sequence[Register]) -> Register:
    """The weight that a code stands for."""
    value = asm.result("mul", code, heads[0])
    return asm.result("add", value, heads[1]) if form.minimum else value


def _pair(asm: Assembler, low: Register, high: Register) -> Register:
    """Two vectors as bf16, side by side in each lane."""
    above = asm.result("shift_left_int", elements.rounded(asm, high), 16)
    return asm.result("or", elements.rounded(asm, low), above)
