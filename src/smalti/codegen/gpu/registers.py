"""What an invocation of a group program keeps alive: words of registers, before any compiler.

    kept(program)                           what is alive at the points where most is
    registers(program, unit)                what a compiler takes for it on a chip with such units

A name is alive from where it is given to its last use, a variable also from its use in one turn of
a loop to the next. A subgroup shares a matrix; what is the same for all of its invocations is
uniform, which compilers keep apart. Of a short loop drivers make straight code, and load early what
its later turns want.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple

from smalti.codegen.gpu.form import (
    Barrier,
    Branch,
    Builtin,
    Expr,
    GroupLoad,
    GroupProgram,
    Let,
    Loop,
    MatrixLoad,
    Name,
    Number,
    Op,
    Set,
    Statement,
    Variable,
    expressions,
    operands,
    statements,
)
from smalti.codegen.gpu.instructions import HELD
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.types import INTEGERS, Matrix
from smalti.schedule.residency import LANES, RIGHT_EARLY, ComputeUnit, KeptWords

UNIFORM = ("group_x", "group_y", "group_z", "subgroup")
"""What all invocations of a subgroup have in common."""
WORDS = {"f32": 1.0, "i32": 1.0, "u32": 1.0, "f16": 0.5, "bf16": 0.5, "i8": 0.25, "bool": 0.0}
"""Words of a scalar; compilers keep a truth value as a bit of a mask."""


UNROLLED_TURNS, UNROLLED_COST = 32, 832
"""Turns and instructions of a loop that drivers unroll, at most: Mesa's nir_opt_loop_unroll.c has
32 turns, and 26 instructions for each of them."""


def kept(program: GroupProgram) -> tuple[KeptWords, ...]:
    """What is alive at the points of a program, but for points where less of everything is."""
    return tuple(_most(set(_Liveness(program).points())))


def registers(program: GroupProgram, unit: ComputeUnit) -> int:
    """Registers that an invocation takes on a device with such units."""
    return max(unit.held(each) for each in kept(program))


def shared_bytes(program: GroupProgram) -> int:
    """Bytes of the shared arrays of a work-group."""
    return sum(each.elements * STORED_DTYPES[each.dtype].itemsize for each in program.shared)


class _Liveness:
    """The names of a program: what they are, how large, and where they are alive."""

    def __init__(self, program: GroupProgram) -> None:
        self._program, self._lanes = program, program.subgroup or LANES
        self._read = {each.name for each in program.bindings if each.access == "read"}
        self._kinds: dict[str, tuple[str, float]] = {}
        self._depths: dict[str, int] = {}
        self._depth = 0  # loops that a statement is in
        self._found: list[KeptWords] = []
        self._name(program.body)

    def points(self) -> list[KeptWords]:
        """What is alive behind each statement, and before the first."""
        self._note(self._block(self._program.body, frozenset(), note=True))
        return self._found

    # ------------------------------------------------------------------ names

    def _name(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Let):
                self._add(statement.name, statement.value, self._same(statement.value))
            elif isinstance(statement, Variable):
                self._add(statement.name, statement.value, False)
            elif isinstance(statement, Loop):
                self._add(statement.counter, statement.start,
                          self._same(statement.start) and self._same(statement.stop))
                self._depth += 1
                self._name(statement.body)
                self._depth -= 1
            elif isinstance(statement, Branch):
                self._name(statement.then)
                self._name(statement.otherwise)

    def _add(self, name: str, value: Expr, same: bool) -> None:
        type = value.type
        self._depths[name] = self._depth
        if isinstance(type, Matrix):
            words = type.rows * type.columns * WORDS[type.scalar] / self._lanes
            made = isinstance(value, Op) and value.instruction in HELD  # of own registers
            self._kinds[name] = ("sums" if type.role == "sum" else "held" if made else
                                 "factors"), words
        else:
            loaded = type.lanes > 1 or isinstance(value, GroupLoad)  # words, whatever is in them
            kind = "places" if type.scalar in INTEGERS and not loaded else "values"
            self._kinds[name] = ("uniform" if same else kind), type.lanes * WORDS[type.scalar]

    def _same(self, expr: Expr) -> bool:
        """Whether a value is the same for all invocations of a subgroup."""
        if isinstance(expr, Number):
            return True
        if isinstance(expr, Builtin):
            return expr.name in UNIFORM
        if isinstance(expr, Name):
            return self._kinds[expr.name][0] == "uniform"
        if isinstance(expr, MatrixLoad) or isinstance(expr.type, Matrix):
            return False
        if isinstance(expr, GroupLoad) and expr.buffer not in self._read:
            return False
        return all(map(self._same, operands(expr)))

    # ------------------------------------------------------------------ points

    def _block(self, body: tuple[Statement, ...], after: frozenset[str], *,
               note: bool) -> frozenset[str]:
        """What is alive before a block, where `after` is behind it."""
        live, early = set(after), 0.0
        for statement in reversed(body):
            if note:
                self._note(live, early=early)
            if isinstance(statement, Barrier | Loop | Branch) or _taken_one_by_one(statement):
                early = 0.0
            if isinstance(statement, Let) and isinstance(statement.value, MatrixLoad):
                share = 1.0 if statement.value.type.role == "a" else RIGHT_EARLY
                early += share * self._kinds[statement.name][1]
            if isinstance(statement, Let | Variable | Set):
                live.discard(statement.name)
            elif isinstance(statement, Loop):
                live = self._loop(statement, frozenset(live), note)
            elif isinstance(statement, Branch):
                behind = frozenset(live)
                live = {*self._block(statement.then, behind, note=note),
                        *self._block(statement.otherwise, behind, note=note)}
            live.update(*map(_names, operands(statement)))
        return frozenset(live)

    def _loop(self, loop: Loop, after: frozenset[str], note: bool) -> set[str]:
        """What is alive before a loop: what a turn reads of the one before is alive at its end."""
        end = after | {loop.counter}
        while not (entry := self._block(loop.body, end, note=False)) <= end:
            end |= entry
        live = {*entry, *after} - {loop.counter}
        if note:
            self._depth += 1
            self._block(loop.body, end, note=True)
            self._depth -= 1
            if turns := _unrolled(loop):
                self._note(live, turns * sum(
                    self._kinds[each.name][1] for each in statements(loop.body)
                    if isinstance(each, Let) and isinstance(each.value, GroupLoad)))
        return live

    def _note(self, live: Iterable[str], unrolled: float = 0.0, early: float = 0.0) -> None:
        words = dict.fromkeys(("sums", "factors", "values", "places", "uniform", "held"), 0.0)
        for name in live:
            kind, size = self._kinds[name]
            if kind == "factors" and self._depths[name] < self._depth:
                kind = "held"
            words[kind] += size
        self._found.append(KeptWords(**words, unrolled=unrolled, early=early))


def _taken_one_by_one(statement: Statement) -> bool:
    """Whether a sum is done before the loads for the next one: it is multiplied by 1."""
    return (isinstance(statement, Set) and isinstance(statement.value, Op)
            and statement.value.instruction == "matrix_times")


def _unrolled(loop: Loop) -> int:
    """Turns of a loop that drivers make straight code of; 0 for others."""
    if not isinstance(loop.start, Number) or not isinstance(loop.stop, Number):
        return 0
    if any(isinstance(each, Loop | Barrier) for each in statements(loop.body)):
        return 0
    turns = -(-int(loop.stop.value - loop.start.value) // loop.step)
    cost = sum(1 for _ in statements(loop.body)) + sum(
        not isinstance(each, Number | Name) for each in expressions(loop.body))
    return turns if 1 < turns <= UNROLLED_TURNS and turns * cost <= UNROLLED_COST else 0


def _names(expr: Expr) -> Iterator[str]:
    """Names that an expression reads."""
    if isinstance(expr, Name):
        yield expr.name
    else:
        for part in operands(expr):
            yield from _names(part)


def _most(found: set[KeptWords]) -> Iterator[KeptWords]:
    """Those of which no other has as much of everything."""
    def words(each: KeptWords) -> tuple[float, ...]:
        return astuple(each)

    most: list[tuple[float, ...]] = []
    for each in sorted(map(words, found), reverse=True):
        if not any(all(x >= y for x, y in zip(other, each)) for other in most):
            most.append(each)
            yield KeptWords(*each)
