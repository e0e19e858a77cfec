"""Results straight from registers: the expression of a kernel's last stage, and its store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.functions import evaluate
from smalti.codegen.cpu.nest import AccessStream, scatter
from smalti.codegen.cpu.operands import Address, Register
from smalti.dataclass import dataclass
from smalti.kernel.form import Expr, Load


def load_lanes(asm: Assembler, stream: AccessStream, axis: str, at: int = 0,
               index: Register | None = None, lanes: int | None = None) -> Register:
    """A vector along `axis`: of what lies `at` bytes behind the stream's pointer, `index` counting
    elements along the axis; one element in all lanes where the axis does not move it."""
    step = stream.stride(axis)
    if step == 0:
        return elements.spread(asm, stream.dtype, Address(stream.base, at))
    if step == stream.size:
        return elements.load(asm, stream.dtype, Address(stream.base, at, index, step), lanes)
    base = _moved(asm, stream, step, index)
    asm.advance(base, at)
    steps = asm.integers([step * i for i in range(asm.level.lanes)])
    return elements.gather(asm, stream.dtype, base, asm.result("load", steps), lanes)


def _moved(asm: Assembler, stream: AccessStream, step: int, index: Register | None) -> Register:
    if index is None:
        return asm.copy(stream.base)
    return asm.offset(stream.base, index, step)


@dataclass(frozen=True)
class RegisterResults:
    """What is made of sums in registers, and where it is stored.

    `loads` are the streams of what `value` reads besides the buffer `sums`; `sources` those that
    the sums are made from, by what is read there; they move along. Rows of sums lie along the axis
    `row`, lanes along the axis `lane`.
    """

    asm: Assembler
    value: Expr
    sums: str
    loads: Mapping[Load, AccessStream]
    out: AccessStream
    row: str
    lane: str
    sources: Mapping[Expr, AccessStream] = field(default_factory=dict)

    def own(self, axis: str) -> RegisterResults:
        """A copy with pointers of its own, where `axis` moves them."""
        def copied(stream: AccessStream) -> AccessStream:
            if not stream.stride(axis):
                return stream
            return replace(stream, base=self.asm.copy(stream.base))

        return replace(self, out=copied(self.out),
                       loads={load: copied(s) for load, s in self.loads.items()},
                       sources={expr: copied(s) for expr, s in self.sources.items()})

    def advance(self, axis: str, steps: int = 1) -> None:
        """Move every stream along `axis`."""
        for stream in (*self.loads.values(), *self.sources.values(), self.out):
            self.asm.advance(stream.base, steps * stream.stride(axis))

    @contextmanager
    def walk(self, axis: str, count: int | Register, steps: int = 1) -> Iterator[RegisterResults]:
        """A loop along `axis`; the body gets the streams as they move."""
        if count == 1:
            yield self
            return
        inner = self.own(axis)
        with self.asm.loop(count):
            yield inner
            inner.advance(axis, steps)

    def write(self, sums: Sequence[Sequence[Register]], index: Register | None = None,
              lanes: int | None = None, behind: tuple[str, int] = ("", 0),
              stepping: bool = False) -> None:
        """Results for sums[row][vector]; `lanes` of the last vector where it is not whole.

        `index` is added to every place, in elements along the lanes, and what is `behind`: an axis
        and steps along it. With `stepping` each row of a single vector is written where the streams
        are, which move on to the next one: an address without an offset is the cheapest to store to
        on AArch64.
        """
        asm = self.asm
        for v in range(len(sums[0])):
            here = lanes if v == len(sums[0]) - 1 else None
            fixed: dict[Load, Register] = {}
            for row, registers in enumerate(sums):
                at = 0 if stepping else row
                operand = partial(self._operand, total=registers[v], fixed=fixed, row=at, v=v,
                                  index=index, lanes=here, behind=behind)
                self._store(at, v, evaluate(asm, self.value, operand, {}), index, here, behind)
                if stepping:
                    self.advance(self.row)

    def _place(self, stream: AccessStream, row: int, v: int, behind: tuple[str, int]) -> int:
        """Bytes from a stream's pointer to vector `v` of a row."""
        axis, steps = behind
        return (row * stream.stride(self.row) + steps * stream.stride(axis)
                + v * self.asm.level.lanes * stream.stride(self.lane))

    def _operand(self, load: Load, total: Register, fixed: dict[Load, Register], row: int, v: int,
                 index: Register | None, lanes: int | None, behind: tuple[str, int]) -> Register:
        """What is read at a vector of a row; `fixed` holds what is the same in all rows."""
        if load.buffer == self.sums:
            return total
        if load in fixed:
            return fixed[load]
        stream, asm = self.loads[load], self.asm
        at = self._place(stream, row, v, behind)
        found = load_lanes(asm, stream, self.lane, at, index, lanes)
        if not stream.stride(self.row):
            fixed[load] = found
        return found

    def _store(self, row: int, v: int, value: Register, index: Register | None,
               lanes: int | None, behind: tuple[str, int]) -> None:
        asm, dtype, step = self.asm, self.out.dtype, self.out.stride(self.lane)
        at = self._place(self.out, row, v, behind)
        if step == self.out.size:
            elements.store(asm, dtype, Address(self.out.base, at, index, step), value, lanes)
        elif step == 0:
            elements.store_lowest(asm, dtype, Address(self.out.base, at), value)
        else:
            base = _moved(asm, self.out, step, index)
            scatter(asm, dtype, Address(base, at), step, value, lanes or asm.level.lanes)
