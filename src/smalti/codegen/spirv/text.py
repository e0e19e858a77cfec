"""Modules of SPIR-V as text, for reading: one instruction a line.

    %35 = IAdd u32 %33, 64

Types of values and scalar constants stand for their ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain, repeat

from smalti.codegen.spirv.opcodes import CAPABILITIES, DECORATIONS, GLSL, MODES, OPCODES, STORAGE

HEADER_WORDS = 5  # magic, version, generator, bound of ids, 0
NAMES = {number: (name, operands) for name, (number, operands) in OPCODES.items()}
ENUMERANTS = {letter: {number: name for name, number in table.items()} for letter, table in
              {"c": CAPABILITIES, "d": DECORATIONS, "m": MODES, "p": STORAGE}.items()}
EXTENDED = {number: name for name, number in GLSL.items()}
SCALARS = {(21, 32, 0): "u32", (21, 32, 1): "i32", (21, 16, 0): "u16", (21, 8, 0): "u8",
           (21, 8, 1): "i8", (22, 32): "f32", (22, 16): "f16", (22, 16, 0): "bf16",
           (20,): "bool", (19,): "void"}


def listing(module: bytes) -> str:
    """The instructions of a module that `emit` has made."""
    words = struct.unpack(f"<{len(module) // 4}I", module)
    ids: dict[int, str] = {}
    lines = [f"SPIR-V 1.{words[1] >> 8 & 0xFF}, {words[3]} ids"]
    for code, operands in _instructions(words):
        name, form = NAMES[code]
        lines.append(_line(name, form, operands, ids))
        _remember(code, name, operands, ids)
    return "\n".join(lines)


def _instructions(words: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = HEADER_WORDS
    while at < len(words):
        count, code = words[at] >> 16, words[at] & 0xFFFF
        yield code, words[at + 1:at + count]
        at += count


def _remember(code: int, name: str, operands: tuple[int, ...], ids: dict[int, str]) -> None:
    """How types and constants are called from here on."""
    if (code, *operands[1:]) in SCALARS:
        ids[operands[0]] = SCALARS[code, *operands[1:]]
    elif name == "TypeVector":
        ids[operands[0]] = f"{ids[operands[1]]}x{operands[2]}"
    elif name == "Constant":
        kind = ids[operands[0]]
        form = {"f32": "<f", "f16": "<e", "i32": "<i", "i8": "<b"}.get(kind, "<I")
        data = operands[2].to_bytes(4, "little")
        (value,) = struct.unpack(form, data[:struct.calcsize(form)])
        ids[operands[1]] = str(value)
    elif name in ("ConstantTrue", "ConstantFalse"):
        ids[operands[1]] = name.removeprefix("Constant").lower()


def _line(name: str, form: str, operands: tuple[int, ...], ids: dict[int, str]) -> str:
    """One instruction; `form` says what its operands are (`opcodes.OPCODES`)."""
    said, result, kind = [], "", ""
    letters, rest = _repeated(form), list(operands)
    while rest:
        letter, word = next(letters), rest.pop(0)
        if letter == "r":
            result = f"%{word} = "
        elif letter == "t":
            kind = f" {ids.get(word, f'%{word}')}"
        elif letter == "i":
            said.append(ids.get(word, f"%{word}"))
        elif letter == "s":
            data = word.to_bytes(4, "little")
            while 0 not in data:
                data += rest.pop(0).to_bytes(4, "little")
            said.append(data.partition(b"\0")[0].decode())
        else:
            said.append(ENUMERANTS[letter][word] if letter in ENUMERANTS else str(word))
    if name == "ExtInst":
        name, said = EXTENDED[int(said[1])], said[2:]
    return f"{result}{name}{kind} {', '.join(said)}".rstrip()


def _repeated(form: str) -> Iterator[str]:
    """The letters of a form; the last one again and again where a star follows."""
    return chain(form[:-1], repeat(form[-2])) if form.endswith("*") else iter(form)
