"""How large indices are at most, and which constant they have behind all that varies.

u32 arithmetic wraps, so (i + 8) / 4 is i / 4 + 2 only where i + 8 is known not to: where every step
of it stays below 2**32. Then accesses beside each other differ in a constant, which devices have
room for in the instruction.
"""

from __future__ import annotations

from smalti.codegen.gpu.form import (
    BUILTINS,
    U32,
    Builtin,
    Expr,
    GroupProgram,
    Let,
    Loop,
    Name,
    Number,
    Op,
    number,
    op,
    statements,
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
    """

    def __init__(self, program: GroupProgram) -> None:
        lanes = program.subgroup or program.size
        ends = (*program.groups, program.size, program.size, lanes)
        self._builtins = {name: end - 1 for name, end in zip(BUILTINS, ends, strict=True)}
        self._names: dict[str, int] = {}
        for statement in statements(program.body):
            match statement:
                case Let(name, value):
                    self._know(name, self.largest(value) if value.type == U32 else None)
                case Loop(counter, _, stop):
                    most = self.largest(stop)
                    self._know(counter, None if most is None else max(0, most - 1))

    def _know(self, name: str, most: int | None) -> None:
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
