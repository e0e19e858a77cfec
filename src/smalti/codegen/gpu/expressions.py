"""Expressions of a kernel as values of an invocation: reads at its place, functions of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import reduce

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import BOOL, U32, Binding, Expr, Number, number, spread, vector
from smalti.codegen.gpu.functions import FUNCTIONS, multiply_add
from smalti.codegen.gpu.lowered import bind
from smalti.codegen.gpu.types import VectorType
from smalti.dataclass import dataclass
from smalti.kernel import form
from smalti.kernel.form import Const, Index, Kernel
from smalti.schedule.group import GroupLimits
from smalti.schedule.merge import Access, access

VECTORS = ("f32", "f16", "bf16", "i32")
"""Stored dtypes of which several are read at once."""
WRAPPED = {"u8": 0xFF, "bool": 1}


def together(found: Access, lane: str, lanes: int) -> bool:
    """Whether `lanes` elements along the axis `lane` lie side by side, at a multiple of `lanes`."""
    moved = [s for name, s in found.strides if name != lane]
    moved += [s for s, _ in (*found.divided, *found.indirect)]
    return found.stride(lane) == 1 and not any(s % lanes for s in (found.offset, *moved)) \
        and not wanders(found, lane)


def wanders(found: Access, lane: str) -> bool:
    """Whether the axis moves an access by other than equal steps."""
    return any(index.coefficient(lane) for _, index in found.divided) or any(
        inner.stride(lane) or wanders(inner, lane) for _, inner in found.indirect)


def bind_all(b: Builder, kernel: Kernel, accesses: Iterable[Access], lane: str = "",
             lanes: int = 1) -> dict[str, Binding]:
    """Bindings of the buffers that are accessed, in the order of the kernel's."""
    return bind_for(b, kernel, [(found, lane, lanes) for found in accesses])


def bind_for(b: Builder, kernel: Kernel,
             uses: Iterable[tuple[Access, str, int]]) -> dict[str, Binding]:
    """Bindings of the buffers that are accessed, each along a lane axis with so many lanes."""
    found: dict[str, int] = {}
    for outer, lane, lanes in uses:
        for a in (outer, *(inner for _, inner in outer.indirect)):
            wide = _vectors(kernel, kernel.buffer(a.buffer)) and together(a, lane, lanes)
            found[a.buffer] = max(found.get(a.buffer, 1), lanes if wide else 1)
    return {buffer.name: bind(b, kernel, buffer.name, found[buffer.name])
            for buffer in kernel.buffers if buffer.name in found}


def _vectors(kernel: Kernel, buffer: form.Buffer) -> bool:
    return buffer.role != "parameter" or buffer.dtype in VECTORS


def unravel(b: Builder, index: Expr, axes: Sequence[tuple[str, int]]) -> dict[str, Expr]:
    """The place along each axis of point number `index`, the last axis running fastest."""
    at: dict[str, Expr] = {}
    for name, extent in reversed(axes[1:]):
        at[name], index = b.let(index % extent), b.let(index // extent)
    return {axes[0][0]: index, **at} if axes else at


def work_groups(b: Builder, count: int, limits: GroupLimits) -> tuple[Expr, tuple[int, int, int]]:
    """The number of a work-group of `count`, and the grid they make; where one axis is too short,
    some work-groups have larger numbers."""
    rows = -(-count // limits.grid[0])
    columns = -(-count // rows)
    if rows == 1:
        return b.group[0], (columns, 1, 1)
    return b.let(b.group[1] * columns + b.group[0]), (columns, rows, 1)


@dataclass
class Values:
    """What expressions of a kernel are at one place, or at `lanes` places along the axis `lane`.

    `at` is where each axis stands, of `lane` the first place; `flat` an index that equals the sum
    of these strides. `given` are values of local buffers, `known` those of expressions, `places`
    the elements of accesses. Nothing is read where `where` is false.
    """

    b: Builder
    kernel: Kernel
    bindings: Mapping[str, Binding]
    at: Mapping[str, Expr]
    lane: str = ""
    lanes: int = 1
    where: Expr | None = None
    flat: tuple[Mapping[str, int], Expr] | None = None
    given: Mapping[str, Expr] = field(default_factory=dict)
    known: dict[form.Expr, Expr] = field(default_factory=dict)
    places: dict[Access, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.type = VectorType("f32", self.lanes)

    def value(self, expr: form.Expr) -> Expr:
        """The value of an expression, as f32."""
        if expr in self.known:
            return self.known[expr]
        if isinstance(expr, Const):
            return number(expr.value, self.type)
        if isinstance(expr, form.Load):
            found = self.given.get(expr.buffer)
            if found is None:
                found = self.load(access(self.kernel, expr)).to("f32")
        elif expr.function == "add" and isinstance(expr.arguments[0], form.Call) \
                and expr.arguments[0].function == "mul":
            (x, y), z = (expr.arguments[0].arguments, expr.arguments[1])
            found = multiply_add(*map(self.value, (x, y, z)))
        else:
            found = FUNCTIONS[expr.function](self.b, *map(self.value, expr.arguments))
        self.known[expr] = self.b.let(found)
        return self.known[expr]

    def load(self, found: Access, scalar: str | None = None) -> Expr:
        """What an access reads, as it is stored, or halves as `scalar`."""
        binding = self.bindings[found.buffer]

        def read(lane: int, lanes: int = 1) -> Expr:
            return self.b.load(binding, self.place(found, lane), lanes, where=self.where,
                               scalar=scalar)

        if self.lanes == 1 or not found.stride(self.lane) and not wanders(found, self.lane):
            return spread(self.b.let(read(0)), self.lanes)
        if binding.lanes % self.lanes == 0 and together(found, self.lane, self.lanes):
            return read(0, self.lanes)
        return vector(*(self.b.let(read(lane)) for lane in range(self.lanes)))

    def place(self, found: Access, lane: int = 0) -> Expr:
        """The element that an access reads or writes, at a number of places behind the first."""
        if lane and not wanders(found, self.lane):
            return self.place(found) + lane * found.stride(self.lane)
        if not lane and found in self.places:
            return self.places[found]
        at = dict(self.at)
        if lane:
            at[self.lane] = at[self.lane] + lane
        strides = {name: s for name, s in found.strides if name in at}
        if self.flat and not lane and strides == self.flat[0]:
            total, terms = self.flat[1], []
        else:
            total, terms = number(0, U32), [at[name] * s for name, s in strides.items()]
        terms += [self._divided(index, at) * s for s, index in found.divided]
        for stride, inner in found.indirect:
            row = self.b.load(self.bindings[inner.buffer], self.place(inner, lane),
                              where=self.where)
            terms.append(row.to("u32") * stride)
        total = self.b.let(sum(terms, total) + found.offset)
        if not lane:
            self.places[found] = total
        return total

    def store(self, found: Access, value: Expr, where: Expr | None = None) -> None:
        """Write a value of f32 as what the buffer of the kernel holds."""
        binding, dtype = self.bindings[found.buffer], found.dtype
        if binding.dtype == "i32":
            value = value.to("i32")
            if dtype in WRAPPED:
                value = value & WRAPPED[dtype]
            elif dtype == "i8":
                value = (value << 24) >> 24
        value = self.b.let(value)
        if binding.lanes % self.lanes == 0 and together(found, self.lane, self.lanes) \
                or self.lanes == 1:
            self.b.store(binding, self.place(found), value, where=where)
            return
        for lane in range(self.lanes):
            self.b.store(binding, self.place(found, lane), value.lane(lane), where=where)

    def inside(self, guards: Iterable[tuple[Index, int]]) -> Expr | None:
        """Where all guards hold; None where there are none. Below 0 an index wraps, and is far
        above every extent."""
        asked = [self._affine(index, self.at) < extent * index.divisor
                 for index, extent in guards]
        return reduce(lambda x, y: x & y, asked) if asked else None

    def _affine(self, index: Index, at: Mapping[str, Expr]) -> Expr:
        terms = [at[name] * c for name, c in index.terms if name in at]
        return sum(terms, number(0, U32)) + index.offset

    def _divided(self, index: Index, at: Mapping[str, Expr]) -> Expr:
        return self._affine(index, at) // index.divisor


def both(x: Expr | None, y: Expr | None) -> Expr | None:
    """Where both conditions hold; None holds everywhere."""
    return x if y is None else y if x is None else x & y


def always(condition: Expr | None) -> Expr:
    """A condition of which None holds everywhere, as a value."""
    return Number(True, BOOL) if condition is None else condition
