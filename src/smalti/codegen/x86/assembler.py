"""The assembler of x86-64: what AVX2 and AVX-512 do in different ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.operands import Address, CodeLine, Register
from smalti.codegen.x86.encoding import encode
from smalti.codegen.x86.instructions import ALL, VECTOR

GREATER = 0x1E
"""The predicate of a comparison of f32: greater than, false where one is NaN."""


class X86Assembler(Assembler):
    """Builds one function for one feature level of x86-64."""

    rows = ALL

    def tail_mask(self, lanes: int) -> Register:
        """A mask register that selects the first `lanes` lanes (512 bits only)."""
        if lanes not in self._tails:
            mask = self._new("k")
            with self.once():
                self.op("mask_from", mask, self.immediate((1 << lanes) - 1))
            self._tails[lanes] = mask
        return self._tails[lanes]

    def load_into(self, register: Register, address: Address, lanes: int | None = None) -> None:
        """Load a vector, or its first `lanes` lanes with zeros behind them."""
        if lanes is None or lanes == self.level.lanes:
            self.op("load", register, address)
        elif self.level.wide:
            self.op("load", register, address, mask=self.tail_mask(lanes), zeroing=True)
        else:
            mask = self.result("load", self.tail_vector(lanes))
            self.op("load_masked", register, mask, address)

    def store(self, address: Address, register: Register, lanes: int | None = None) -> None:
        """Store a vector, or its first `lanes` lanes."""
        if lanes is None or lanes == self.level.lanes:
            self.op("store", address, register)
        elif self.level.wide:
            self.op("store", address, register, mask=self.tail_mask(lanes))
        else:
            mask = self.result("load", self.tail_vector(lanes))
            self.op("store_masked", address, mask, register)

    def gather(self, base: Register, index: Register, lanes: int | None = None) -> Register:
        """A new vector of f32 at base + index (bytes, one 32-bit integer a lane)."""
        register = self.zero()
        address = Address(base, 0, index, 1)
        lanes = lanes or self.level.lanes
        if self.level.wide:
            mask = self._new("k")
            self.op("mask_from", mask, self.immediate((1 << lanes) - 1))
            self.lines.append(CodeLine("gather", VECTOR["gather"], (register, address), mask))
        else:
            mask = self.result("load", self.tail_vector(lanes))
            self.op("gather", register, address, mask)
        return register

    def where_greater(self, a: Register, b: Register | Address, yes: Register,
                      no: Register) -> Register:
        """A new vector: `yes` in the lanes where the integers a > b, `no` elsewhere."""
        if not self.level.wide:
            return self.result("blend", no, yes, self.result("greater_int", a, b))
        mask, result = self._new("k"), self.result("copy", no)
        self.op("greater_int_mask", mask, a, b)
        self.op("copy", result, yes, mask=mask)
        return result

    def where(self, predicate: int, a: Register, b: Register, yes: Register,
              no: Register) -> Register:
        """A new vector: `yes` in the lanes where a and b, as f32, are as the predicate of `vcmpps`
        says, `no` elsewhere."""
        if not self.level.wide:
            return self.result("blend", no, yes, self.result("compare_lanes", a, b, predicate))
        mask, result = self._new("k"), self.result("copy", no)
        self.op("greater_mask", mask, a, b, predicate)
        self.op("copy", result, yes, mask=mask)
        return result

    def any_greater(self, pairs: Sequence[tuple[Register, Register]]) -> Register:
        """A new integer register, not 0 when a > b in any lane of any pair of f32 vectors."""
        found = self.immediate(0)
        for a, b in pairs:
            lanes = self.general()
            if self.level.wide:
                mask = self._new("k")
                self.op("greater_mask", mask, a, b, GREATER)
                self.op("mask_to", lanes, mask)
            else:
                self.op("signs", lanes, self.result("compare_lanes", a, b, GREATER))
            self.op("bit_or", found, lanes)
        return found

    def over_lanes(self, register: Register,
                   combine: Callable[[Register, Register], Register]) -> Register:
        """A new vector with all lanes combined in every lane."""
        if self.level.wide:
            for control in (0x4E, 0xB1):
                register = combine(register,
                                   self.result("swap_halves", register, register, control))
        else:
            register = combine(register, self.result("swap_halves", register, register, 0x01))
        for control in (0x4E, 0xB1):
            register = combine(register, self.result("permute", register, control))
        return register

    def encoded(self, lines: Sequence[CodeLine], ip: int, frame_bytes: int) -> bytes:
        """Machine code of lines on physical registers, made by iced-x86."""
        return encode(lines, self.level, ip, frame_bytes)
