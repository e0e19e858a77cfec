"""What functions are written in before registers are allocated: lines of virtual registers."""

from __future__ import annotations

from typing import NamedTuple

from smalti.codegen.cpu.instructions import InstructionRow
from smalti.dataclass import dataclass


class Register(NamedTuple):
    """A virtual register: `kind` is "g" (64-bit), "v" (vector) or "k" (mask)."""

    kind: str
    number: int

    def __repr__(self) -> str:
        return f"{self.kind}{self.number}"


class Address(NamedTuple):
    """An operand in memory: [base + index * scale + offset].

    `spread` repeats one f32 to all lanes (AVX-512); `pool` says that `offset` counts from the
    constants of the function.
    """

    base: Register | None
    offset: int = 0
    index: Register | None = None  # type: ignore[assignment]  # nobody looks a field up by value
    scale: int = 1
    spread: bool = False
    pool: bool = False

    def plus(self, offset: int) -> Address:
        """The address `offset` bytes further."""
        return Address(self.base, self.offset + offset, self.index, self.scale, self.spread,
                       self.pool)

    @property
    def registers(self) -> tuple[Register, ...]:
        """The registers the address is made of."""
        return tuple(r for r in (self.base, self.index) if r is not None)


class Label(NamedTuple):
    """A place in the code."""

    number: int


Operand = Register | Address | int


@dataclass(slots=True)
class CodeLine:
    """One instruction, jump or label; `mask` predicates it, `zeroing` clears the other lanes."""

    name: str
    row: InstructionRow | None = None
    operands: tuple[Operand, ...] = ()
    mask: Register | None = None
    zeroing: bool = False
    target: Label | None = None
