"""Instructions on virtual registers, gathered into a function and encoded as machine code.

    asm = level("avx512").assembler("scale")
    source, count = asm.argument(), asm.argument()
    with asm.loop(count): ...
    code = asm.finish()                     # position-independent bytes; entry at `code.entry`

Functions made here call nothing, keep no register for their caller but the stack pointer, and take
up to four 64-bit arguments in the registers that the architecture names, on every operating system:
only its driver speaks the platform's own calling convention.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

import numpy as np

from smalti.codegen.cpu.instructions import InstructionRow
from smalti.codegen.cpu.operands import Address, CodeLine, Label, Operand, Register
from smalti.codegen.cpu.registers import RegisterFile, allocate
from smalti.dataclass import dataclass
from smalti.errors import VerificationError
from smalti.graph.quantised import WORD_BITS

Condition = Literal["equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
                    "not_greater_equal", "unordered"]
"""How two numbers compare. Where one is NaN, those with a `not` and `unordered` hold, no others."""


@dataclass(frozen=True)
class FeatureLevel:
    """What CPUs of a kind have in common, as far as code is made for it.

    `lanes` are f32 of a vector register, `needs` what the CPU must have, `maker` the class of its
    assemblers. `pairs` says that it converts to bf16 and multiplies pairs of bf16 in one
    instruction, `wide` that there are mask registers, by which any instruction leaves lanes out,
    `by_lane` that products take a factor from one lane of a vector, and that only loads and stores
    have addresses, `blocks` that an instruction multiplies two rows by two columns of four bf16, or
    of eight bytes. `integers` says how it multiplies integers of 8 bits: "quads" of them, four
    products in an instruction, or "words", two products of 16 bits; "" means not at all. Of two
    bytes that are multiplied the first one has no sign; with `signed` both have theirs.
    """

    name: str
    lanes: int
    registers: RegisterFile
    needs: frozenset[str]
    maker: Callable[[FeatureLevel, str], Assembler]
    pairs: bool = False
    wide: bool = False
    by_lane: bool = False
    integers: str = ""
    blocks: bool = False
    signed: bool = False

    @property
    def quads(self) -> bool:
        """Whether an instruction adds four products of bytes."""
        return self.integers == "quads"

    @property
    def words(self) -> bool:
        """Whether integers of 16 bits are multiplied: factors that no byte holds."""
        return bool(self.integers) and not self.by_lane

    @property
    def bytes(self) -> int:
        """Bytes of a vector register."""
        return 4 * self.lanes

    @property
    def vectors(self) -> int:
        """How many vector registers there are."""
        return len(self.registers.vectors)

    def assembler(self, name: str) -> Assembler:
        """An assembler of this level, for a function called `name`."""
        return self.maker(self, name)


@dataclass(frozen=True)
class Code:
    """Encoded function: `bytes` hold constants, then instructions from `entry` on."""

    name: str
    bytes: bytes
    entry: int
    instructions: int


class Assembler(ABC):
    """Builds one function for one feature level; each architecture has a class of its own."""

    rows: ClassVar[Mapping[str, InstructionRow]]
    """The instructions of the architecture, by name."""

    def __init__(self, level: FeatureLevel, name: str) -> None:
        self.level, self.name = level, name
        self.lines: list[CodeLine] = []
        self.prologue: list[CodeLine] = []
        self.loops: list[tuple[Label, Label]] = []
        self.arguments: list[Register] = []
        self.pool = bytearray()
        self._pooled: dict[bytes, int] = {}
        self._tails: dict[int, Register] = {}
        self._counts = {"g": 0, "v": 0, "k": 0, "label": 0}
        self.fixed: dict[Register, str] = {}

    # ------------------------------------------------------------------ registers and labels

    def _new(self, kind: str) -> Register:
        self._counts[kind] += 1
        return Register(kind, self._counts[kind])

    def general(self) -> Register:
        """A new 64-bit integer register."""
        return self._new("g")

    def vector(self) -> Register:
        """A new vector register."""
        return self._new("v")

    def vectors(self, count: int) -> list[Register]:
        """`count` new vector registers."""
        return [self._new("v") for _ in range(count)]

    def argument(self) -> Register:
        """The next argument of the function; all are asked for before anything is emitted."""
        register = self.general()
        self.fixed[register] = self.level.registers.arguments[len(self.arguments)]
        self.arguments.append(register)
        return register

    def label(self) -> Label:
        """A new label, to be placed later."""
        self._counts["label"] += 1
        return Label(self._counts["label"])

    def place(self, label: Label) -> None:
        """Put `label` here."""
        self.lines.append(CodeLine("label", target=label))

    # ------------------------------------------------------------------ emitting

    def op(self, name: str, *operands: Operand, mask: Register | None = None,
           zeroing: bool = False) -> None:
        """Emit the instruction called `name` (a row of instructions.py)."""
        self.lines.append(CodeLine(name, self.rows[name], operands, mask, zeroing))

    def result(self, name: str, *operands: Operand) -> Register:
        """Emit a vector instruction that writes a new register, and return that."""
        register = self.vector()
        self.op(name, register, *operands)
        return register

    def jump(self, condition: str, target: Label) -> None:
        """Jump to `target` when `condition` (a name in instructions.JUMPS) holds."""
        self.lines.append(CodeLine(f"jump_{condition}", target=target))

    @contextmanager
    def once(self) -> Iterator[None]:
        """What is emitted inside runs once, at the start of the function."""
        body, self.lines = self.lines, self.prologue
        try:
            yield
        finally:
            self.lines = body

    @contextmanager
    def loop(self, count: int | Register) -> Iterator[None]:
        """Repeat the body `count` times (at least once when given as a register)."""
        if isinstance(count, int) and count == 1:
            yield
            return
        counter, start, end = self.general(), self.label(), self.label()
        if isinstance(count, int):
            self.set(counter, count)
        else:
            self.op("mov", counter, count)
        self.place(start)
        yield
        self.repeat(counter, start)
        self.place(end)
        self.loops.append((start, end))

    def reachable(self, offset: int, size: int) -> bool:
        """True if an instruction that moves `size` bytes holds `offset` in its address."""
        return True

    @abstractmethod
    def repeat(self, counter: Register, start: Label) -> None:
        """Emit counter -= 1, and a jump to `start` unless it is 0 now."""

    # ------------------------------------------------------------------ integers

    def set(self, register: Register, value: int) -> None:
        """register = value."""
        self.op("mov_immediate", register, value)

    def immediate(self, value: int) -> Register:
        """A new integer register that holds `value`."""
        register = self.general()
        self.set(register, value)
        return register

    def copy(self, register: Register) -> Register:
        """A new integer register with the same value."""
        other = self.general()
        self.op("mov", other, register)
        return other

    def advance(self, register: Register, amount: int) -> None:
        """register += amount, for any 64-bit amount."""
        if amount == 0:
            return
        if -2**31 <= amount < 2**31:
            self.op("iadd_immediate", register, amount)
        else:
            self.op("iadd", register, self.immediate(amount))

    def offset(self, register: Register, index: Register, stride: int) -> Register:
        """A new register: register + index * stride."""
        other = self.general()
        if stride == 0:
            return self.copy(register)
        if -2**31 <= stride < 2**31:
            self.op("imul_immediate", other, index, stride)
        else:
            self.op("mov", other, index)
            self.op("imul", other, self.immediate(stride))
        self.op("iadd", other, register)
        return other

    def divide(self, value: Register, divisor: int) -> tuple[Register, Register]:
        """Quotient and remainder of 0 <= value < 2^31 by a constant from 1 to 2^31 - 1.

        value * ceil(2^k / divisor) >> k is exact when value * divisor <= 2^k (Granlund & Montgomery
        1994, doi:10.1145/178243.178249); with k = 31 + bits of the divisor no product passes 2^63.
        """
        if not 1 <= divisor < 1 << 31:
            raise VerificationError(f"division by {divisor}: 1 to 2^31 - 1 are expected")
        quotient, remainder = self.copy(value), self.copy(value)
        if divisor == 1:
            self.set(remainder, 0)
            return quotient, remainder
        bits = 31 + (divisor - 1).bit_length()
        self.op("imul", quotient, self.immediate(-(-(1 << bits) // divisor)))
        self.op("shift_right", quotient, bits)
        product = self.general()
        self.op("imul_immediate", product, quotient, divisor)
        self.op("isub", remainder, product)
        return quotient, remainder

    # ------------------------------------------------------------------ constants

    def pooled(self, data: bytes) -> Address:
        """The address of `data` among the constants."""
        at = self._pooled.get(data)
        if at is None:
            self.pool.extend(b"\0" * (-len(self.pool) % 64))
            at = self._pooled[data] = len(self.pool)
            self.pool.extend(data)
        return Address(None, at, pool=True)

    def constant(self, value: float) -> Address:
        """The f32 `value` in all lanes, in memory."""
        return self.pooled(struct.pack("<f", value) * self.level.lanes)

    def integers(self, values: Sequence[int]) -> Address:
        """32-bit integers, one a lane, in memory."""
        return self.pooled(np.asarray(values, np.int32).tobytes())

    def load_constant(self, value: float) -> Register:
        """A new vector register with `value` in all lanes."""
        return self.result("load", self.constant(value))

    def zero(self) -> Register:
        """A new vector register of zeros."""
        return self.load_constant(0.0)

    @abstractmethod
    def clear(self, register: Register) -> None:
        """Make all lanes 0, without memory."""

    # ------------------------------------------------------------------ partial vectors

    def tail_vector(self, lanes: int) -> Address:
        """A vector in memory that has all bits set in the first `lanes` lanes, none in others."""
        return self.integers([-1] * lanes + [0] * (self.level.lanes - lanes))

    def load(self, address: Address, lanes: int | None = None) -> Register:
        """A new vector from memory; with `lanes`, only that many, the others zero."""
        register = self.vector()
        self.load_into(register, address, lanes)
        return register

    @abstractmethod
    def load_into(self, register: Register, address: Address, lanes: int | None = None) -> None:
        """Load a vector, or its first `lanes` lanes with zeros behind them."""

    @abstractmethod
    def store(self, address: Address, register: Register, lanes: int | None = None) -> None:
        """Store a vector, or its first `lanes` lanes."""

    @abstractmethod
    def gather(self, base: Register, index: Register, lanes: int | None = None) -> Register:
        """A new vector of f32 at base + index (bytes, one 32-bit integer a lane)."""

    @abstractmethod
    def tail_mask(self, lanes: int) -> Register:
        """A mask register that selects the first `lanes` lanes, where the level is `wide`."""

    @abstractmethod
    def widened(self, name: str, address: Address, lanes: int | None = None) -> Register:
        """A new vector from narrow elements in memory by the instruction `name`, whose name begins
        with "widen"; with `lanes`, only that many, the others zero."""

    # ------------------------------------------------------------------ halves and bytes

    @abstractmethod
    def low_words(self, value: Register) -> Register:
        """The lower halves of all lanes, side by side in the lower half of a new vector."""

    @abstractmethod
    def store_words(self, address: Address, words: Register, lanes: int) -> None:
        """Store the first `lanes` 16-bit elements of the lower half of a vector."""

    @abstractmethod
    def store_low_words(self, address: Address, value: Register, lanes: int,
                        clear: bool = False) -> None:
        """Store the lower halves of the first `lanes` lanes, side by side; `clear` says that the
        upper ones are 0."""

    @abstractmethod
    def store_low_bytes(self, address: Address, value: Register, lanes: int,
                        clear: bool = False) -> None:
        """Store the lowest bytes of the first `lanes` lanes, side by side; `clear` says that the
        others are 0."""

    @abstractmethod
    def order_of_pairs(self) -> Register | None:
        """What `pair` takes, to be made once, where the level has `pairs`."""

    @abstractmethod
    def pair(self, order: Register | None, low: Register, high: Register) -> Register:
        """The bf16 of the lanes of two vectors, those of one lane side by side, where the level has
        `pairs`."""

    def codes(self, words: Register, bits: int, signed: bool) -> Iterator[Register]:
        """The codes of `bits` bits of each word, lowest first, as f32, in new registers; they are
        made when they are asked for."""
        shift = "shift_right_signed_int" if signed else "shift_right_int"
        for above in range(WORD_BITS - bits, -1, -bits):
            value = self.result("shift_left_int", words, above) if above else words
            yield self.result("from_int", self.result(shift, value, WORD_BITS - bits))

    # ------------------------------------------------------------------ across lanes, by lanes

    @abstractmethod
    def order_of_lanes(self, order: Sequence[int]) -> Register:
        """What `permute_lanes` takes to put lane order[i] into lane i."""

    @abstractmethod
    def fused(self, factor: Register, other: Register, addend: Register | Address) -> Register:
        """factor * other + addend in one rounding; `factor` must not be asked for again, the
        register that is given back may be the same."""

    def multiply_add(self, a: Register, b: Register, c: Register | Address) -> Register:
        """A new vector: a * b + c in one rounding."""
        return self.fused(self.result("copy", a), b, c)

    def larger(self, a: Register, b: Register) -> Register:
        """A new vector: the larger of a and b, NaN where one of them is. `max` may give its second
        operand there: asked both ways round, the bits of both answers together are NaN, too."""
        return self.result("or", self.result("max", a, b), self.result("max", b, a))

    def smaller(self, a: Register, b: Register) -> Register:
        """A new vector: the smaller of a and b, NaN where one of them is."""
        return self.result("or", self.result("min", a, b), self.result("min", b, a))

    @abstractmethod
    def where_greater(self, a: Register, b: Register | Address, yes: Register,
                      no: Register) -> Register:
        """A new vector: `yes` in the lanes where the integers a > b, `no` elsewhere."""

    @abstractmethod
    def where(self, condition: Condition, a: Register, b: Register, yes: Register,
              no: Register) -> Register:
        """A new vector: `yes` in the lanes where a and b, as f32, are as the condition says, `no`
        elsewhere."""

    @abstractmethod
    def any_greater(self, pairs: Sequence[tuple[Register, Register]]) -> Register:
        """A new integer register, not 0 when a > b in any lane of any pair of f32 vectors."""

    def sum_of_lanes(self, register: Register) -> Register:
        """A new vector with the sum of all lanes in every lane."""
        return self.over_lanes(register, lambda a, b: self.result("add", a, b))

    @abstractmethod
    def over_lanes(self, register: Register,
                   combine: Callable[[Register, Register], Register]) -> Register:
        """A new vector with all lanes combined in every lane."""

    # ------------------------------------------------------------------ finishing

    def finish(self) -> Code:
        """Allocate registers and encode. Raises VerificationError when the code is malformed."""
        self.op("return")
        lines = [*self.prologue, *self.lines]
        lines, frame_bytes = allocate(lines, self.loops, self.level.registers, self.fixed)
        self.pool.extend(b"\0" * (-len(self.pool) % 64))
        code = self.encoded(lines, len(self.pool), frame_bytes)
        return Code(self.name, bytes(self.pool) + code, len(self.pool), len(lines))

    @abstractmethod
    def encoded(self, lines: Sequence[CodeLine], ip: int, frame_bytes: int) -> bytes:
        """Machine code of lines on physical registers; it will stand `ip` bytes behind the pool of
        constants, and has a stack frame of `frame_bytes`."""
