"""The assembler of AArch64: each operation of the vocabulary as instructions of NEON.

Addresses that no instruction holds are computed into new registers here, before registers are
allocated, and constants are loaded where an operation reads them from memory: instructions of
AArch64 work on registers only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from smalti.codegen.arm64.encoder import STACK, encode
from smalti.codegen.arm64.forms import FLOATS, form
from smalti.codegen.arm64.instructions import CONDITIONS
from smalti.codegen.cpu.assembler import Assembler, Condition, FeatureLevel
from smalti.codegen.cpu.instructions import VOCABULARY
from smalti.codegen.cpu.operands import Address, CodeLine, Label, Operand, Register
from smalti.errors import VerificationError

GENERAL_REGISTERS = (*(f"x{n}" for n in range(18)), *(f"x{n}" for n in range(19, 30)))
"""What functions may use: x18 belongs to the system, and x30 says where to return."""
LINK = 30
"""The register that holds where a function returns to."""
VECTOR_BYTES = 16
"""Bytes of a vector register of NEON."""
ALIGNMENT = 16
"""The stack pointer is a multiple of so many bytes wherever memory is reached by it (AAPCS64)."""
PAGE_BYTES = 1 << 12
"""Numbers that instructions add have 12 bits, or these and 12 zeros below them."""
NEAR_BYTES = 256
"""Offsets that are not multiples of what is moved have 9 bits, with a sign."""
BYTE_BITS, NO_BYTE = 8, 0xFF
"""Bits of a byte; and the number of a byte that no table has, for which `tbx` changes nothing."""
EVERY_BIT, ABOVE = (1 << 32) - 1, 2.0 ** 23
"""All bits of a word; and the number whose f32 has whole numbers below it in its lowest bits."""
WORD_BITS = 16
"""A number comes into a general register by so many bits an instruction."""

SAME = {
    "add": "fadd.4s", "sub": "fsub.4s", "mul": "fmul.4s", "div": "fdiv.4s", "sqrt": "fsqrt.4s",
    "max": "fmax.4s", "min": "fmin.4s", "fma": "fmla.4s", "fma_negative": "fmls.4s",
    "fma_lane": "fmla.4s.lane", "dot_pairs": "bfdot.4s", "dot_pairs_lane": "bfdot.4s.lane",
    "dot_blocks": "bfmmla.4s", "dot_byte_blocks": "usmmla.4s",
    "round": "frintn.4s", "floor": "frintm.4s", "ceil": "frintp.4s", "trunc": "frintz.4s",
    "and": "and.16b", "or": "orr.16b", "xor": "eor.16b",
    "add_int": "add.4s", "mul_int": "mul.4s", "to_int": "fcvtns.4s", "from_int": "scvtf.4s",
    "to_f16": "fcvtn.4h", "to_bf16": "bfcvtn.4h",
    "unpack_low": "zip1.4s", "unpack_high": "zip2.4s",
    "unpack_low_pairs": "zip1.2d", "unpack_high_pairs": "zip2.2d",
}
"""Operations that one instruction does, with the same operands."""
QUADS = {"dot_quads": ("usdot.4s", "sdot.4s"), "dot_quads_lane": ("sudot.4s.lane", "sdot.4s.lane")}
"""Products of bytes: where the first one has no sign (I8MM), and where both have one (DotProd)."""
SHIFTS = {"shift_left_int": "shl.4s", "shift_right_int": "ushr.4s",
          "shift_right_signed_int": "sshr.4s"}
SPREADS = {"broadcast": ("s", "4s"), "spread": ("s", "4s"), "spread_half": ("h", "8h"),
           "spread_byte": ("b", "16b")}
"""What is loaded for each operation that fills a vector with one element, and what it fills."""
WIDENED = {"widen_half": ("h", ("ushll.4s",)), "widen_f16": ("h", ("fcvtl.4s",)),
           "widen_byte": ("b", ("ushll.8h", "ushll.4s")),
           "widen_signed_byte": ("b", ("sshll.8h", "sshll.4s"))}
"""The elements that are widened, and the instructions that do it, one after the other."""
SIZES = {"b": 1, "h": 2, "s": 4, "d": 8, "q": 16, "x": 8, "w": 4}
"""Bytes of a register by the letter of what it is called."""
TWICE = {"b": "h", "h": "s", "s": "d", "d": "q"}
JUMPS = {"equal": "eq", "not_equal": "ne", "less": "lt", "greater_equal": "ge", "below": "lo",
         "above_equal": "hs"}
COMPARISONS: dict[Condition, tuple[str, bool, bool]] = {
    "equal": ("fcmeq.4s", False, False), "not_equal": ("fcmeq.4s", False, True),
    "greater": ("fcmgt.4s", False, False), "greater_equal": ("fcmge.4s", False, False),
    "less": ("fcmgt.4s", True, False), "less_equal": ("fcmge.4s", True, False),
    "not_greater_equal": ("fcmge.4s", False, True)}
"""The instruction for a condition, whether its operands change places, and whether it tells the
opposite."""


class Arm64Assembler(Assembler):
    """Builds one function for one feature level of AArch64."""

    rows = VOCABULARY

    def __init__(self, level: FeatureLevel, name: str) -> None:
        super().__init__(level, name)
        self._bases: dict[tuple[Register, Register | None, int], Register] = {}
        self._tables: dict[bytes, Register] = {}

    # ------------------------------------------------------------------ emitting

    def emit(self, name: str, *operands: Operand, target: Label | None = None) -> None:
        """Emit the instruction whose form has this name (see instructions.py)."""
        row = form(name)
        self.lines.append(CodeLine(name, row, operands, target=target))
        for operand, use in zip(operands, row.use):
            if use != "r" and isinstance(operand, Register) and operand.kind == "g" and self._bases:
                self._bases = {known: register for known, register in self._bases.items()
                               if operand not in (*known[:2], register)}

    def made(self, name: str, *operands: Operand) -> Register:
        """Emit an instruction that writes a new vector register, and return that."""
        register = self.vector()
        self.emit(name, register, *operands)
        return register

    def place(self, label: Label) -> None:
        """Put `label` here; what registers held before is not known behind it."""
        super().place(label)
        self._bases = {}

    @contextmanager
    def once(self) -> Iterator[None]:
        """What is emitted inside runs once, at the start of the function."""
        bases, self._bases = self._bases, {}
        with super().once():
            yield
        self._bases = bases

    def jump(self, condition: str, target: Label) -> None:
        """Jump to `target` when `condition` (a name in instructions.JUMPS) holds."""
        if condition == "always":
            self.emit("b", target=target)
        else:
            self.emit("b.condition", CONDITIONS.index(JUMPS[condition]), target=target)

    def repeat(self, counter: Register, start: Label) -> None:
        """Emit counter -= 1, and a jump to `start` unless it is 0 now."""
        self.emit("subs.x.immediate", counter, counter, 1)
        self.jump("not_equal", start)

    def op(self, name: str, *operands: Operand, mask: Register | None = None,
           zeroing: bool = False) -> None:
        """Emit an operation of the vocabulary."""
        if mask is not None or zeroing:
            raise VerificationError(f"{name} has a mask, which AArch64's NEON has not")
        same = QUADS[name][self.level.signed] if name in QUADS else SAME.get(name)
        if same is not None:
            self.emit(same, operands[0], *map(self._held, operands[1:]))
        elif name in OPERATIONS:
            OPERATIONS[name](self, *operands)
        else:
            raise VerificationError(f"{name} is no operation of AArch64's NEON")

    # ------------------------------------------------------------------ memory

    def _held(self, operand: Operand) -> Operand:
        """An operand that is no vector in memory: such is loaded."""
        if not isinstance(operand, Address):
            return operand
        register = self.vector()
        self._access("ldr", "q", register, operand)
        return register

    def _access(self, name: str, size: str, register: Register, address: Address) -> None:
        """Load or store (`ldr`, `str`) a register of a size, "q" to "b" or "x", "w".

        A vector is loaded by `ldur` where that holds the offset: on Neoverse N1, `ldr` takes a
        place among integer instructions besides (its Software Optimization Guide, 3.21); on others
        both are alike. Without an offset it is stored by `st1`, which LLVM's model of the N1 takes
        for two micro-operations, one of them of a unit that multiplies, and `str` for four.
        """
        if address.pool and name == "ldr" and size in "qdsx":
            self.emit(f"ldr.{size}.literal", register, address)
            return
        base, offset, index = self._parts(address, SIZES[size])
        if index is not None:
            self.emit(f"{name}.{size}.register", register, base, index)
        elif name == "str" and size == "q" and offset == 0:
            self.emit("st1.4s", register, base)
        else:
            vector = name == "ldr" and size in "qds"
            near = offset < NEAR_BYTES if vector else offset < 0 or offset % SIZES[size]
            form_of = {"ldr": "ldur", "str": "stur"}[name] if near else name
            self.emit(f"{form_of}.{size}", register, base, offset)

    def _parts(self, address: Address, size: int) -> tuple[Register, int, Register | None]:
        """Base, offset and index of an address, as a load or store of so many bytes takes them."""
        if address.pool:
            base = self.general()
            self.emit("adr", base, address)
            return base, 0, None
        base, offset, index = address.base, address.offset, address.index
        assert base is not None, address
        if index is not None:
            if address.scale == 1 and offset == 0:
                return base, 0, index
            base = self._indexed(base, index, address.scale)
        if self.reachable(offset, size):
            return base, offset, None
        rest = offset % PAGE_BYTES
        if rest % size and rest >= NEAR_BYTES:
            rest = 0
        return self._further(base, offset - rest), rest, None

    def _indexed(self, base: Register, index: Register, scale: int) -> Register:
        """A register that holds base + index * scale, which is kept as long as it is true."""
        if (base, index, scale) not in self._bases:
            register = self.general()
            self.emit("add.x.shifted", register, base, index, scale.bit_length() - 1)
            self._bases[base, index, scale] = register
        return self._bases[base, index, scale]

    def reachable(self, offset: int, size: int) -> bool:
        """Whether a load or store of so many bytes holds an offset from its base."""
        return -NEAR_BYTES <= offset < NEAR_BYTES or (
            offset % size == 0 and 0 <= offset < PAGE_BYTES * size)

    def _further(self, base: Register, amount: int) -> Register:
        """A register that holds base + amount, which is kept as long as it is true."""
        if amount == 0:
            return base
        if (base, None, amount) not in self._bases:
            register = self.general()
            self._add_number(register, base, amount)
            self._bases[base, None, amount] = register
        return self._bases[base, None, amount]

    def _pointer(self, address: Address) -> Register:
        """A register that holds an address."""
        base, offset, index = self._parts(address, 1)
        if index is None:
            return self._further(base, offset)
        total = self.general()
        self.emit("add.x", total, base, index)
        return total

    def _add_number(self, result: Register, source: Register, amount: int) -> None:
        """result = source + amount, for any amount of 64 bits."""
        name, size = ("add", amount) if amount >= 0 else ("sub", -amount)
        if size >= PAGE_BYTES ** 2:
            self.emit("add.x", result, source, self.immediate(amount))
            return
        if size >= PAGE_BYTES:
            self.emit(f"{name}.x.pages", result, source, size // PAGE_BYTES)
            source = result
        if size % PAGE_BYTES or not size:
            self.emit(f"{name}.x.immediate", result, source, size % PAGE_BYTES)

    def _load_lane(self, element: str, lane: int, register: Register, address: Address) -> None:
        self.emit(f"ld1.{element}.lane", register, lane, self._pointer(address))

    def _store_lane(self, element: str, lane: int, register: Register, address: Address) -> None:
        if lane == 0:
            self._access("str", element, register, address)
        else:
            self.emit(f"st1.{element}.lane", register, lane, self._pointer(address))

    def _load_elements(self, element: str, register: Register, address: Address,
                       count: int) -> None:
        """Load 1 to 4 elements of a kind, with zeros behind them; nothing else is read."""
        two = TWICE[element]
        if count == 4:
            self._access("ldr", TWICE[two], register, address)
        else:
            self._access("ldr", element if count == 1 else two, register, address)
            if count == 3:
                self._load_lane(element, 2, register, address.plus(2 * SIZES[element]))

    def _store_elements(self, element: str, register: Register, address: Address,
                        count: int) -> None:
        """Store the first 1 to 4 elements of a kind."""
        two = TWICE[element]
        if count == 4:
            self._access("str", TWICE[two], register, address)
        else:
            self._access("str", element if count == 1 else two, register, address)
            if count == 3:
                self._store_lane(element, 2, register, address.plus(2 * SIZES[element]))

    # ------------------------------------------------------------------ integers

    def _set(self, register: Register, value: int) -> None:
        """register = value, 16 bits an instruction; those that are all ones or zeros need none."""
        words = [value >> at & 0xFFFF for at in range(0, 64, WORD_BITS)]
        ones = words.count(0xFFFF) > words.count(0)
        filled = 0xFFFF if ones else 0
        others = [(i, word) for i, word in enumerate(words) if word != filled] or [(0, filled)]
        for k, (i, word) in enumerate(others):
            if k:
                self.emit("movk.x", register, word, i * WORD_BITS)
            elif ones:
                self.emit("movn.x", register, word ^ 0xFFFF, i * WORD_BITS)
            else:
                self.emit("movz.x", register, word, i * WORD_BITS)

    def _whole(self, operand: Operand) -> Operand:
        """An operand in a general register: what is in memory is loaded."""
        if not isinstance(operand, Address):
            return operand
        register = self.general()
        self._access("ldr", "x", register, operand)
        return register

    def _mov(self, register: Register, source: Register | Address) -> None:
        if isinstance(source, Address):
            self._access("ldr", "x", register, source)
        else:
            self.emit("mov.x", register, source)

    def _mov_signed(self, register: Register, source: Register | Address) -> None:
        if isinstance(source, Register):
            self.emit("sxtw", register, source)
            return
        base, offset, index = self._parts(source, SIZES["w"])
        if index is not None:
            self.emit("ldrsw.x.register", register, base, index)
        else:
            near = offset < 0 or offset % SIZES["w"]
            self.emit("ldursw.x" if near else "ldrsw.x", register, base, offset)

    def _multiply_number(self, register: Register, source: Register, number: int) -> None:
        if number > 0 and number & number - 1 == 0:
            self.emit("lsl.x.immediate", register, source, number.bit_length() - 1)
        else:
            self.emit("mul.x", register, source, self.immediate(number))

    def _compare_number(self, register: Register, number: int) -> None:
        if 0 <= number < PAGE_BYTES:
            self.emit("cmp.x.immediate", register, number)
        elif -PAGE_BYTES < number < 0:
            self.emit("cmn.x.immediate", register, -number)
        else:
            self.emit("cmp.x", register, self.immediate(number))

    def _prefetch(self, level: int, address: Address) -> None:
        """Ask for a cache line, to be kept in the cache of a level."""
        base, offset, index = self._parts(address, SIZES["x"])
        hint = 2 * (level - 1)
        if index is not None:
            self.emit("prfm.register", hint, base, index)
        else:
            self.emit("prfum" if offset < 0 or offset % SIZES["x"] else "prfm", hint, base, offset)

    # ------------------------------------------------------------------ vectors

    def _copy(self, register: Register, source: Register | Address) -> None:
        if isinstance(source, Address):
            self._access("ldr", "q", register, source)
        else:
            self.emit("orr.16b", register, source, source)

    def _and_not(self, register: Register, out: Operand, of: Operand) -> None:
        self.emit("bic.16b", register, self._held(of), self._held(out))

    def _shift(self, name: str, register: Register, source: Operand, amount: int) -> None:
        held = self._held(source)
        if amount:
            self.emit(SHIFTS[name], register, held, amount)
        else:
            self.emit("orr.16b", register, held, held)

    def _spread(self, name: str, register: Register, source: Register | Address) -> None:
        element, filled = SPREADS[name]
        if isinstance(source, Address) and not source.pool and source.offset == 0 \
                and source.index is None:
            assert source.base is not None, source
            self.emit(f"ld1r.{filled}", register, source.base)
            return
        if isinstance(source, Address):
            one = self.vector()
            self._access("ldr", element, one, source)
            source = one
        self.emit(f"dup.{filled}.lane", register, source, 0)

    def _widen(self, name: str, register: Register, source: Register | Address,
               lanes: int = 4) -> None:
        element, instructions = WIDENED[name]
        if isinstance(source, Address):
            narrow = self.vector()
            self._load_elements(element, narrow, source, lanes)
            source = narrow
        for instruction in instructions:
            result = register if instruction == instructions[-1] else self.vector()
            shift = (0,) if instruction[1:].startswith("shll") else ()
            self.emit(instruction, result, source, *shift)
            source = result

    def clear(self, register: Register) -> None:
        """Make all lanes 0, without memory."""
        self.emit("movi.4s", register, 0, 0)

    def zero(self) -> Register:
        """A new vector register of zeros."""
        register = self.vector()
        self.clear(register)
        return register

    def load_constant(self, value: float) -> Register:
        """A new vector register with `value` in all lanes."""
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return self.made("fmov.4s.immediate", bits) if bits in FLOATS else \
            self.zero() if bits == 0 else super().load_constant(value)

    # ------------------------------------------------------------------ partial vectors

    def tail_mask(self, lanes: int) -> Register:
        """There are no mask registers: raises VerificationError."""
        raise VerificationError("AArch64's NEON has no mask registers")

    def load_into(self, register: Register, address: Address, lanes: int | None = None) -> None:
        """Load a vector, or its first `lanes` lanes with zeros behind them; nothing else is
        read."""
        self._load_elements("s", register, address, lanes or self.level.lanes)

    def store(self, address: Address, register: Register, lanes: int | None = None) -> None:
        """Store a vector, or its first `lanes` lanes."""
        self._store_elements("s", register, address, lanes or self.level.lanes)

    def gather(self, base: Register, index: Register, lanes: int | None = None) -> Register:
        """A new vector of f32 at base + index (bytes, one 32-bit integer a lane)."""
        register = self.vector()
        for lane in range(lanes or self.level.lanes):
            place = self.general()
            self.emit("umov.s", place, index, lane)
            if lane == 0:
                self.emit("ldr.s.signed", register, base, place)
            else:
                at = self.general()
                self.emit("add.x.signed", at, base, place, 0)
                self.emit("ld1.s.lane", register, lane, at)
        return register

    def widened(self, name: str, address: Address, lanes: int | None = None) -> Register:
        """A new vector from narrow elements in memory; of a partial one nothing else is read."""
        register = self.vector()
        self._widen(name, register, address, lanes or self.level.lanes)
        return register

    # ------------------------------------------------------------------ halves and bytes

    def low_words(self, value: Register) -> Register:
        """The lower halves of all lanes, side by side in the lower half of a new vector."""
        return self.made("xtn.4h", value)

    def store_words(self, address: Address, words: Register, lanes: int) -> None:
        """Store the first `lanes` 16-bit elements of the lower half of a vector."""
        self._store_elements("h", words, address, lanes)

    def store_low_words(self, address: Address, value: Register, lanes: int,
                        clear: bool = False) -> None:
        """Store the lower halves of the first `lanes` lanes, side by side."""
        self.store_words(address, self.low_words(value), lanes)

    def store_low_bytes(self, address: Address, value: Register, lanes: int,
                        clear: bool = False) -> None:
        """Store the lowest bytes of the first `lanes` lanes, side by side."""
        self._store_elements("b", self.made("xtn.8b", self.low_words(value)), address, lanes)

    def order_of_pairs(self) -> None:
        """`pair` takes nothing."""

    def pair(self, order: Register | None, low: Register, high: Register) -> Register:
        """The bf16 of the lanes of two vectors, those of one lane side by side."""
        return self.made("zip1.8h", self.made("bfcvtn.4h", low), self.made("bfcvtn.4h", high))

    def codes(self, words: Register, bits: int, signed: bool) -> Iterator[Register]:
        """The codes of each word as f32, one of each lane after the other. `scvtf` takes one of the
        two units of an N1 that multiply for two clocks, and shifts the other one: here a byte goes
        into the lowest bits of 2^23, from which that is subtracted again, by `tbx` only where it
        moves, as that takes two of the four units of a V1 for a clock."""
        bias = 1 << bits - 1 if signed else 0
        flips = bias * (EVERY_BIT // ((1 << bits) - 1))
        flip, low, start, back, last, *orders = self._side_by_side(
            struct.pack("<I", flips) * 4, b"\x0f" * VECTOR_BYTES, struct.pack("<f", ABOVE) * 4,
            struct.pack("<f", ABOVE + bias) * 4, struct.pack("<I", 0xFF) * 4,
            *(bytes(4 * lane + byte if n == 0 else NO_BYTE for lane in range(4) for n in range(4))
              for byte in (1, 2)))
        if bias:
            words = self.result("xor", words, flip)
        parts = [words]
        if bits < BYTE_BITS:
            parts = [self.result("and", words, low), self.made("ushr.16b", words, bits)]
        for byte, part in product(range(4), parts):
            value = self.load(start)
            if byte == 0:
                self.emit("bit.16b", value, part, self._held(last))
            elif byte == 3:
                self.emit("usra.4s", value, part, 3 * BYTE_BITS)
            else:
                self.emit("tbx.16b", value, part, self._held(orders[byte - 1]))
            yield self.result("sub", value, back)

    def _side_by_side(self, *vectors: bytes) -> list[Address]:
        """Constants at offsets from a register that is set once. A load from there is one
        micro-operation, and one from an address beside the code two on a Neoverse V2."""
        data = b"".join(vectors)
        if data not in self._tables:
            with self.once():
                self._tables[data] = self.general()
                self.emit("adr", self._tables[data], self.pooled(data))
        return [Address(self._tables[data], VECTOR_BYTES * i) for i in range(len(vectors))]

    # ------------------------------------------------------------------ across lanes, by lanes

    def order_of_lanes(self, order: Sequence[int]) -> Register:
        """The numbers of the bytes of each lane, as `tbl` takes them."""
        data = bytes(4 * lane + byte for lane in order for byte in range(4))
        return self.result("load", self.pooled(data))

    def fused(self, factor: Register, other: Register, addend: Register | Address) -> Register:
        """factor * other + addend in one rounding, in a new register."""
        total = self.result("copy", addend)
        self.emit("fmla.4s", total, factor, other)
        return total

    def multiply_add(self, a: Register, b: Register, c: Register | Address) -> Register:
        """A new vector: a * b + c in one rounding."""
        return self.fused(a, b, c)

    def larger(self, a: Register, b: Register) -> Register:
        """A new vector: the larger of a and b; `fmax` gives NaN where one of them is."""
        return self.result("max", a, b)

    def smaller(self, a: Register, b: Register) -> Register:
        """A new vector: the smaller of a and b; `fmin` gives NaN where one of them is."""
        return self.result("min", a, b)

    def where_greater(self, a: Register, b: Register | Address, yes: Register,
                      no: Register) -> Register:
        """A new vector: `yes` in the lanes where the integers a > b, `no` elsewhere."""
        chosen = self.made("cmgt.4s", a, self._held(b))
        self.emit("bsl.16b", chosen, yes, no)
        return chosen

    def where(self, condition: Condition, a: Register, b: Register, yes: Register,
              no: Register) -> Register:
        """A new vector: `yes` in the lanes where a and b, as f32, are as the condition says, `no`
        elsewhere."""
        if condition == "unordered":
            chosen, opposite = self.made("fcmeq.4s", a, a), True
            if a != b:
                self.emit("and.16b", chosen, chosen, self.made("fcmeq.4s", b, b))
        else:
            name, turned, opposite = COMPARISONS[condition]
            chosen = self.made(name, *((b, a) if turned else (a, b)))
        self.emit("bsl.16b", chosen, *((no, yes) if opposite else (yes, no)))
        return chosen

    def any_greater(self, pairs: Sequence[tuple[Register, Register]]) -> Register:
        """A new integer register, not 0 when a > b in any lane of any pair of f32 vectors."""
        found = None
        for a, b in pairs:
            lanes = self.made("fcmgt.4s", a, b)
            found = lanes if found is None else self.made("orr.16b", found, lanes)
        result = self.general()
        if found is None:
            self.set(result, 0)
        else:
            self.emit("fmov.w.s", result, self.made("umaxv.4s", found))
        return result

    def over_lanes(self, register: Register,
                   combine: Callable[[Register, Register], Register]) -> Register:
        """A new vector with all lanes combined in every lane."""
        for distance in (VECTOR_BYTES // 2, VECTOR_BYTES // 4):
            register = combine(register, self.made("ext.16b", register, register, distance))
        return register

    # ------------------------------------------------------------------ finishing

    def encoded(self, lines: Sequence[CodeLine], ip: int, frame_bytes: int) -> bytes:
        """Machine code of lines on physical registers, in a stack frame of so many bytes."""
        size = frame_bytes + -frame_bytes % ALIGNMENT
        out = _moved("sub", size)
        for line in lines:
            if line.name == "return":
                out.extend(_moved("add", size))
            out.append(CodeLine(line.name, line.row, tuple(map(_physical, line.operands)),
                                target=line.target))
        return encode(out, ip)


HARDWARE = {place: Register("g", int(name[1:])) for place, name in enumerate(GENERAL_REGISTERS)}
"""The general register of each place among those that functions may use."""


def _physical(operand: Operand) -> Operand:
    """An operand with the number of its register, which for the others is their place."""
    if type(operand) is Register and operand.kind == "g":
        return HARDWARE.get(operand.number, operand)
    return operand


def _moved(name: str, size: int) -> list[CodeLine]:
    """Lines that move the stack pointer by a number of bytes."""
    stack = Register("g", STACK)
    steps = ((f"{name}.x.pages", size // PAGE_BYTES), (f"{name}.x.immediate", size % PAGE_BYTES))
    return [CodeLine("frame", form(each), (stack, stack, amount)) for each, amount in steps
            if amount]


def reload(register: Register, offset: int) -> CodeLine:
    """The line that loads a register from its place in the stack frame."""
    return _framed("ldr", register, offset)


def spill(register: Register, offset: int) -> CodeLine:
    """The line that stores a register to its place in the stack frame."""
    return _framed("str", register, offset)


def _framed(name: str, register: Register, offset: int) -> CodeLine:
    return CodeLine(name, form(f"{name}.{'q' if register.kind == 'v' else 'x'}"),
                    (register, Register("g", STACK), offset))


def _two(name: str) -> Callable[[Arm64Assembler, Register, Operand], None]:
    """An operation on a general register and another one, or what is in memory."""
    return lambda asm, a, b: asm.emit(name, a, a, asm._whole(b))


def _named(method: Callable[..., None], name: str) -> Callable[..., None]:
    """A method for several operations, which takes the name of one of them before its operands."""
    return lambda asm, *operands: method(asm, name, *operands)


OPERATIONS: dict[str, Callable[..., None]] = {
    "mov": Arm64Assembler._mov,
    "mov_immediate": Arm64Assembler._set,
    "mov_store": lambda asm, at, value: asm._access("str", "x", value, at),
    "mov_store32": lambda asm, at, value: asm._access("str", "w", value, at),
    "mov_signed32": Arm64Assembler._mov_signed,
    "iadd": _two("add.x"), "isub": _two("sub.x"), "imul": _two("mul.x"),
    "iadd_immediate": lambda asm, a, number: asm._add_number(a, a, number),
    "imul_immediate": Arm64Assembler._multiply_number,
    "shift_right": lambda asm, a, amount: asm.emit("lsr.x.immediate", a, a, amount),
    "compare": lambda asm, a, b: asm.emit("cmp.x", a, asm._whole(b)),
    "compare_immediate": Arm64Assembler._compare_number,
    "prefetch": lambda asm, at: asm._prefetch(1, at),
    "prefetch_second": lambda asm, at: asm._prefetch(2, at),
    "return": lambda asm: asm.lines.append(
        CodeLine("return", form("ret"), (LINK,))),
    "load": Arm64Assembler._copy,
    "store": lambda asm, at, value: asm._access("str", "q", value, at),
    "copy": Arm64Assembler._copy,
    "store_low": lambda asm, at, value: asm._access("str", "s", value, at),
    "store_word": lambda asm, at, value, lane: asm._store_lane("h", lane, value, at),
    "store_byte": lambda asm, at, value, lane: asm._store_lane("b", lane, value, at),
    "permute_lanes": lambda asm, a, order, of: asm.emit("tbl.16b", a, asm._held(of), order),
    "and_not": Arm64Assembler._and_not,
    **{name: _named(Arm64Assembler._shift, name) for name in SHIFTS},
    **{name: _named(Arm64Assembler._spread, name) for name in SPREADS},
    **{name: _named(Arm64Assembler._widen, name) for name in WIDENED},
}
"""Operations that take more than one instruction, or operands in another order."""
