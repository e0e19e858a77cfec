"""Quantised weights of a panel as f32, in memory: what a micro-kernel reads for all its pixels.

    [group][word][o in panel], as `graph.quantised` has the words     to [c][o in panel]

Each lane has its own o, and all codes of a word belong to it, so that nothing moves across lanes: a
code is shifted down, made an f32, multiplied with the scale of its group and raised by its minimum.
"""

from __future__ import annotations

from smalti.graph.quantised import WORD_BITS, Format
from smalti.target.x86.assembler import Assembler, Memory, Register


def unpack(asm: Assembler, form: Format, vectors: int, source: Register, target: Register,
           channels: int) -> None:
    """Write `channels` channels, whole groups, of a panel `vectors` wide to `target`.

    Both registers are left behind what was read and written.
    """
    line = vectors * asm.level.bytes
    with asm.loop(channels // form.group):
        heads = [[asm.load(Memory(source, head * line + v * asm.level.bytes))
                  for v in range(vectors)] for head in range(form.heads)]
        asm.advance(source, form.heads * line)
        with asm.loop(form.group // form.codes):
            for v in range(vectors):
                words = asm.load(Memory(source, v * asm.level.bytes))
                for k in range(form.codes):
                    value = asm.result("mul", _code(asm, form, words, k), heads[0][v])
                    if form.minimum:
                        asm.op("add", value, value, heads[1][v])
                    asm.store(Memory(target, k * line + v * asm.level.bytes), value)
            asm.advance(source, line)
            asm.advance(target, form.codes * line)


def _code(asm: Assembler, form: Format, words: Register, k: int) -> Register:
    """Code `k` of each word as f32."""
    above = WORD_BITS - form.bits * (k + 1)
    value = asm.result("shift_left_int", words, above) if above else words
    shift = "shift_right_int" if form.minimum else "shift_right_signed_int"
    return asm.result("from_int", asm.result(shift, value, WORD_BITS - form.bits))
