"""Forms of AArch64 instructions, as the table has them: operands to a word, and a word to text.

    fmla = form("fmla.4s.lane")
    word = fmla.word((0, 1, 2, 3))          # fmla v0.4s, v1.4s, v2.s[3]
    fmla.text(fmla.values(word))            # "fmla v0.4s, v1.4s, v2.s[3]"

An operand is a number: that of a register, a value, or the distance to a label in bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache, cached_property

from smalti.codegen.arm64.instructions import CONDITIONS, SETS, TABLES
from smalti.codegen.cpu.instructions import InstructionRow
from smalti.dataclass import dataclass
from smalti.errors import VerificationError

Part = tuple[int, int, int]
"""Some bits of a field: how far they lie up in its value, how far in the word, and how many."""

TOKEN = re.compile(
    r"(?P<use>[=&]?)(?P<kind>[VQDSHBXWPR])(?P<letter>[a-z])(?![a-z0-9])(?P<shape>\.\w+)?"
    r"|\?(?P<opposite>!?)(?P<condition>c)"
    r"|(?P<number>[#@])(?P<sign>\+?)(?P<letters>[a-z]+)(?P<way><<|[*>&~])?(?P<by>\d*)")
"""An operand in the assembly of a line of the table."""
SCALARS = {"Q": "q", "D": "d", "S": "s", "H": "h", "B": "b", "V": "v", "X": "x", "P": "x",
           "W": "w", "R": "w"}
"""How the names of registers of each kind begin."""
NAMES_31 = {"X": "xzr", "W": "wzr", "P": "sp", "R": "wsp"}
"""What general registers are called whose number is 31."""


@dataclass(frozen=True)
class Field:
    """An operand of a form: its bits, the numbers it takes, and how they become bits and text.

    `kind` is "v" for a vector register, "g" for a general one, "@" for a label, "#" for a number.
    """

    kind: str
    use: str
    parts: tuple[Part, ...]
    legal: Container[int]
    to_bits: Callable[[int], int] | None
    from_bits: Callable[[int], int] | None
    text: Callable[[int], str]

    def put(self, value: int) -> int:
        """The bits of `value` in a word. Raises VerificationError when there are none for it."""
        if value not in self.legal:
            raise VerificationError(f"the operand {value} is not one of {self.legal}")
        if self.to_bits is not None:
            value = self.to_bits(value)
        word = 0
        for up, at, bits in self.parts:
            word |= (value >> up & (1 << bits) - 1) << at
        return word

    def get(self, word: int) -> int:
        """The value whose bits are in a word."""
        value = 0
        for up, at, bits in self.parts:
            value |= (word >> at & (1 << bits) - 1) << up
        return value if self.from_bits is None else self.from_bits(value)


@dataclass(frozen=True)
class Form(InstructionRow):
    """A form of an instruction; `feature` is what a CPU needs for it."""

    name: str
    feature: str
    fixed: int
    mask: int
    fields: tuple[Field, ...]
    pieces: tuple[str, ...]

    @cached_property
    def plain(self) -> tuple[int, ...] | None:
        """How far each operand lies up in a word, where all are registers with any number."""
        if all(f.kind in "vg" and f.parts[0][2] == REGISTER_BITS for f in self.fields):
            return tuple(f.parts[0][1] for f in self.fields)
        return None

    def word(self, values: Sequence[int]) -> int:
        """The instruction with these operands. Raises VerificationError for what it cannot say."""
        if len(values) != len(self.fields):
            raise VerificationError(f"{self.name} takes {len(self.fields)} operands, "
                                    f"got {len(values)}")
        word = self.fixed
        if self.plain is not None:
            for value, at in zip(values, self.plain):
                word |= value << at
            return word
        for position, (field, value) in enumerate(zip(self.fields, values)):
            try:
                word |= field.put(value)
            except VerificationError as error:
                raise VerificationError(f"{self.name}, operand {position + 1}: {error}") from error
        return word

    def values(self, word: int) -> tuple[int, ...]:
        """The operands of an instruction of this form."""
        return tuple(field.get(word) for field in self.fields)

    def text(self, values: Sequence[int]) -> str:
        """The instruction in the syntax of assemblers; labels are distances from it."""
        written = [field.text(value) for field, value in zip(self.fields, values)]
        return "".join(a + b for a, b in zip(self.pieces, [*written, ""]))


REGISTER_BITS = 5
"""Bits of the number of a register, where they are not fewer."""


@dataclass(frozen=True)
class Patterns:
    """Numbers whose bits repeat: in each element of 2, 4, 8 to `width` bits the same run of ones,
    rotated. Logical instructions hold these."""

    width: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self._bits(value) is not None

    def __repr__(self) -> str:
        return f"the repeating patterns of {self.width} bits"

    def encoded(self, value: int) -> int:
        """N, immr and imms of a number that repeats so."""
        bits = self._bits(value)
        assert bits is not None, value
        return bits

    def _bits(self, value: int) -> int | None:
        if not 0 < value < (1 << self.width) - 1:
            return None
        size = self.width
        while size > 2:
            half = size // 2
            if value & (1 << half) - 1 != value >> half & (1 << half) - 1:
                break
            size = half
        every = (1 << size) - 1
        element = value & every
        ones = element.bit_count()
        run = (1 << ones) - 1
        for rotation in range(size):
            if (run >> rotation | run << size - rotation) & every == element:
                above = (-2 * size) & 0x3F  # ones above the size, and a zero
                return (size == 64) << 12 | rotation << 6 | above & 0x3F | ones - 1
        return None

    def value(self, bits: int) -> int:
        """The number of N, immr and imms."""
        n, rotation, ones = bits >> 12, bits >> 6 & 0x3F, bits & 0x3F
        size = 1 << ((n << 6 | ~ones & 0x3F).bit_length() - 1)
        rotation, run = rotation % size, (1 << ones % size + 1) - 1
        element = (run >> rotation | run << size - rotation) & (1 << size) - 1
        return sum(element << at for at in range(0, self.width, size))


def float_of(bits: int) -> float:
    """The number of floating point that 8 bits stand for: a sign, 3 of exponent, 4 of fraction."""
    exponent = (bits >> 4 & 7 ^ 4) - 3
    size = (16 + (bits & 15)) / 16 * 2.0 ** exponent
    return -size if bits >> 7 else size


FLOATS = {struct.unpack("<I", struct.pack("<f", float_of(bits)))[0]: bits for bits in range(256)}
"""The 8 bits of each f32 that they can stand for, by its own bits."""


def _number(match: re.Match[str], bits: int) -> tuple[Container[int], Callable[[int], int] | None,
                                                     Callable[[int], int] | None]:
    """The numbers that an operand of so many bits takes, and how they become bits and back."""
    way, by, every = match["way"], int(match["by"] or 1), (1 << bits) - 1
    if way == "<<":
        half = bits // 2
        return range(by), lambda v: (-v % by) << half | by - 1 - v, lambda b: -(b >> half) % by
    if way == ">":
        return range(1, by + 1), lambda v: by - v, lambda b: by - b
    if way == "&":
        patterns = Patterns(by)
        return patterns, patterns.encoded, patterns.value
    if way == "~":
        return FLOATS, FLOATS.__getitem__, lambda b: next(f for f in FLOATS if FLOATS[f] == b)
    if match["sign"] or match["number"] == "@":
        half = 1 << bits - 1
        return (range(-half * by, half * by, by), lambda v: v // by & every,
                lambda b: ((b ^ half) - half) * by)
    if by > 1:
        return range(0, (every + 1) * by, by), lambda v: v // by, lambda b: b * by
    return range(every + 1), None, None


def _field(match: re.Match[str], runs: Mapping[str, tuple[int, int]]) -> Field:
    """The operand that a token of the assembly stands for."""
    letters = match["letter"] or match["condition"] or match["letters"]
    parts, up = [], 0
    for letter in reversed(letters):
        at, bits = runs[letter]
        parts.append((up, at, bits))
        up += bits
    if kind := match["kind"]:
        shape, named, begin = match["shape"] or "", NAMES_31.get(kind), SCALARS[kind]
        use = {"=": "w", "&": "m", "": "r"}[match["use"]]
        return Field("g" if kind in "XWPR" else "v", use, tuple(parts), range(1 << up), None, None,
                     lambda v: named if named and v == 31 else f"{begin}{v}{shape}")
    if match["condition"]:
        flip = (lambda v: v ^ 1) if match["opposite"] else None
        return Field("#", "r", tuple(parts), range(len(CONDITIONS) - (1 if flip else 0)), flip,
                     flip, CONDITIONS.__getitem__)
    legal, to_bits, from_bits = _number(match, up)
    if match["number"] == "@":
        return Field("@", "r", tuple(parts), legal, to_bits, from_bits, lambda v: f".{v:+d}")
    before = "" if match.string[match.start() - 1] == "[" else "#"
    texts: dict[str | None, Callable[[int], str]] = {
        "&": lambda v: f"#{v:#x}", "~": lambda v: f"#{float_of(FLOATS[v])}"}
    return Field("#", "r", tuple(parts), legal, to_bits, from_bits,
                 texts.get(match["way"], lambda v: f"{before}{v}"))


def _form(name: str, assembly: str, bits: str, feature: str) -> Form:
    """A line of the table, with nothing left to put in its place."""
    if len(bits) != 32:
        raise VerificationError(f"{name} has {len(bits)} bits, not 32: {bits}")
    runs = {match[0][0]: (32 - match.end(), len(match[0]))
            for match in re.finditer(r"([a-z])\1*", bits)}
    start = assembly.find(" ") if not assembly.startswith("b.") else 0
    fields, pieces, end = [], [], 0
    for match in TOKEN.finditer(assembly, max(start, 0)) if start >= 0 else ():
        fields.append(_field(match, runs))
        pieces.append(assembly[end:match.start()])
        end = match.end()
    fixed = int("".join(b if b in "01" else "0" for b in bits), 2)
    mask = int("".join("1" if b in "01" else "0" for b in bits), 2)
    return Form("".join(f.use for f in fields), name, feature, fixed, mask, tuple(fields),
                (*pieces, assembly[end:]))


def _members(set_name: str) -> Iterator[dict[str, str]]:
    for member in SETS[set_name].split(","):
        yield dict(pair.split("=", 1) for pair in member.split())


@cache
def _lines() -> dict[str, tuple[str, str, str, Mapping[str, str]]]:
    """For each name of a form: assembly, bits, feature, and what a member of its set puts in."""
    found: dict[str, tuple[str, str, str, Mapping[str, str]]] = {}
    for feature, table in TABLES.items():
        for line in table.splitlines():
            if not line or line.startswith("#"):
                continue
            name, assembly, bits, *sets = line.split(" : ")
            for member in _members(sets[0]) if sets else ({},):
                found[_filled(name, member)] = assembly, bits, feature, member
    return found


def _filled(text: str, member: Mapping[str, str]) -> str:
    return re.sub(r"<(\w)>", lambda match: member[match[1]], text)


def names() -> tuple[str, ...]:
    """The names of all forms."""
    return tuple(_lines())


@cache
def form(name: str) -> Form:
    """The form called `name`. Raises VerificationError when there is none."""
    if name not in _lines():
        raise VerificationError(f"no AArch64 instruction is named {name!r}")
    assembly, bits, feature, member = _lines()[name]
    bits = re.sub(r"[A-Z]", lambda match: member[match[0]], bits)
    return _form(name, _filled(assembly, member), bits, feature)


@cache
def _by_mask() -> list[tuple[int, dict[int, list[Form]]]]:
    """Forms by their fixed bits, for each set of bits that are fixed in some; most bits first."""
    found: dict[int, dict[int, list[Form]]] = {}
    for each in map(form, names()):
        found.setdefault(each.mask, {}).setdefault(each.fixed, []).append(each)
    return sorted(found.items(), key=lambda item: -item[0].bit_count())


def read(word: int) -> tuple[Form, tuple[int, ...]] | None:
    """The form of an instruction and its operands; None for one that no form gives."""
    for mask, by_bits in _by_mask():
        for found in by_bits.get(word & mask, ()):
            values = found.values(word)
            if all(v in field.legal for v, field in zip(values, found.fields)) \
                    and found.word(values) == word:
                return found, values
    return None
