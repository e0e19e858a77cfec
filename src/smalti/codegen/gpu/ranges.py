"""How large indices are at most, and which constant they have behind all that varies.

u32 arithmetic wraps, so (i + 8) / 4 is i / 4 + 2 only where i + 8 is known not to: where every step
of it stays below 2**32. Then accesses beside each other differ in a constant, which devices have
room for in the instruction.
"""

from __future__ import annotations

from collections.abc import Iterator

from smalti.codegen.gpu.form import (
    BUILTINS,
    U32,
    Branch,
    Builtin,
    Expr,
    GroupProgram,
    Let,
    Loop,
    Name,
    Number,
    Op,
    Statement,
    number,
    op,
    operands,
)

END = 1 << 32
"""Where u32 wraps."""


class Ranges:
    """The largest values of a program's indices.

    >>> from smalti.codegen.gpu.builder import Builder
    >>> b = Builder("some", 64)
    >>> i = b.let(b.invocation * 4)
    >>> ranges = Ranges(b.finish((1, 1, 1)))
    >>> ranges.largest(i + 8), ranges.largest(i - 8)
    (260, None)
    >>> ranges.apart((i + 2) * 3)[1], ranges.apart(i - 8)[1]
    (6, 0)
    >>> ranges.vectors(i + 8, 4), ranges.vectors(i - 8, 4)
    (([Builtin(name='invocation')], 2), ([], 0))
    """

    def __init__(self, program: GroupProgram) -> None:
        lanes = program.subgroup or program.size
        ends = (*program.groups, program.size, program.size, lanes)
        self._builtins = {name: end - 1 for name, end in zip(BUILTINS, ends, strict=True)}
        self._names: dict[str, int] = {}
        self._lets: dict[str, Expr] = {}
        self._depths: dict[str, int] = {}
        self._run(program.body, 0)

    def _run(self, body: tuple[Statement, ...], depth: int) -> None:
        """Note what is named in a block that is inside of so many loops."""
        for statement in body:
            match statement:
                case Let(name, value) if value.type == U32:
                    self._know(name, self.largest(value), depth)
                    self._lets[name] = value
                case Loop(counter, _, stop, _, inner):
                    most = self.largest(stop)
                    self._know(counter, None if most is None else max(0, most - 1), depth + 1)
                    self._run(inner, depth + 1)
                case Branch(_, then, otherwise):
                    self._run(then, depth)
                    self._run(otherwise, depth)

    def _know(self, name: str, most: int | None, depth: int) -> None:
        self._depths[name] = depth
        if most is not None:
            self._names[name] = most

    def largest(self, expr: Expr) -> int | None:
        """The largest value of a u32, None where that is not known, or a step may wrap."""
        match expr:
            case Number(value):
                return int(value)
            case Name(name):
                return self._names.get(name)
            case Builtin(name):
                return self._builtins[name]
            case Op(instruction, (x, y)) if x.type == y.type == U32:
                return self._of(instruction, self.largest(x), self.largest(y), y)
            case Op("select", (_, x, y)) if x.type == U32:
                return self._of("max", self.largest(x), self.largest(y), y)
        return None

    def _of(self, instruction: str, x: int | None, y: int | None, second: Expr) -> int | None:
        divisor = int(second.value) if isinstance(second, Number) else 0
        found = None
        if instruction == "min":
            return min((n for n in (x, y) if n is not None), default=None)
        if instruction == "rem" and divisor:
            return divisor - 1 if x is None else min(x, divisor - 1)
        if x is None or y is None:
            return None
        if instruction == "div" and divisor:
            found = x // divisor
        elif instruction in ("add", "mul", "max"):
            found = {"add": x + y, "mul": x * y, "max": max(x, y)}[instruction]
        return found if found is not None and found < END else None

    def apart(self, expr: Expr) -> tuple[Expr, int]:
        """An index as the sum of what varies and a constant; the constant is 0 where the sum may
        wrap."""
        if self.largest(expr) is None:
            return expr, 0
        return _apart(expr)

    def vectors(self, index: Expr, lanes: int) -> tuple[list[Expr], int]:
        """What adds up to the number of the vector at `index`, a multiple of `lanes`, and a
        constant; nothing where that takes a division of all of it.

        What is not known to be a multiple itself comes first: most often a loop does not change it,
        and a device adds what changes to an address that it has worked out before.
        """
        rest, whole, more = self.parted(index, lanes)
        if not whole or more % lanes:
            return [], 0
        return whole if rest is None else [rest // lanes, *whole], more // lanes

    def parted(self, index: Expr, lanes: int) -> tuple[Expr | None, list[Expr], int]:
        """An index as the sum of what is not known to be a multiple of `lanes`, if there is any, of
        `lanes` times other terms, and of a constant; no terms where it may wrap.

        >>> from smalti.codegen.gpu.builder import Builder
        >>> b = Builder("some", 64)
        >>> Ranges(b.finish((1, 1, 1))).parted(b.lane * 12 + b.subgroup * 2 + 5, 4)[1:]
        ([Op(instruction='mul', arguments=(Builtin(name='lane'), Number(value=3, \
type=VectorType(scalar='u32', lanes=1))), type=VectorType(scalar='u32', lanes=1))], 5)
        """
        if lanes == 1 or self.largest(index) is None:
            return index, [], 0
        rest, whole, more = [], [], 0
        for term in self._terms(index, self._depth(index)):
            found = self._divided(term, lanes)
            if isinstance(term, Number):
                more += int(term.value)
            elif found is None:
                rest.append(term)
            else:
                whole.append(found)
        return (sum(rest[1:], rest[0]) if rest else None), whole, more

    def _depth(self, expr: Expr) -> int:
        """How many loops the names of an expression are inside of, at most."""
        if isinstance(expr, Name):
            return self._depths.get(expr.name, 0)
        return max(map(self._depth, operands(expr)), default=0)

    def _terms(self, expr: Expr, depth: int) -> Iterator[Expr]:
        """The terms of a sum, also of those that are named inside of so many loops."""
        if isinstance(expr, Name) and expr.name in self._lets and depth:
            value = self._lets[expr.name]
            if self._depths[expr.name] == depth and isinstance(value, Op) \
                    and value.instruction == "add" and self._lasting(value):
                expr = value
        if isinstance(expr, Op) and expr.instruction == "add":
            for each in expr.arguments:
                yield from self._terms(each, depth)
        else:
            rest, more = _apart(expr)  # (i + 2) * 3 is i * 3 + 6
            if more and not isinstance(expr, Number):
                yield number(more, U32)
            yield rest if more and not isinstance(expr, Number) else expr

    def _divided(self, expr: Expr, lanes: int) -> Expr | None:
        """An expression over `lanes`, where it is known to be a multiple."""
        if isinstance(expr, Name) and expr.name in self._lets:
            expr = self._lets[expr.name]
        match expr:
            case Op("mul", (x, Number(value))) if value % lanes == 0 and self._lasting(x):
                return op("mul", x, int(value) // lanes)
        return None

    def _lasting(self, expr: Expr) -> bool:
        """Whether an expression is the same wherever it stands: made of names that are given once.
        """
        if isinstance(expr, Name):
            return expr.name in self._depths
        return isinstance(expr, Number | Builtin | Op) and all(map(self._lasting, operands(expr)))


def _apart(expr: Expr) -> tuple[Expr, int]:
    match expr:
        case Number(value):
            return number(0, U32), int(value)
        case Op("add", (x, y)):
            (rest, first), (other, second) = _apart(x), _apart(y)
            return op("add", rest, other), first + second
        case Op("mul", (x, Number(value))):
            rest, first = _apart(x)
            return op("mul", rest, number(value, U32)), first * int(value)
    return expr, 0
