"""The assembler of x86-64: what AVX2 and AVX-512 do in different ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smalti.codegen.cpu.assembler import Assembler, Condition
from smalti.codegen.cpu.operands import Address, CodeLine, Label, Register
from smalti.codegen.x86.encoding import encode
from smalti.codegen.x86.instructions import ALL, VECTOR

PREDICATES: dict[Condition, int] = {
    "equal": 0x00, "not_equal": 0x04, "unordered": 0x03, "less": 0x11, "less_equal": 0x12,
    "greater": 0x1E, "greater_equal": 0x1D, "not_greater_equal": 0x19}
"""How `vcmpps` numbers conditions."""


class X86Assembler(Assembler):
    """Builds one function for one feature level of x86-64."""

    rows = ALL

    def repeat(self, counter: Register, start: Label) -> None:
        """Emit counter -= 1, which sets the flag that the jump to `start` looks at."""
        self.op("iadd_immediate", counter, -1)
        self.jump("not_equal", start)

    def clear(self, register: Register) -> None:
        """Make all lanes 0, without memory."""
        self.op("xor", register, register, register)

    # ------------------------------------------------------------------ partial vectors

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

    def widened(self, name: str, address: Address, lanes: int | None = None) -> Register:
        """A new vector from narrow elements in memory; a partial one of AVX2 reads what a whole one
        does."""
        partial = lanes is not None and lanes != self.level.lanes
        if partial and self.level.wide:
            value = self.vector()
            self.op(name, value, address, mask=self.tail_mask(lanes), zeroing=True)
            return value
        value = self.result(name, address)
        return self.result("and", value, self.tail_vector(lanes)) if partial else value

    # ------------------------------------------------------------------ halves and bytes

    def low_words(self, value: Register) -> Register:
        """The lower halves of all lanes, side by side in the lower half of a new vector."""
        if self.level.wide:
            return self.result("low_words", value)
        return self._packed(
            self.result("and", value, self.integers([0xFFFF] * self.level.lanes)))

    def _packed(self, words: Register) -> Register:
        """Lanes of at most 16 bits, of 256 bits of them, side by side."""
        return self.result("permute_quads", self.result("pack_words", words, words), 0b1000)

    def _kept(self, lanes: int) -> Register | None:
        """The mask by which `lanes` lanes are stored; None for all."""
        return None if lanes == self.level.lanes else self.tail_mask(lanes)

    def store_words(self, address: Address, words: Register, lanes: int) -> None:
        """Store the first `lanes` 16-bit elements of the lower half of a vector."""
        if self.level.wide:
            self.op("store_words", address, words, mask=self._kept(lanes))
            return
        if lanes == self.level.lanes:
            self.op("store_half", address, words)
            return
        if lanes > 1:
            mask = self.result("load", self.tail_vector(lanes // 2))
            self.op("store_half_masked", address, mask, words)
        if lanes % 2:
            self.op("store_word", address.plus(2 * (lanes - 1)), words, lanes - 1)

    def store_low_words(self, address: Address, value: Register, lanes: int,
                        clear: bool = False) -> None:
        """Store the lower halves of the first `lanes` lanes, side by side."""
        if self.level.wide:
            self.op("store_low_words", address, value, mask=self._kept(lanes))
        else:
            words = self._packed(value) if clear else self.low_words(value)
            self.store_words(address, words, lanes)

    def store_low_bytes(self, address: Address, value: Register, lanes: int,
                        clear: bool = False) -> None:
        """Store the lowest bytes of the first `lanes` lanes, side by side."""
        if self.level.wide:
            self.op("store_low_bytes", address, value, mask=self._kept(lanes))
            return
        if not clear:  # it is packed with saturation
            value = self.result("and", value, self.integers([0xFF] * self.level.lanes))
        words = self._packed(value)
        packed = self.result("pack_bytes", words, words)
        if lanes == self.level.lanes:
            self.op("store_quad", address, packed)
            return
        for lane in range(lanes):
            self.op("store_byte", address.plus(lane), packed, lane)

    def order_of_pairs(self) -> Register:
        """The order of what two vectors are converted to at once, so that both halves of a lane
        come together."""
        lanes = self.level.lanes
        order = [lane + lanes * i for lane in range(lanes) for i in (0, 1)]
        return self.result("load", self.pooled(np.asarray(order, np.uint16).tobytes()))

    def pair(self, order: Register | None, low: Register, high: Register) -> Register:
        """The bf16 of the lanes of two vectors, those of one lane side by side."""
        assert order is not None, "order_of_pairs gives it"
        return self.result("permute_halves", order, self.result("to_bf16_two", high, low))

    # ------------------------------------------------------------------ across lanes, by lanes

    def order_of_lanes(self, order: Sequence[int]) -> Register:
        """The numbers of the lanes, as `vpermps` takes them."""
        return self.result("load", self.integers(order))

    def fused(self, factor: Register, other: Register, addend: Register | Address) -> Register:
        """factor * other + addend in one rounding, in the register of the factor."""
        self.op("fma_into_factor", factor, other, addend)
        return factor

    def where_greater(self, a: Register, b: Register | Address, yes: Register,
                      no: Register) -> Register:
        """A new vector: `yes` in the lanes where the integers a > b, `no` elsewhere."""
        if not self.level.wide:
            return self.result("blend", no, yes, self.result("greater_int", a, b))
        mask, result = self._new("k"), self.result("copy", no)
        self.op("greater_int_mask", mask, a, b)
        self.op("copy", result, yes, mask=mask)
        return result

    def where(self, condition: Condition, a: Register, b: Register, yes: Register,
              no: Register) -> Register:
        """A new vector: `yes` in the lanes where a and b, as f32, are as the condition says, `no`
        elsewhere."""
        predicate = PREDICATES[condition]
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
                self.op("greater_mask", mask, a, b, PREDICATES["greater"])
                self.op("mask_to", lanes, mask)
            else:
                self.op("signs", lanes, self.result("compare_lanes", a, b, PREDICATES["greater"]))
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
